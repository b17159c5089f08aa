"""Averages over the draws whose numbers are finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Curvature(Protocol):
    """An estimate of the Hessian at each of ``K`` draws, as far as a family needs it."""

    def finite(self) -> Tensor:
        """Which draws have a finite one, booleans of shape ``(K,)``."""

    def total(self, kept: Tensor) -> Any:
        """The sum over the draws that are ``kept``, as the family assembles it."""


def finite_draws(*tensors: Tensor) -> Tensor:
    """For each index of the leading axis, whether everything is finite."""
    # One sum per draw, not one comparison per entry: NaN and infinities survive addition.
    return torch.isfinite(sum((t.detach() * 0).flatten(1).sum(-1) for t in map(_matrix, tensors)))


def map_structure(function: Callable[..., Tensor], *trees: Any) -> Any:
    """``function`` of the corresponding tensors of (nested) tuples or lists."""
    if isinstance(trees[0], Tensor):
        return function(*trees)
    return tuple(map_structure(function, *parts) for parts in zip(*trees, strict=True))


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(-1) if tensor.dim() == 1 else tensor
