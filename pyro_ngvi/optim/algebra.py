"""Operations of torch for the rules of :mod:`ngvi.optim`: numbers are floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ngvi.families import direction
from ngvi.families.direction import Families
from ngvi.optim import rule, two_loop
from ngvi.optim.trust_region import LineSearchState
from pyro_ngvi.host import Reads


class Algebra(rule.Algebra):
    """Operations on floats.

    Numbers that a rule decides by are read, together, once for each decision. With numbers that
    stay on the device a step would have several times as many operations, and more launches of
    kernels than would pass in a wait for a device that has just been waited for, because of the
    loss. Between the attempts of :func:`~ngvi.optim.trust_region.longest_within` there is a branch
    anyway: by ``where`` every step would make all attempts, a factorisation each, of which the
    first mostly fits.

    :param conditions: flags that must hold, or the first numbers that are read raise
        :class:`~pyro_ngvi.host.FailedError`.
    """

    def __init__(self, *conditions: Tensor) -> None:
        self._reads = Reads(*conditions)

    sqrt = staticmethod(math.sqrt)
    norm, concatenate = staticmethod(torch.linalg.vector_norm), staticmethod(torch.cat)
    scan = staticmethod(two_loop.scan)

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        if isinstance(condition, Tensor):
            return torch.where(condition, yes, no)
        return yes if condition else no

    def minimum(self, one: Any, other: Any) -> Any:
        if isinstance(other, Tensor):
            return other.clamp(max=one)
        return min(one, other)

    def maximum(self, one: Any, other: Any) -> Any:
        if isinstance(one, Tensor):
            return one.clamp(min=other)
        return max(one, other)

    def numbers(self, *values: Tensor | float) -> list[float]:
        found = iter(self._reads.now(*(value for value in values if isinstance(value, Tensor))))
        return [next(found) if isinstance(value, Tensor) else value for value in values]

    def later(self, *values: Tensor) -> Callable[[], list[float]]:
        return self._reads.later(*values)

    def measured(self, compute: Callable, measure: Callable) -> tuple[Any, list[float]]:
        return self._reads.measured(compute, measure)

    def cast(self, number: float, like: Families) -> float:
        return number

    def kept(self, numbers: tuple, like: Families) -> tuple:
        return numbers

    def eps(self, like: Tensor) -> float:
        return torch.finfo(like.dtype).eps

    def split(self, vector: Tensor, sizes: list[int]) -> list[Tensor]:
        return list(vector.split(sizes))

    def product_rows(self, families: Families, directions: list, others: list) -> list:
        products = torch.stack(direction.products(families, directions, others))
        found, (_, num_rows, num) = self._reads.now(products), products.shape
        rows = [found[begin : begin + num] for begin in range(0, len(found), num)]
        return [rows[:num_rows], rows[num_rows:]]

    def no_rows(self, most: int, like: Tensor) -> Tensor:
        return like.new_zeros((0, *like.shape))

    def with_row(self, use: bool, blocks: tuple, rows: tuple, most: int) -> tuple[Tensor, ...]:
        if not use:
            return blocks
        pairs = zip(blocks, rows, strict=True)
        return tuple(torch.cat([block, row[None]])[-most:] for block, row in pairs)

    def repeated(
        self, advance: Callable, settled: Callable, search: LineSearchState, path: Any
    ) -> LineSearchState:
        while not settled(search):
            search = advance(search)
        return search


algebra = Algebra()
