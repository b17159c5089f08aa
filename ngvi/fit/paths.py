"""Points for a log density that is a sum over the locals of a model.

Where locals are independent given the globals, ``l`` is a sum of terms each of which sees one local
and its ancestors, a *path* through the forest of the latents. Points in all ``d`` dimensions are
then more than is needed: those of :mod:`ngvi.points` in ``k`` dimensions, to which the coordinates
of the latent vector are dealt out so that no two on a path share one, are as exact for every path,
and so for their sum: for a cubic ``l`` there is no noise at ``2 k + 1`` points instead of
``2 d + 1``. Random signs make products of latents on different paths vanish on average. A few more
dimensions than the longest path needs let locals differ, and average their noise.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ngvi.points import Points
from ngvi.structure.forest import Forest

#: Dimensions beyond what a path needs, as a part of the latents, up to so many. On toenail (299
#: latents) noise times cost is the same within 10% for 6 to 105 dimensions, and half of that with
#: Hessians.
PART_OF_LATENTS, MAX_DIM = 1 / 8, 64


@dataclasses.dataclass(frozen=True)
class Paths:
    """How coordinates of a latent vector are dealt out to few dimensions.

    :param forest: of the latents.
    :param dim: ``k``, the number of dimensions.
    :param many: how many blocks of one depth may differ.
    """

    forest: Forest
    dim: int
    many: int

    @classmethod
    def of(cls, forest: Forest) -> Paths | None:
        """For a forest of locals; None where they would be more than half of all."""
        least = cls.with_many(forest, 1)
        wanted = min(PART_OF_LATENTS * forest.dim, MAX_DIM)
        several = sum(_sizes(forest, is_single=False).values())
        many = int((wanted - least.dim) / several) + 1 if several and wanted > least.dim else 1
        paths = cls.with_many(forest, many)
        return paths if 2 * paths.dim <= forest.dim else None

    @classmethod
    def with_many(cls, forest: Forest, many: int) -> Paths:
        """With so many different blocks of one depth."""
        single, several = (_sizes(forest, is_single) for is_single in (True, False))
        return cls(forest, sum(single.values()) + many * sum(several.values()), many)

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
