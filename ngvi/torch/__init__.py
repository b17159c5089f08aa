"""Optimisers for plain training loops in torch, which need no PPL."""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"ngvi.torch needs {error.name}: pip install 'ngvi[torch]'", name=error.name
    ) from error

from ngvi.torch.ivon import IVON, initial_hess
from ngvi.torch.slang import SLANG
from ngvi.torch.vogn import VOGN, example_gradients

__all__ = ["IVON", "SLANG", "VOGN", "example_gradients", "initial_hess"]
