"""What an estimator is given, what it returns, and averages over the draws that are finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ngvi.estimators.points import Families
from ngvi.families.curvature import GroupSpread
from pyro_ngvi.families.base import Family


class Averages(NamedTuple):
    """Averages over the draws all of whose numbers are finite; NaN if there are none."""

    directions: Families  #: the natural gradients of the bound
    values: Tensor  #: of the log density at the first draws, shape ``(M,)``
    kept: Tensor  #: which of these count, booleans of shape ``(M,)``
    num_dropped: Callable[[], int]  #: of all draws
    params: list[tuple[Tensor, Tensor]]  #: other parameters, and their mean gradients
    spread: GroupSpread | None = None  #: of groups of points, all families together


def nowhere(family: Family) -> Family:
    """The direction of no draws."""
    return family.map(lambda value: torch.full_like(value, torch.nan))


def finite_draws(*tensors: Tensor) -> Tensor:
    """For each index of the leading axis, whether everything is finite."""
    # One sum per draw, not one comparison per entry: NaN and infinities survive addition.
    return torch.isfinite(sum((t.detach() * 0).flatten(1).sum(-1) for t in map(_matrix, tensors)))


def of_kept(values: Tensor, kept: Tensor | None) -> Tensor:
    """The rows of the draws that are kept; None are all."""
    return values if kept is None else values[kept]


def concatenated(parts: list[Tensor]) -> Tensor:
    """One after another, without a copy if there is one only."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def map_structure(function: Callable[..., Tensor], *trees: Any) -> Any:
    """``function`` of the corresponding tensors of (nested) tuples or lists."""
    if isinstance(trees[0], Tensor):
        return function(*trees)
    return tuple(map_structure(function, *parts) for parts in zip(*trees, strict=True))


def plus(one: Any, other: Any) -> Any:
    """The sum of two totals of a ``Curvature``."""
    return one.plus(other) if hasattr(one, "plus") else map_structure(torch.add, one, other)


def _matrix(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(-1) if tensor.dim() == 1 else tensor
