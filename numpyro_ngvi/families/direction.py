"""The algebra of directions.

A *place* is a list of Gaussians. A *direction* at it is a list of the same families, whose
coordinates are a change of the Gaussians', a natural gradient, or a momentum of such. What
``F``, the Fisher information of the place, makes of a direction is its *dual*: a Euclidean
gradient, whose plain products with directions are Fisher inner products.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_ngvi.families.base import Family

Families = list[Family]


def add(left: Families, right: Families) -> Families:
    """``left + right``."""
    return jax.tree.map(jnp.add, left, right)


def subtract(left: Families, right: Families) -> Families:
    """``left - right``."""
    return jax.tree.map(jnp.subtract, left, right)


def negate(direction: Families) -> Families:
    """``-direction``."""
    return jax.tree.map(jnp.negative, direction)


def scale(factor: jax.Array | float, direction: Families) -> Families:
    """``factor`` times a direction, whose dtypes stay."""
    return jax.tree.map(lambda x: (factor * x).astype(x.dtype), direction)


def combine(
    amount: jax.Array | float, one: Families, other_amount: jax.Array | float, other: Families
) -> Families:
    """``amount * one + other_amount * other``, as a moving average takes it."""
    return jax.tree.map(lambda x, y: (amount * x + other_amount * y).astype(x.dtype), one, other)


def scale_parts(
    of_mean: jax.Array | float, of_scale: jax.Array | float, direction: Families
) -> Families:
    """The means times one number, all other coordinates times another."""
    scaled = scale(of_scale, direction)
    return with_means(scaled, [(of_mean * one.loc).astype(one.loc.dtype) for one in direction])


def zeros(like: Families) -> Families:
    """No change at all."""
    return jax.tree.map(jnp.zeros_like, like)


def with_means(direction: Families, means: Sequence[jax.Array]) -> Families:
    """A direction with other means."""
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


def dot(dual: Any, direction: Any) -> jax.Array:
    """The sum of products of all coordinates, a Fisher inner product of a dual; in nats."""
    products = jax.tree.map(lambda a, b: jnp.sum(a * b), dual, direction)
    return sum(jax.tree.leaves(products))


def inner(families: Families, left: Families, right: Families) -> jax.Array:
    """The Fisher inner product of two directions, in nats.

    Of a natural gradient of the bound, and a change: the derivative of the bound along it.
    """
    return dot(dual(families, left), right)


def products(
    families: Families, directions: Sequence[Families], others: Sequence[Families] = ()
) -> tuple[list[list[jax.Array]], list[list[jax.Array]]]:
    """Fisher inner products of ``k`` directions with each other and with ``n`` others.

    :return: of their means and of their scales, both ``k`` rows of ``k + n`` numbers, in nats.
    """
    results = [
        family.fisher_products(
            [direction[i] for direction in directions], [direction[i] for direction in others]
        )
        for i, family in enumerate(families)
    ]
    return jax.tree.map(lambda *numbers: sum(numbers), *results)


# -- the joint vector of all coordinates ----------------------------------------------


def joint_norm(direction: Families) -> jax.Array:
    """Euclidean norm of the joint vector of all free coordinates."""
    leaves = jax.tree.leaves([one.free_coordinates() for one in direction])
    norm = jnp.sqrt(sum_of_squares(leaves))
    # One pass, unless squares have overflowed (of a float32, from 1e19 on) or vanished.
    info = jnp.finfo(norm.dtype)
    plain = (norm > info.tiny**0.25) & (norm < info.max)
    return jax.lax.cond(plain, lambda _: norm, _scaled_norm, leaves)


def sum_of_squares(leaves: list[jax.Array]) -> jax.Array:
    """Of all elements of all arrays; it may overflow."""
    return sum(jnp.sum(leaf**2) for leaf in leaves)


def _scaled_norm(leaves: list[jax.Array]) -> jax.Array:
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves]))
    unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
    return unit * jnp.sqrt(sum(jnp.sum((leaf / unit) ** 2) for leaf in leaves))
