"""Gradients at orthogonal points; see :class:`ngvi.estimators.Spherical`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ngvi import estimators
from ngvi.estimators import Points
from ngvi.page import page
from ngvi.points import spherical_points
from pyro_ngvi.curvature.evaluate import Evaluated, FromGradients
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.forest import SparsePrecision


@page(estimators.Spherical)
@dataclasses.dataclass(frozen=True)
class Spherical(FromGradients):
    """All groups share their passes."""

    weighted = True

    def direction(self, site: str, family: Family, found: Evaluated, points: Points) -> Family:
        weighted = found.gradients[site]
        if not found.kept.all():
            # The others stand for the points that are left out.
            squares = points.weights * sum(z.square().sum(-1) for z in points.noise.values())
            part = squares[found.kept].sum() / squares.sum()
            weighted = torch.where(found.kept[:, None], weighted, 0.0) / part
        if isinstance(family, SparsePrecision):
            return family.price_of_points(weighted, points.noise[site])
        draws = family.sample(points.noise[site])
        return weighted_direction(family, weighted, scores(family, draws))

    def of_groups(
        self, family: Family, weighted: Tensor, noise: Tensor, kept: Tensor, rows: Callable
    ) -> Tensor:
        if isinstance(family, SparsePrecision):
            return rows(family.price_of_points, weighted, noise)
        of_draws = scores(family, family.sample(noise))
        return rows(lambda w, s: weighted_direction(family, w, s), weighted, of_draws)


def orthogonal_points(dim: int, num_groups: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The noise and the weights of some groups (:func:`ngvi.points.spherical_points`).

    They come from torch's global generator, by a seed.

    :param like: of the dtype and device of the result.
    :return: shapes ``(num_groups (2 d + 1), d)`` and ``(num_groups (2 d + 1),)``; the weights sum
        to one.
    """
    rng = np.random.default_rng(int(torch.randint(2**63 - 1, ())))
    groups = spherical_points(rng, dim, num_groups)
    noise = np.concatenate([group.noise for group in groups])
    weights = np.concatenate([group.weights for group in groups]) / num_groups
    return torch.as_tensor(noise).to(like), torch.as_tensor(weights).to(like)


def spherical_direction(
    family: Family, gradients: Tensor, draws: Tensor, weights: Tensor
) -> Family:
    """The natural gradient of the bound.

    :param gradients: of the log density at the draws, shape ``(N, d)``.
    :param draws: ``theta``, shape ``(N, d)``.
    :param weights: of the draws, shape ``(N,)``.
    :return: the direction of ascent, NaN if any gradient is not finite.
    """
    return weighted_direction(family, weights[:, None] * gradients, scores(family, draws))


def scores(family: Family, draws: Tensor) -> Tensor:
    """``S (theta - mu)``, minus the gradients of ``log q``; ``(..., d)`` to ``(..., d)``."""
    family = family.detach()
    with torch.enable_grad():
        leaves = draws.detach().requires_grad_()
        return torch.autograd.grad(-family.log_prob(leaves).sum(), leaves)[0]


def weighted_direction(family: Family, weighted: Tensor, scores: Tensor) -> Family:
    """:func:`spherical_direction` of gradients that are weighted already.

    :param weighted: gradients of the log density, each times its draw's weight; shape ``(N, d)``.
    :param scores: from :func:`scores`, shape ``(N, d)``.
    """
    return family.bonnet_price(weighted.sum(0), family.outer_products(weighted, scores))
