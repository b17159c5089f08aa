"""The optimisers of :mod:`ngvi.torch`."""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"ngvi.torch needs {error.name}: pip install 'ngvi[torch]'", name=error.name
    ) from error
