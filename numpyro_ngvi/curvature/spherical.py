"""Gradients at orthogonal points; see :class:`ngvi.estimators.Spherical`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi import estimators
from ngvi.estimators import Families, Points
from ngvi.page import page
from ngvi.points import LEVELS, radius_polynomial
from numpyro_ngvi.curvature.moments import Density, Estimate, finite_draws, gradients
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.forest import SparsePrecision


@page(estimators.Spherical)
@dataclasses.dataclass(frozen=True)
class Spherical:
    """:param at_once: how many points share a pass."""

    at_once: int

    def __call__(
        self, density: Density, here: Families, points: Points, ordinary: Any = ()
    ) -> Estimate:
        latents = points.of(here)
        found = gradients(density, latents, ordinary, points.keys, self.at_once)
        kept = finite_draws((found.values, found.by_site))
        weights = _without(points, kept)
        directions = {
            site: _direction(
                family,
                jnp.where(kept[:, None], found.by_site[site], 0),
                points.noise[site],
                weights,
            )
            for site, family in here.items()
        }
        of_ordinary = jax.tree.map(
            lambda leaf: jnp.tensordot(points.weights, leaf, 1), found.ordinary
        )
        return Estimate(directions, found.values, kept, of_ordinary)


def spherical_direction(
    family: Family, gradients: jax.Array, draws: jax.Array, weights: jax.Array
) -> Family:
    """The natural gradient of the bound.

    :param gradients: of the log density at the draws, shape ``(N, d)``.
    :param draws: ``theta``, shape ``(N, d)``.
    :param weights: of the draws, shape ``(N,)``.
    :return: the direction of ascent, NaN if any gradient is not finite.
    """
    return _direction(family, gradients, family.whiten(draws), weights)


def _direction(
    family: Family, gradients: jax.Array, noise: jax.Array, weights: jax.Array
) -> Family:
    if isinstance(family, SparsePrecision):
        return family.price_of_points(weights[:, None] * gradients, noise)
    # S (theta - mu) = C^-T z, the transpose of whitening, which is affine: one solve for all.
    _, transposed = jax.vjp(family.whiten, noise)
    hessian = family.outer_products(weights[:, None] * gradients, transposed(noise)[0])
    return family.bonnet_price(weights @ gradients, hessian)


def _without(points: Points, kept: jax.Array) -> jax.Array:
    """The weights without the points that are not kept: as if they were like the others."""
    squares = sum(jnp.sum(noise**2, -1) for noise in points.noise.values())
    weights = jnp.where(kept, points.weights, 0)
    # Of no points the second moment is zero, and the direction NaN.
    return weights * (jnp.sum(points.weights * squares) / jnp.sum(weights * squares))


def orthogonal_points(
    key: jax.Array, dim: int, num_groups: int, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
    """The noise and the weights of some groups, whose radii are stratified.

    As :func:`ngvi.points.spherical_points`, inside a compiled function.

    :return: shapes ``(num_groups (2 d + 1), d)`` and ``(num_groups (2 d + 1),)``; the weights sum
        to one.
    """
    # One call, as that of jax.random.normal, for another takes as long again to compile.
    lowest = np.nextafter(np.array(-1, dtype), np.array(0, dtype))
    uniform = random.uniform(key, (num_groups * dim * dim + 1,), dtype, lowest, 1.0)
    levels = (0.5 * uniform[-1] + 0.5 + jnp.arange(num_groups, dtype=dtype) / num_groups) % 1.0
    levels = 2.0 * jnp.clip(levels, *LEVELS) - 1.0
    normal = math.sqrt(2.0) * jax.lax.erf_inv(jnp.concatenate([uniform[:-1], levels]))
    squares = jnp.polyval(jnp.asarray(radius_polynomial(dim), dtype), normal[-num_groups:]) ** 3
    # The signs of its columns are not uniformly distributed, but each comes with its opposite.
    rotation, _ = jnp.linalg.qr(normal[:-num_groups].reshape(num_groups, dim, dim))
    points = jnp.sqrt(squares)[:, None, None] * rotation
    noise = jnp.concatenate([points, -points, jnp.zeros((num_groups, 1, dim), dtype)], 1)
    of_points = jnp.broadcast_to(0.5 / squares[:, None], (num_groups, 2 * dim))
    weights = jnp.concatenate([of_points, 1.0 - dim / squares[:, None]], 1) / num_groups
    return noise.reshape(-1, dim), weights.reshape(-1)
