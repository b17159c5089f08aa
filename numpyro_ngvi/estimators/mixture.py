"""Natural gradients of a mixture, at the same points of each component."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ngvi.estimators.from_gradients import Averages
from ngvi.estimators.points import Families, PointsBySite
from numpyro_ngvi.estimators.moments import Density, dot, finite_draws, gradients


def of_mixture(
    density: Density, here: Families, site: str, points: PointsBySite, params: Any, at_once: int
) -> Averages:
    """Estimate the natural gradient of a guide's mixture (:mod:`ngvi.families.mixture`).

    Each point stands for a draw of every component; the values are their averages.

    :param site: of the mixture.
    """
    family, noise = here[site], points.noise[site]
    count, size = family.num_components, len(noise)
    latents = jnp.concatenate([one.sample(noise) for one in family.components])
    keys = jnp.tile(points.keys, count)
    found = gradients(density, {site: latents}, params, keys, at_once)

    def by_component(leaf: jax.Array) -> jax.Array:
        return leaf.reshape(count, size, *leaf.shape[1:])

    values, slopes = by_component(found.values), by_component(found.by_site[site])
    kept = jnp.all(by_component(finite_draws((found.values, found.by_site))), 0)
    weights = jnp.where(kept, points.weights, 0)
    weights = weights / jnp.sum(weights)
    with jax.named_scope("direction"):
        direction = family.bound_direction(
            jnp.where(kept, values, 0), jnp.where(kept[:, None], slopes, 0), noise, weights
        )
    shares = (family.weights[:, None] * weights).ravel()
    of_params = jax.tree.map(lambda leaf: jnp.tensordot(shares, leaf, 1), found.params)
    return Averages({site: direction}, dot(values.mT, family.weights), kept, of_params)
