"""IVON, VOGN and SLANG as plain optax transformations, for a training loop without a PPL."""

try:
    import jax as _jax  # noqa: F401
    import optax as _optax  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"ngvi.optax needs {error.name}: pip install 'ngvi[optax]'", name=error.name
    ) from error

from ngvi.optax.loop import IvonState, IvonTransformation, SlangState
from ngvi.optax.rules import initial_hess, ivon, vogn
from ngvi.optax.slang import slang

__all__ = ["IvonState", "IvonTransformation", "SlangState", "initial_hess", "ivon", "slang", "vogn"]
