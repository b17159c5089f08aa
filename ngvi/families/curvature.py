"""Natural gradients of the bound ``E_q[l] + H(q)`` from what estimators know of ``l``."""

from __future__ import annotations

import functools
import operator
from functools import singledispatch
from typing import Any, NamedTuple

from ngvi.families.direction import inner
from ngvi.families.gaussian import Array
from ngvi.latents import forest


def reads_diagonal(family: Any) -> bool:
    """Tell whether the family's part of a Hessian is the diagonal."""
    return family.couples() == "none"


def keeps_rows(family: Any) -> bool:
    """Tell whether it takes gradients of examples as they are, not their outer products.

    Those are the families with ``natural_gradient_from_rows``, where a dense matrix would be too
    large.
    """
    has_rows = hasattr(family, "natural_gradient_from_rows")
    return has_rows and family.dim > forest.MAX_DENSIFIED_DIM


@singledispatch
def natural_gradient_from_points(family: Any, gradients: Array, noise: Array) -> Any:
    """Return the natural gradient of the bound from gradients at points with weights.

    By Stein's lemma ``E[hess l] = E[grad l (S (theta - mu))^T]``.

    :param gradients: of the log density, each times its point's weight, shape ``(N, d)``.
    :param noise: ``z`` of the points, shape ``(N, d)``.
    """
    hessian = family.outer_products(gradients, family.scores(noise))
    return family.bonnet_price(gradients.sum(0), hessian)


class GroupSpread(NamedTuple):
    """Distance of the directions of groups of points from their mean, in nats."""

    noise: Array  #: Squared Fisher norm of the error of the mean.
    square: Array  #: Squared Fisher norm of the mean itself.


def spread_of(square: Array, of_each: Array, num_groups: int) -> GroupSpread:
    """Return the spread from squared norms: of the sum of all directions, and summed over each."""
    return GroupSpread((num_groups * of_each - square) / (num_groups - 1), square)


@singledispatch
def natural_gradient_from_groups(
    family: Any, gradients: Array, noise: Array, num_groups: int
) -> tuple[Any, GroupSpread]:
    """Return the direction of all points, and how far the groups' directions are from it.

    :param gradients: group after group, times weights of which each group has an equal share.
    """
    groups = [x.reshape(num_groups, -1, family.dim) for x in (gradients, noise)]
    found = [
        natural_gradient_from_points(family, num_groups * g, z)
        for g, z in zip(*groups, strict=True)
    ]
    parts = [one.map(lambda value: value / num_groups) for one in found]
    total = functools.reduce(lambda left, right: left.map(operator.add, right), parts)
    square, *of_each = (inner([family], [one], [one]) for one in (total, *parts))
    return total, spread_of(square, sum(of_each), num_groups)


@singledispatch
def slopes(family: Any, value: Array) -> Array:
    """Return ``grad log q`` at some vectors, shape ``(N, d)``."""
    return -family.scores(family.whiten(value))


def direction_of_expectation(family: Any, gradients: Array, noise: Array) -> Any:
    """Return the natural gradient of ``E_q[h]``, from gradients of ``h`` at points with weights.

    :param gradients: each times its point's weight, shape ``(N, d)``.
    :param noise: ``z`` of the points, shape ``(N, d)``.
    """
    of_bound = natural_gradient_from_points(family, gradients, noise)
    of_entropy = natural_gradient_from_points(family, 0.0 * gradients, noise)
    return of_bound.map(lambda one, other: one - other, of_entropy)
