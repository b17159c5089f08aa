"""What the rules of :mod:`ngvi.optim` compute with: numbers are floats, families torch's."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from pyro_ngvi.families import direction
from pyro_ngvi.families.direction import *  # noqa: F403
from pyro_ngvi.families.direction import Families
from pyro_ngvi.linalg.triangular import keep_off_zero as keep_off_zero

#: One step size for all coordinates, or one for each, by family and name.
Rates = float | list[dict[str, float]]

minimum, maximum, sqrt, hypot = min, max, math.sqrt, math.hypot
copysign, diagonal = torch.copysign, torch.diagonal


def where(condition: Any, yes: Any, no: Any) -> Any:
    """Of tensors by element."""
    if isinstance(condition, Tensor):
        return torch.where(condition, yes, no)
    return yes if condition else no


def kept(numbers: tuple, like: Families) -> tuple:
    """The numbers."""
    return numbers


def products(
    families: Families, directions: list[Families], others: list[Families]
) -> list[list[list[float]]]:
    """As rows of floats, read at once."""
    return torch.stack(direction.products(families, directions, others)).tolist()


def with_diagonal(matrix: Tensor, diagonal: Tensor) -> Tensor:
    """The matrix with another diagonal."""
    return matrix.diagonal_scatter(diagonal)


def at_rates(rates: Rates, vectors: Families, factor: float, count: int) -> Families:
    """Schedules have become numbers: :class:`~pyro_ngvi.optim.pyro_optim.JointOptim` reads them."""
    if not isinstance(rates, list):
        return direction.scale(factor * rates, vectors)

    def scaled(values: dict[str, Tensor], sizes: dict[str, float]) -> dict[str, Tensor]:
        return {name: (factor * sizes[name]) * value for name, value in values.items()}

    return [
        dataclasses.replace(vector, **scaled(vector.coordinates(), sizes))
        for vector, sizes in zip(vectors, rates, strict=True)
    ]
