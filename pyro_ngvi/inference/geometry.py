"""The metric of a place's Gaussians, and their steps; vectors of many directions in one pass.

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
from ngvi.inference import geometry
from ngvi.inference.engine import Direction, Step
from ngvi.optim.trust_region import longest_within
from pyro_ngvi.inference.parameters import Place
from pyro_ngvi.optim.algebra import algebra
from pyro_ngvi.tracing.messengers import quiet

#: Rows that are worth ``torch.vmap``, and numbers in them that keep a processor busy without.
MIN_ROWS = 5
MAX_NUMBERS = 2**22


class Geometry(geometry.Geometry):
    """The metric of the families of a place; see :class:`ngvi.inference.geometry.Geometry`.

    :param place: the parameters.
    :param pairs: of the quasi-Newton memory.
    :param each_row: applies a function to many vectors.
    """

    def __init__(
        self, place: Place, pairs: list[tuple[np.ndarray, np.ndarray]], each_row: EachRow
    ) -> None:
        self._each_row = each_row
        self._families, self._like = place.families, place.families[0].loc
        restricted = any(family.leaves_out_correlations for family in self._families)
        super().__init__(place, flat(place.families).numel(), pairs, is_restricted=restricted)

    @torch.no_grad()
    def covectors(self, vectors: np.ndarray) -> np.ndarray:
        rows = torch.as_tensor(vectors).to(self._like)
        return self._each_row(lambda row: covector(self._families, row), rows).cpu().numpy()

    @torch.no_grad()
    def step(self, direction: Direction, rho: float, radius: float) -> Step | None:
        families = self._families
        directions = unflat(torch.as_tensor(direction.vector).to(self._like), families)
        path = JointPath(families, directions)
        attempt, length, rho = longest_within(algebra, radius, path, rho)
        moved = path.end(attempt)
        change = (flat(moved) - flat(families)).cpu().numpy()
        with np.errstate(all="ignore"):
            slope = float(direction.covector @ change)
        if not (math.isfinite(slope) and length <= radius):
            return None
        backward = float(path.backward_kl(attempt))
        place = self.place._replace(families=moved)
        return Step(place, change, slope, length, backward, rho)


def flat(families: Families) -> Tensor:
    """All coordinates, one after another."""
    return torch.cat([value.reshape(-1) for value in values(families)])


def unflat(vector: Tensor, like: Families) -> Families:
    """The inverse of :func:`flat`, for families like these."""
    direction, start = [], 0
    for family in like:
        parts = {}
        for name, value in family.coordinates().items():
            parts[name] = vector[start : start + value.numel()].view(value.shape)
            start += value.numel()
        direction.append(dataclasses.replace(family, **parts))
    return direction


def covector(families: Families, vector: Tensor) -> Tensor:
    """``F`` times a vector, whose products with others are their Fisher inner products."""
    return flat(dual(families, unflat(vector, families)))


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
