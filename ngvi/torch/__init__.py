"""Optimisers for plain training loops in torch, which need no PPL."""

from ngvi.networks.torch.ivon import IVON, initial_hess
from ngvi.networks.torch.slang import SLANG
from ngvi.networks.torch.vogn import VOGN, example_gradients

__all__ = ["IVON", "SLANG", "VOGN", "example_gradients", "initial_hess"]
