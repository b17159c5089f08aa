"""Points at which a group of draws evaluates the log density.

If locals are independent given the globals, the log density is a sum of terms. Each depends on one
local and its ancestors, a *chain* in the forest of the latents. Points in ``k < d`` dimensions
(:mod:`ngvi.families.points`) are then enough: each coordinate of the latent vector is assigned to a
dimension, so that no two coordinates of a chain share one. The points are as exact for every chain,
and so for their sum. A cubic log density has no noise at ``2 k + 1`` points instead of ``2 d + 1``,
and no Hessian is needed. Which locals share a dimension, and with which sign, is random in each
group, so that estimates are unbiased.

The remaining noise comes from higher degrees in each chain. It grows with the number of locals, and
hundreds of locals take many groups. Chains are short in comparison, so points that are exact for
polynomials of degree 5 on each chain are then used, which are no more numerous.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from ngvi.estimators.choice import Case
from ngvi.estimators.table import ESTIMATORS, EstimateCost
from ngvi.families.points import Points, num_quintic, quintic_points, spherical_points
from ngvi.inference.estimate import Group, Sample
from ngvi.latents.forest import Forest

#: Part of the latents that a cubature on chains has dimensions, where noise times cost is flat, and
#: the most of them.
PART_OF_LATENTS, MAX_CHAIN_DIM = 1 / 8, 64
#: Most points of degree 5 for each point of degree 3, as they have a tenth of the noise, and the
#: fewest dimensions for them.
QUINTIC_POINTS, QUINTIC_DIM = 2.5, 7


@dataclasses.dataclass(frozen=True)
class ChainCubature:
    """Points in few dimensions, to which the coordinates of a latent vector are dealt out.

    :param forest: of the latents.
    :param dim: ``k``, the number of dimensions.
    :param many: how many blocks of one depth may differ.
    :param is_quintic: whether the points are exact for polynomials of degree 5 on each chain, or 3.
    """

    forest: Forest
    dim: int
    many: int
    is_quintic: bool = False

    @classmethod
    def of(cls, forest: Forest) -> ChainCubature | None:
        """Return the cubature of a forest; None if it has more than half as many dimensions."""
        least = cls.with_many(forest, 1)
        wanted = min(PART_OF_LATENTS * forest.dim, MAX_CHAIN_DIM)
        several = sum(_sizes(forest, is_single=False).values())
        many = int((wanted - least.dim) / several) + 1 if several and wanted > least.dim else 1
        cubic = cls.with_many(forest, many)
        if 2 * cubic.dim > forest.dim:
            return None
        many = 1 + max((QUINTIC_DIM - least.dim) // several, 0) if several else 1
        quintic = dataclasses.replace(cls.with_many(forest, many), is_quintic=True)
        most = QUINTIC_POINTS * cubic.num_points
        return quintic if quintic.dim > 1 and quintic.num_points <= most else cubic

    @classmethod
    def of_guide(cls, guide: Any) -> ChainCubature | None:
        """Return the cubature of a guide that is one Gaussian of a model with locals."""
        forest = getattr(guide, "paths", None)
        return None if forest is None else cls.of(forest)

    @classmethod
    def with_many(cls, forest: Forest, many: int) -> ChainCubature:
        """Return the cubature with this many different blocks of one depth."""
        single, several = (_sizes(forest, is_single) for is_single in (True, False))
        return cls(forest, sum(single.values()) + many * sum(several.values()), many)

    @property
    def num_points(self) -> int:
        """Number of points of a group."""
        return num_quintic(self.dim) if self.is_quintic else 2 * self.dim + 1

    def points(self, rng: np.random.Generator, num_groups: int) -> list[Points]:
        """Return fresh groups of points of all latents."""
        draw = quintic_points if self.is_quintic else spherical_points
        return [self.spread(rng, group) for group in draw(rng, self.dim, num_groups)]

    def spread(self, rng: np.random.Generator, points: Points) -> Points:
        """Return points of all latents from points in ``k`` dimensions."""
        noise = np.empty((len(points.noise), self.forest.dim))
        single, several = (_sizes(self.forest, is_single) for is_single in (True, False))
        starts, start = {}, 0
        for is_single, sizes in ((True, single), (False, several)):
            for depth, size in sizes.items():
                starts[is_single, depth] = start
                start += size if is_single else self.many * size
        pieces = self.forest.split_indices()
        for index, (group, piece) in enumerate(zip(self.forest.groups, pieces, strict=True)):
            is_single, depth = group.num == 1, len(self.forest.ancestors(index))
            stratum = rng.permutation(group.num) % self.many
            first = starts[is_single, depth] + group.size * stratum
            signs = rng.choice((-1.0, 1.0), piece.shape)
            noise[:, piece] = signs * points.noise[:, first + np.arange(group.size)[:, None]]
        return Points(noise, points.weights)


def _sizes(forest: Forest, is_single: bool) -> dict[int, int]:
    """Return the largest block by depth, of groups of one block or of several."""
    sizes: dict[int, int] = {}
    for index, group in enumerate(forest.groups):
        if (group.num == 1) == is_single:
            depth = len(forest.ancestors(index))
            sizes[depth] = max(sizes.get(depth, 0), group.size)
    return sizes


class Groups(NamedTuple):
    """Groups of draws, and their cost."""

    dim: int
    cost: EstimateCost  #: Cost of a group.
    cubature: ChainCubature | None = None  #: Dimensions that points are spread over.

    @classmethod
    def of(
        cls, estimator: str, case: Case, data_size: int, cubature: ChainCubature | None = None
    ) -> Groups:
        """Return groups that cost about as much as a group of orthogonal points.

        :param data_size: numbers in the model's largest argument.
        :param cubature: of the log density, if it is a sum over locals.
        """
        dim = case.dim
        if estimator != "spherical" or cubature is None:
            return cls(dim, ESTIMATORS[estimator].cost_of_group(dim, case.products, data_size))
        return cls(dim, EstimateCost(cubature.num_points, cubature.num_points, 0, 1, 1), cubature)

    def sample(self, rng: np.random.Generator, num_groups: int) -> Sample:
        """Return fresh groups of draws."""
        if self.cubature is not None:
            points = self.cubature.points(rng, num_groups)
        elif self.cost.num_groups:
            points = spherical_points(rng, self.dim, num_groups)
        else:
            points = [self._antithetic(rng) for _ in range(num_groups)]
        seeds = rng.integers(2**31, size=num_groups)
        return [Group(group, int(seed)) for group, seed in zip(points, seeds, strict=True)]

    def _antithetic(self, rng: np.random.Generator) -> Points:
        parts: list[np.ndarray] = []
        for count in (self.cost.num_hessians, self.cost.num_gradients - self.cost.num_hessians):
            half = rng.standard_normal((-(-count // 2), self.dim))
            parts.extend((half, -half[: count // 2]))
        noise = np.concatenate(parts)
        return Points(noise, np.full(len(noise), 1.0 / len(noise)))
