"""The metric of a state's Gaussians, and their steps; vectors of many directions in one pass.

A small model's evaluation takes milliseconds, and so would the same dozen operations on each of
sixty directions, one after another.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ngvi.families.direction import Families, dual, values
from ngvi.families.path import JointPath
from ngvi.families.steps import leaves_out_correlations
from ngvi.inference import metric
from ngvi.inference.estimate import Pairs
from ngvi.optim.trust_region import longest_within
from pyro_ngvi.inference.space import State
from pyro_ngvi.optim.algebra import algebra
from pyro_ngvi.tracing.messengers import quiet

#: Rows that are worth ``torch.vmap``, and numbers in them that keep a processor busy without.
MIN_ROWS = 5
MAX_NUMBERS = 2**22


class Metric(metric.Metric):
    """The metric of the families of a state; see :class:`ngvi.inference.metric.Metric`.

    :param each_row: applies a function to many vectors.
    """

    def __init__(self, state: State, pairs: Pairs, each_row: EachRow) -> None:
        self._each_row = each_row
        self._families, self._like = state.families, state.families[0].loc
        restricted = any(map(leaves_out_correlations, self._families))
        super().__init__(
            state, flat(state.families).numel(), pairs, leaves_out_correlations=restricted
        )

    @torch.no_grad()
    def gradients(self, naturals: np.ndarray) -> np.ndarray:
        rows = torch.as_tensor(naturals).to(self._like)
        return self._each_row(lambda row: gradient_of(self._families, row), rows).cpu().numpy()

    @torch.no_grad()
    def _advance(
        self, natural: np.ndarray, step_size: float, radius: float
    ) -> tuple[State, np.ndarray, list[float]]:
        families = self._families
        path = JointPath(families, unflat(torch.as_tensor(natural).to(self._like), families))
        attempt, length, step_size = longest_within(algebra, radius, path, step_size)
        moved = path.end(attempt)
        change = (flat(moved) - flat(families)).cpu().numpy()
        backward = float(path.backward_kl(attempt)) if length <= radius else math.nan
        return self.state._replace(families=moved), change, [length, backward, step_size]


def flat(families: Families) -> Tensor:
    """All coordinates, one after another."""
    return torch.cat([value.reshape(-1) for value in values(families)])


def unflat(vector: Tensor, like: Families) -> Families:
    """Invert :func:`flat`, for families like these."""
    direction, start = [], 0
    for family in like:
        parts = {}
        for name, value in family.coordinates().items():
            parts[name] = vector[start : start + value.numel()].view(value.shape)
            start += value.numel()
        direction.append(dataclasses.replace(family, **parts))
    return direction


def gradient_of(families: Families, vector: Tensor) -> Tensor:
    """``F`` times a vector, whose products with others are their Fisher inner products."""
    return flat(dual(families, unflat(vector, families)))


class EachRow:
    """A function of each row, by ``torch.vmap`` where that is faster and possible."""

    def __init__(self) -> None:
        self._is_possible = True

    def __call__(self, function: Callable[..., Tensor], *stacks: Tensor) -> Tensor:
        """Return the results of all rows, stacked.

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
