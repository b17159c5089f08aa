"""Points for a log density that is a sum over the locals of a model.

Where locals are independent given the globals, ``l`` is a sum of terms each of which sees one local
and its ancestors, a *path* through the forest of the latents. Points in all ``d`` dimensions are
then more than is needed: those of :mod:`ngvi.families.points` in ``k`` dimensions, to which the
coordinates of the latent vector are dealt out so that no two on a path share one, are as exact for
every path, and so for their sum: for a cubic ``l`` there is no noise at ``2 k + 1`` points instead
of ``2 d + 1``. Random signs make products of latents on different paths vanish on average. A few
more dimensions than the longest path needs let locals differ, and average their noise.

What is left is the noise of higher degrees, of each local's density with its ancestors: it grows
with the number of locals, and takes many groups of points where these are hundreds. There paths are
short beside them, and points that are exact for polynomials of degree 5 on each are no more.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ngvi.families.points import Points, num_quintic, quintic_points, spherical_points
from ngvi.latents.forest import Forest

#: Dimensions beyond what a path needs, as a part of the latents, up to so many. On toenail (299
#: latents) noise times cost is the same within 10% for 6 to 105 dimensions, and half of that with
#: Hessians.
PART_OF_LATENTS, MAX_DIM = 1 / 8, 64

#: Points that are exact to degree 5 are taken up to so many times as many as those to degree 3, in
#: as few dimensions as hold a path, or in these many, where there are no more of them. The noise of
#: a group, a squared Fisher norm in nats, times its points, at the optima of HERS, toenail and
#: polypharmacy (2,037, 299 and 509 latents, paths of 7, 6 and 10): 87, 131 and 143 of degree 3,
#: 10, 16 and 15 of degree 5.
MORE_POINTS, QUINTIC_DIM = 2.5, 7


@dataclasses.dataclass(frozen=True)
class Paths:
    """How coordinates of a latent vector are dealt out to few dimensions.

    :param forest: of the latents.
    :param dim: ``k``, the number of dimensions.
    :param many: how many blocks of one depth may differ.
    :param is_quintic: whether the points are exact for polynomials of degree 5 on each path, or 3.
    """

    forest: Forest
    dim: int
    many: int
    is_quintic: bool = False

    @classmethod
    def of(cls, forest: Forest) -> Paths | None:
        """For a forest of locals; None where they would be more than half of all."""
        least = cls.with_many(forest, 1)
        wanted = min(PART_OF_LATENTS * forest.dim, MAX_DIM)
        several = sum(_sizes(forest, is_single=False).values())
        many = int((wanted - least.dim) / several) + 1 if several and wanted > least.dim else 1
        paths = cls.with_many(forest, many)
        if 2 * paths.dim > forest.dim:
            return None
        many = 1 + max((QUINTIC_DIM - least.dim) // several, 0) if several else 1
        quintic = dataclasses.replace(cls.with_many(forest, many), is_quintic=True)
        most = MORE_POINTS * paths.num_points
        return quintic if quintic.dim > 1 and quintic.num_points <= most else paths

    @classmethod
    def with_many(cls, forest: Forest, many: int) -> Paths:
        """With so many different blocks of one depth."""
        single, several = (_sizes(forest, is_single) for is_single in (True, False))
        return cls(forest, sum(single.values()) + many * sum(several.values()), many)

    @property
    def num_points(self) -> int:
        """Of a group."""
        return num_quintic(self.dim) if self.is_quintic else 2 * self.dim + 1

    def draws(self, rng: np.random.Generator, num_groups: int) -> list[Points]:
        """Fresh groups of points of all latents."""
        points = quintic_points if self.is_quintic else spherical_points
        return [self.spread(rng, group) for group in points(rng, self.dim, num_groups)]

    def spread(self, rng: np.random.Generator, points: Points) -> Points:
        """Points of all latents from points in ``k`` dimensions."""
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


def paths_of(guide: Any) -> Paths | None:
    """Those of a guide, if it is one Gaussian of a model with locals."""
    forest = getattr(guide, "paths", None)
    return None if forest is None else Paths.of(forest)


def _sizes(forest: Forest, is_single: bool) -> dict[int, int]:
    """By depth the largest block, of groups of one block or of several."""
    sizes: dict[int, int] = {}
    for index, group in enumerate(forest.groups):
        if (group.num == 1) == is_single:
            depth = len(forest.ancestors(index))
            sizes[depth] = max(sizes.get(depth, 0), group.size)
    return sizes
