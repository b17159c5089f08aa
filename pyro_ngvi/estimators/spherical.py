"""Gradients at orthogonal points; see :class:`ngvi.estimators.table.Spherical`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi.estimators import table
from ngvi.estimators.points import Families, PointsBySite, mixture_in
from ngvi.families.curvature import (
    GroupSpread,
    natural_gradient_from_groups,
    natural_gradient_from_points,
)
from ngvi.families.dense import DenseFamily
from ngvi.families.points import spherical_points
from pyro_ngvi.estimators.differentiate import Differentiator, Evaluated, FromGradients
from pyro_ngvi.estimators.mixture import of_mixture
from pyro_ngvi.estimators.moments import Averages
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.forest import SparsePrecision
from pyro_ngvi.host import label, on_device


@shared_doc(table.Spherical)
@dataclasses.dataclass(frozen=True)
class Spherical(FromGradients):
    """All groups share their passes.

    :param num_groups: of points; their spread is returned if there are several.
    """

    weighted = True
    num_groups: int

    def __call__(self, evaluate: Differentiator, here: Families, points: PointsBySite) -> Averages:
        if (site := mixture_in(here)) is not None:
            return of_mixture(evaluate, here, site, points)
        if self.num_groups == 1:
            return super().__call__(evaluate, here, points)
        found = evaluate(here, points, weighted=True)
        directions, spreads = {}, []
        with label("direction"):
            for site, family in here.items():
                weighted = self._weighted(found.gradients[site], found, points)
                directions[site], spread = natural_gradient_from_groups(
                    family, weighted, points.noise[site], self.num_groups
                )
                spreads.append(spread)
        spread = GroupSpread(*map(sum, zip(*spreads, strict=True)))
        return Averages(
            directions, found.values, found.kept, found.num_dropped, found.params, spread
        )

    def direction(
        self, site: str, family: Family, found: Evaluated, points: PointsBySite
    ) -> Family:
        weighted = self._weighted(found.gradients[site], found, points)
        return natural_gradient_from_points(family, weighted, points.noise[site])

    def of_groups(
        self, family: Family, weighted: Tensor, noise: Tensor, kept: Tensor, rows: Callable
    ) -> Tensor:
        if isinstance(family, (DenseFamily, SparsePrecision)):
            return rows(partial(natural_gradient_from_points, family), weighted, noise)

        def direction(weighted: Tensor, scores: Tensor) -> Family:
            return family.bonnet_price(weighted.sum(0), family.outer_products(weighted, scores))

        of_draws = family.scores(noise.reshape(-1, family.dim)).reshape(noise.shape)
        return rows(direction, weighted, of_draws)

    def _weighted(self, gradients: Tensor, found: Evaluated, points: PointsBySite) -> Tensor:
        """Without the draws that are left out, for which the others stand; NaN of none."""
        squares = points.weights * sum(z.square().sum(-1) for z in points.noise.values())
        part = torch.where(found.kept, squares, 0.0).sum() / squares.sum()
        return torch.where(found.kept[:, None], gradients, 0.0) / part


def orthogonal_points(dim: int, num_groups: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The noise and the weights of some groups (:func:`ngvi.families.points.spherical_points`).

    They come from torch's global generator, by a seed.

    :param like: of the dtype and device of the result.
    :return: shapes ``(num_groups (2 d + 1), d)`` and ``(num_groups (2 d + 1),)``; the weights sum
        to one.
    """
    rng = np.random.default_rng(int(torch.randint(2**63 - 1, (), device="cpu").numpy()))
    groups = spherical_points(rng, dim, num_groups)
    noise = np.concatenate([group.noise for group in groups])
    weights = np.concatenate([group.weights for group in groups]) / num_groups
    return on_device(noise, like), on_device(weights, like)
