"""The algebra of directions.

A *direction* at a list of Gaussians is a list of the same families, whose coordinates are a
change of the Gaussians', a natural gradient, or a momentum of such. What ``F``, the Fisher
information of the Gaussians, makes of a direction is its *dual*: a Euclidean gradient, whose plain
products with directions are Fisher inner products.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from ngvi.families.base import Array
from ngvi.families.steps import fisher_products, free_coordinates

#: Families of a package, or directions at them.
Families = list[Any]


def each(function: Callable[..., Array], *directions: Families) -> Families:
    """Return ``function`` of the same coordinate of all directions."""
    return [one.map(function, *others) for one, *others in zip(*directions, strict=True)]


def add(left: Families, right: Families) -> Families:
    """``left + right``."""
    return each(operator.add, left, right)


def subtract(left: Families, right: Families) -> Families:
    """``left - right``."""
    return each(operator.sub, left, right)


def scale(factor: Array | float, direction: Families) -> Families:
    """``factor`` times a direction, whose dtypes stay."""
    return [one.map(functools.partial(one.ops.scaled, factor)) for one in direction]


def combine(
    amount: Array | float, one: Families, other_amount: Array | float, other: Families
) -> Families:
    """``amount * one + other_amount * other``, as a moving average takes it."""
    return each(lambda x, y: one[0].ops.combined(amount, x, other_amount, y), one, other)


def scale_parts(of_mean: Array | float, of_scale: Array | float, direction: Families) -> Families:
    """Return the means times one number, all other coordinates times another."""
    scaled = scale(of_scale, direction)
    return with_means(scaled, [one.ops.scaled(of_mean, one.loc) for one in direction])


def zeros(like: Families) -> Families:
    """No change at all."""
    return [one.map(one.xp.zeros_like) for one in like]


def with_means(direction: Families, means: Sequence[Array]) -> Families:
    """Return a direction with other means."""
    return [dataclasses.replace(one, loc=loc) for one, loc in zip(direction, means, strict=True)]


def retract(families: Families, steps: Families) -> Families:
    """Every family at the end of its step, still a Gaussian."""
    return [family.retract(step) for family, step in zip(families, steps, strict=True)]


# -- the Fisher metric ----------------------------------------------------------------


def dual(families: Families, direction: Families) -> Families:
    """``F`` times a direction: two triangular solves for a dense family."""
    return [f.euclidean_gradient(one) for f, one in zip(families, direction, strict=True)]


def natural(families: Families, gradient: Families) -> Families:
    """``F^-1`` times a Euclidean gradient, the inverse of :func:`dual`."""
    return [f.natural_gradient(one) for f, one in zip(families, gradient, strict=True)]


def dot(dual: Families, direction: Families) -> Array:
    """Return the sum of products of all coordinates, a Fisher inner product of a dual; in nats."""
    ops = dual[0].ops
    pairs = zip(values(dual), values(direction), strict=True)
    return sum(_sum_of_products(ops, *pair) for pair in pairs)


def _sum_of_products(ops: Any, left: Array, right: Array) -> Array:
    if not left.ndim:
        return left * right
    products = ops.row_products(left, right)  # by rows first, or rounding would add up
    return ops.total(products) if products.ndim else products


def inner(families: Families, left: Families, right: Families) -> Array:
    """Return the Fisher inner product of two directions, in nats.

    Of a natural gradient of the bound, and a change: the derivative of the bound along it.
    """
    return dot(dual(families, left), right)


def products(
    families: Families, directions: Sequence[Families], others: Sequence[Families] = ()
) -> Any:
    """Fisher inner products of ``k`` directions with each other and with ``n`` others.

    :return: of their means and of their scales, both ``k`` rows of ``k + n`` numbers, in nats.
    """
    results = [
        fisher_products(family, [one[i] for one in directions], [one[i] for one in others])
        for i, family in enumerate(families)
    ]
    return _sum(results)


def _sum(parts: Sequence[Any]) -> Any:
    """Sum numbers, or lists of numbers by place."""
    nested = isinstance(parts[0], (list, tuple))
    return [_sum(same) for same in zip(*parts, strict=True)] if nested else sum(parts)


# -- the joint vector of all coordinates ----------------------------------------------


def values(direction: Families) -> list[Array]:
    """All coordinates of all families."""
    return [value for one in direction for value in one.coordinates().values()]


def joint_norm(direction: Families) -> Any:
    """Euclidean norm of the joint vector of all free coordinates."""
    return direction[0].ops.norm([x for one in direction for x in free_coordinates(one)])
