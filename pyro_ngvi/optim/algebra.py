"""What the rules of :mod:`ngvi.optim` compute with: numbers are floats, families torch's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ngvi.families import direction
from ngvi.families.direction import *  # noqa: F403
from ngvi.families.direction import Families
from ngvi.optim.trust_region import Search
from ngvi.two_loop import scan as scan
from pyro_ngvi.linalg.matrices import matrices

#: One step size for all coordinates, or one for each, by family and name.
Rates = float | list[dict[str, float]]

minimum, maximum, sqrt, hypot = min, max, math.sqrt, math.hypot
keep_off_zero, with_diagonal = matrices.keep_off_zero, matrices.with_diagonal
copysign, diagonal, norm = torch.copysign, torch.diagonal, torch.linalg.vector_norm
concatenate, number = torch.cat, float


def where(condition: Any, yes: Any, no: Any) -> Any:
    """Of tensors by element."""
    if isinstance(condition, Tensor):
        return torch.where(condition, yes, no)
    return yes if condition else no


def kept(numbers: tuple, like: Families) -> tuple:
    """The numbers."""
    return numbers


def product_rows(
    families: Families, directions: list[Families], others: list[Families]
) -> list[list[list[float]]]:
    """As rows of floats, read at once."""
    return torch.stack(direction.products(families, directions, others)).tolist()


def cast(number: float, like: Families) -> float:
    """The number."""
    return number


def rate(step_size: float, count: int) -> float:
    """The number that a schedule has become: see ``pyro_optim.JointOptim``."""
    return step_size


def numbers(*values: Tensor) -> list[float]:
    """Floats, read at once."""
    return torch.stack(values).tolist()


def eps(like: Tensor) -> float:
    """The unit of precision of its dtype."""
    return torch.finfo(like.dtype).eps


def split(vector: Tensor, sizes: list[int]) -> list[Tensor]:
    """The vector cut into pieces."""
    return list(vector.split(sizes))


def no_rows(most: int, like: Tensor) -> Tensor:
    """None yet."""
    return like.new_zeros((0, *like.shape))


def with_row(use: Tensor, blocks: tuple, rows: tuple, most: int) -> tuple[Tensor, ...]:
    """Every block with one more row at its end, if ``use`` says so, but no more than ``most``."""
    if not use:
        return blocks
    pairs = zip(blocks, rows, strict=True)
    return tuple(torch.cat([block, row[None]])[-most:] for block, row in pairs)


def repeated(
    advance: Callable[[Search], Search],
    settled: Callable[[Search], bool],
    search: Search,
    path: Any,
) -> Search:
    """The search, advanced until it is settled."""
    while not settled(search):
        search = advance(search)
    return search


def at_rates(rates: Rates, vectors: list[Any], factor: float, count: int) -> Families:
    """Every coordinate times its rate, and a factor."""
    if not isinstance(rates, list):
        return direction.scale(factor * rates, vectors)

    def scaled(values: dict[str, Tensor], sizes: dict[str, float]) -> dict[str, Tensor]:
        return {name: (factor * sizes[name]) * value for name, value in values.items()}

    return [
        dataclasses.replace(vector, **scaled(vector.coordinates(), sizes))
        for vector, sizes in zip(vectors, rates, strict=True)
    ]
