"""Many groups of draws of ``fit`` at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ngvi.estimators.from_gradients import Spherical, Stein, masked, stein_direction
from ngvi.families.curvature import natural_gradient_from_points
from ngvi.families.dense import DenseFamily
from pyro_ngvi.estimators.moments import gradient_of
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.gaussians import SparsePrecision

#: Estimators of which many groups are evaluated at once.
BY_GROUPS = Spherical, Stein


def directions_of_groups(
    estimator: Any, family: Family, weighted: Tensor, noise: Tensor, kept: Tensor, rows: Callable
) -> Tensor:
    """Return one site's natural gradients from many groups, not finite where a gradient is not.

    :param estimator: of orthogonal points, or of random draws.
    :param weighted: gradients times weights that sum to one, shape ``(groups, n, d)``.
    :param noise: shape ``(groups, n, d)``.
    :param kept: which draws are finite, shape ``(groups, n)``.
    :param rows: a function of a group to families, at each group; see ``EachRow`` of ``fit``.
    :return: all coordinates of a direction in a row, shape ``(groups, m)``.
    """
    if not isinstance(estimator, Spherical):
        return torch.cat(
            [_of_draws(family, *group, rows) for group in zip(weighted, noise, kept, strict=True)]
        )
    if isinstance(family, (DenseFamily, SparsePrecision)):
        return rows(partial(natural_gradient_from_points, family), weighted, noise)

    def direction(weighted: Tensor, scores: Tensor) -> Family:
        return family.bonnet_price(weighted.sum(0), family.outer_products(weighted, scores))

    of_draws = family.scores(noise.reshape(-1, family.dim)).reshape(noise.shape)
    return rows(direction, weighted, of_draws)


def _of_draws(
    family: Family, weighted: Tensor, noise: Tensor, kept: Tensor, rows: Callable
) -> Tensor:
    part = kept.to(weighted).mean()
    weights = kept.to(weighted) / kept.sum()

    def direction(gradients: Tensor, noise: Tensor) -> Family:
        return stein_direction(family, gradients, noise, weights, gradient_of)

    return rows(direction, (masked(weighted, kept, torch) / part)[None], noise[None])
