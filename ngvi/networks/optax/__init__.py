"""The optimisers of :mod:`ngvi.optax`."""

try:
    import jax as _jax  # noqa: F401
    import optax as _optax  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"ngvi.optax needs {error.name}: pip install 'ngvi[optax]'", name=error.name
    ) from error
