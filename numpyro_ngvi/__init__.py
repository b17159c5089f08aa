"""Natural-gradient variational inference for NumPyro."""

from importlib.util import find_spec as _find_spec

try:
    import numpyro as _numpyro  # noqa: F401

    if _find_spec("optax") is None:  # imported with the first optimiser, which takes a while
        raise ModuleNotFoundError("No module named 'optax'", name="optax")
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"numpyro_ngvi needs {error.name}: pip install 'ngvi[numpyro]'", name=error.name
    ) from error

from ngvi import __version__ as __version__
from numpyro_ngvi import families
from numpyro_ngvi.elbo import NaturalELBO
from numpyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from numpyro_ngvi.inference import FitOptions, FitResult, fit, fit_density
from numpyro_ngvi.optim import BLR, IVON, Snngm
from numpyro_ngvi.svi import SVI
from numpyro_ngvi.tempering import tempered

__all__ = [
    "BLR",
    "IVON",
    "SVI",
    "FitOptions",
    "FitResult",
    "NaturalELBO",
    "NaturalGaussianGuide",
    "ReparametrizedGaussianGuide",
    "Snngm",
    "families",
    "fit",
    "fit_density",
    "tempered",
]
