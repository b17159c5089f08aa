"""Gradients alone; see :class:`ngvi.estimators.table.Stein`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi.estimators import table
from ngvi.estimators.points import Families, PointsBySite, mixture_in
from ngvi.families.draws import draw_at, natural_gradient_from_draws, sticking_log_prob
from pyro_ngvi.estimators.differentiate import Differentiator, Evaluated, FromGradients
from pyro_ngvi.estimators.mixture import of_mixture
from pyro_ngvi.estimators.moments import Averages, of_kept
from pyro_ngvi.families.base import Family


@shared_doc(table.Stein)
@dataclasses.dataclass(frozen=True)
class Stein(FromGradients):
    """Draws that are not finite are left out."""

    weighted = False

    def __call__(self, evaluate: Differentiator, here: Families, points: PointsBySite) -> Averages:
        if (site := mixture_in(here)) is not None:
            return of_mixture(evaluate, here, site, points)
        return super().__call__(evaluate, here, points)

    def direction(
        self, site: str, family: Family, found: Evaluated, points: PointsBySite
    ) -> Family:
        kept = found.some_kept
        return stein_direction(
            of_kept(found.gradients[site], kept), of_kept(points.noise[site], kept), family
        )

    def of_groups(
        self, family: Family, weighted: Tensor, noise: Tensor, kept: Tensor, rows: Callable
    ) -> Tensor:
        return torch.cat(
            [
                rows(lambda g, z: stein_direction(g, z, family), g[k][None] * len(g), z[k][None])
                for g, z, k in zip(weighted, noise, kept, strict=True)
            ]
        )


def stein_direction(gradients: Tensor, noise: Tensor, family: Family) -> Family:
    """The natural gradient of the bound from gradients of the log density.

    :param gradients: of the log density at the draws, shape ``(K, d)``.
    :param noise: ``z`` of the draws, shape ``(K, d)``.
    :return: the direction of ascent.
    """
    if hasattr(family, "draw_vjp"):
        return natural_gradient_from_draws(family, gradients, noise, 1.0 / len(noise))
    with torch.enable_grad():
        q = family.detach().map(lambda value: value.clone().requires_grad_())
        # Its derivative is the bound's: the gradients are constants here.
        reparametrised = q.reparametrised(noise)
        along = (gradients * draw_at(q, reparametrised)).sum(-1)
        bound = (along - sticking_log_prob(q, reparametrised)).mean()
        names, leaves = zip(*q.coordinates().items(), strict=True)
        direction = torch.autograd.grad(bound, leaves, materialize_grads=True)
    return dataclasses.replace(q, **dict(zip(names, direction, strict=True)))
