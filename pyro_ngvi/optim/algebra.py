"""What the rules of :mod:`ngvi.optim` compute with: numbers are floats, families torch's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ngvi import two_loop
from ngvi.families import direction
from ngvi.families.direction import Families
from ngvi.optim import rule
from ngvi.optim.trust_region import Search

#: One step size for all coordinates, or one for each, by family and name.
Rates = float | list[dict[str, float]]


class Algebra(rule.Algebra):
    """Schedules have become numbers: ``pyro_optim.JointOptim`` reads them."""

    minimum, maximum = staticmethod(min), staticmethod(max)
    sqrt, hypot = staticmethod(math.sqrt), staticmethod(math.hypot)
    norm, concatenate = staticmethod(torch.linalg.vector_norm), staticmethod(torch.cat)
    scan = staticmethod(two_loop.scan)

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        if isinstance(condition, Tensor):
            return torch.where(condition, yes, no)
        return yes if condition else no

    def number(self, value: Tensor) -> float:
        return float(value)

    def numbers(self, *values: Tensor) -> list[float]:
        return torch.stack(values).tolist()

    def cast(self, number: float, like: Families) -> float:
        return number

    def kept(self, numbers: tuple, like: Families) -> tuple:
        return numbers

    def eps(self, like: Tensor) -> float:
        return torch.finfo(like.dtype).eps

    def split(self, vector: Tensor, sizes: list[int]) -> list[Tensor]:
        return list(vector.split(sizes))

    def rate(self, rates: float | Callable[[int], float], count: int) -> float:
        return rates(count) if callable(rates) else rates

    def at_rates(self, rates: Rates, vectors: Families, factor: float, count: int) -> Families:
        if not isinstance(rates, list):
            return direction.scale(factor * rates, vectors)

        def scaled(values: dict[str, Tensor], sizes: dict[str, float]) -> dict[str, Tensor]:
            return {name: (factor * sizes[name]) * value for name, value in values.items()}

        return [
            dataclasses.replace(vector, **scaled(vector.coordinates(), sizes))
            for vector, sizes in zip(vectors, rates, strict=True)
        ]

    def product_rows(self, families: Families, directions: list, others: list) -> list:
        return torch.stack(direction.products(families, directions, others)).tolist()

    def no_rows(self, most: int, like: Tensor) -> Tensor:
        return like.new_zeros((0, *like.shape))

    def with_row(self, use: Tensor, blocks: tuple, rows: tuple, most: int) -> tuple[Tensor, ...]:
        if not use:
            return blocks
        pairs = zip(blocks, rows, strict=True)
        return tuple(torch.cat([block, row[None]])[-most:] for block, row in pairs)

    def unless(self, known: Any, attempt: Any, like: float, otherwise: Callable) -> Any:
        return (attempt, math.inf) if known else otherwise()

    def repeated(self, advance: Callable, settled: Callable, search: Search, path: Any) -> Search:
        while not settled(search):
            search = advance(search)
        return search


algebra = Algebra()
