"""Directions as vectors of numbers, many of them in one pass.

A small model's evaluation takes milliseconds, and so would the same dozen operations on each of
sixty directions, one after another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_ngvi.families.base import Family
from pyro_ngvi.tracing.messengers import quiet

#: Rows that are worth ``torch.vmap``, and numbers in them that keep a processor busy without.
MIN_ROWS = 5
MAX_NUMBERS = 2**22


def flat(direction: list[Family]) -> Tensor:
    """All coordinates, one after another."""
    values = [value for family in direction for value in family.coordinates().values()]
    return torch.cat([value.reshape(-1) for value in values])


def unflat(vector: Tensor, like: list[Family]) -> list[Family]:
    """The inverse of :func:`flat`, for families like these."""
    direction, start = [], 0
    for family in like:
        values = {}
        for name, value in family.coordinates().items():
            values[name] = vector[start : start + value.numel()].view(value.shape)
            start += value.numel()
        direction.append(dataclasses.replace(family, **values))
    return direction


class EachRow:
    """A function of each row, by ``torch.vmap`` where that is faster and possible."""

    def __init__(self) -> None:
        self._is_possible = True

    def __call__(self, function: Callable[..., Tensor], *stacks: Tensor) -> Tensor:
        """The results of all rows, stacked.

        :param stacks: tensors whose first axes are the rows.
        """
        is_worth_it = len(stacks[0]) >= MIN_ROWS and stacks[0].numel() <= MAX_NUMBERS
        if self._is_possible and is_worth_it:
            try:
                with quiet():
                    return torch.vmap(function)(*stacks)
            except RuntimeError:  # some families look at their numbers
                self._is_possible = False
        return torch.stack([function(*rows) for rows in zip(*stacks, strict=True)])
