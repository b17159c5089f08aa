"""Gradients at orthogonal points; see :class:`ngvi.estimators.table.Spherical`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi._docs import shared_doc
from ngvi.estimators import table
from ngvi.estimators.points import Families, PointsBySite, mixture_in
from ngvi.families.curvature import natural_gradient_from_groups, natural_gradient_from_points
from ngvi.families.points import LEVELS, radius_polynomial
from numpyro_ngvi.estimators.mixture import of_mixture
from numpyro_ngvi.estimators.moments import Averages, Density, dot, finite_draws, gradients
from numpyro_ngvi.linalg.matrices import matrices


@shared_doc(table.Spherical)
@dataclasses.dataclass(frozen=True)
class Spherical:
    """:param at_once: how many points share a pass.
    :param num_groups: of points; their spread is returned if there are several.
    """

    at_once: int
    num_groups: int

    def __call__(
        self, density: Density, here: Families, points: PointsBySite, params: Any = ()
    ) -> Averages:
        if (site := mixture_in(here)) is not None:
            return of_mixture(density, here, site, points, params, self.at_once)
        latents = points.of(here)
        found = gradients(density, latents, params, points.keys, self.at_once)
        kept = finite_draws((found.values, found.by_site))
        weights = _without(points, kept)
        directions, spreads = {}, []
        with jax.named_scope("direction"):
            for site, family in here.items():
                weighted = weights[:, None] * jnp.where(kept[:, None], found.by_site[site], 0)
                if self.num_groups == 1:
                    directions[site] = natural_gradient_from_points(
                        family, weighted, points.noise[site]
                    )
                    continue
                directions[site], spread = natural_gradient_from_groups(
                    family, weighted, points.noise[site], self.num_groups
                )
                spreads.append(spread)
        of_params = jax.tree.map(lambda leaf: jnp.tensordot(points.weights, leaf, 1), found.params)
        together = jax.tree.map(lambda *parts: sum(parts), *spreads) if spreads else None
        return Averages(directions, found.values, kept, of_params, together)


def _without(points: PointsBySite, kept: jax.Array) -> jax.Array:
    """The weights without the points that are not kept: as if they were like the others."""
    squares = sum(matrices.row_products(noise, noise) for noise in points.noise.values())
    weights = jnp.where(kept, points.weights, 0)
    # Two sums, as one product: each would be kernels of its own.
    before, now = dot(jnp.stack([points.weights, weights]), squares)
    # Of no points the second moment is zero, and the direction NaN.
    return weights * (before / now)


def orthogonal_points(
    key: jax.Array, dim: int, num_groups: int, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
    """The noise and the weights of some groups, whose radii are stratified.

    As :func:`ngvi.families.points.spherical_points`, inside a compiled function.

    :return: shapes ``(num_groups (2 d + 1), d)`` and ``(num_groups (2 d + 1),)``; the weights sum
        to one.
    """
    # One call, as that of jax.random.normal, for another takes as long again to compile.
    lowest = np.nextafter(np.array(-1, dtype), np.array(0, dtype))
    uniform = random.uniform(key, (num_groups * dim * dim + 1,), dtype, lowest, 1.0)
    strata = 0.5 + np.arange(num_groups, dtype=dtype) / num_groups
    levels = (0.5 * uniform[-1] + strata) % 1.0
    levels = 2.0 * jnp.clip(levels, *LEVELS) - 1.0
    normal = math.sqrt(2.0) * jax.lax.erf_inv(uniform[:-1])
    of_levels = math.sqrt(2.0) * jax.lax.erf_inv(levels)
    # A quotient is a kernel of its own: of a product, whoever needs it would compute it all again.
    narrow = 1.0 / jnp.polyval(jnp.asarray(radius_polynomial(dim), dtype), of_levels)
    inverse, radii = narrow[:, None] ** 3, 1.0 / (narrow * jnp.sqrt(narrow))
    # The signs of its columns are not uniformly distributed, but each comes with its opposite.
    rotation, _ = jnp.linalg.qr(normal.reshape(num_groups, dim, dim))
    pairs = rotation[:, None] * (np.array([1, -1]) * radii[:, None])[:, :, None, None]
    noise = jnp.pad(pairs.reshape(num_groups, 2 * dim, dim), ((0, 0), (0, 1), (0, 0)))
    is_centre = np.arange(2 * dim + 1) == 2 * dim
    weights = jnp.where(is_centre, 1.0 - dim * inverse, 0.5 * inverse) / num_groups
    return noise.reshape(-1, dim), weights.reshape(-1)
