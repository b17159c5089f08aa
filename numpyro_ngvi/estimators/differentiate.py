"""The log density at many draws, as estimators ask for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import random

from ngvi.estimators.from_gradients import Averages, Gradients
from ngvi.estimators.points import Families, PointsBySite
from ngvi.estimators.quadrature import Expectations, expectations, find_terms
from numpyro_ngvi.estimators.moments import Density, dot, finite_draws, gradients
from numpyro_ngvi.estimators.quadrature import JaxCalculus
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.tracing.additive_terms import terms_of


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


@dataclasses.dataclass(frozen=True)
class Differentiator:
    """Runs a log density, and differentiates it; see :class:`ngvi.estimators.from_gradients`.

    :param at_once: how many draws share a pass.
    :param params: a pytree that the log density is differentiated for as well.
    """

    density: Density
    at_once: int
    params: Any = ()

    package = "numpyro_ngvi"
    label = staticmethod(jax.named_scope)

    def __call__(self, here: Families, points: PointsBySite) -> Gradients:
        latents = points.of(here)
        found = gradients(self.density, latents, self.params, points.keys, self.at_once)
        return found(here, points)

    def gradient_of(self, function: Callable[[Family], jax.Array], family: Family) -> Family:
        return jax.grad(function)(family)

    def of_mixture(self, here: Families, site: str, points: PointsBySite) -> Averages:
        return of_mixture(self.density, here, site, points, self.params, self.at_once)

    def expectations(self, here: Families) -> Expectations:
        key = random.key(0)
        terms = find_terms(terms_of, lambda at: self.density(at, self.params, key), here)
        nothing = jax.tree.map(jnp.zeros_like, self.params)
        return expectations(terms, list(here.values()), JaxCalculus(), nothing)
