"""Gradients alone; see :class:`ngvi.estimators.table.Stein`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ngvi._docs import shared_doc
from ngvi.estimators import table
from ngvi.estimators.points import Families, PointsBySite, mixture_in
from ngvi.families.draws import draw_at, natural_gradient_from_draws, sticking_log_prob
from numpyro_ngvi.estimators.mixture import of_mixture
from numpyro_ngvi.estimators.moments import Averages, Density, finite_draws, gradients, masked_mean
from numpyro_ngvi.families.base import Family


@shared_doc(table.Stein)
@dataclasses.dataclass(frozen=True)
class Stein:
    """:param at_once: how many draws share a pass."""

    at_once: int

    def __call__(
        self, density: Density, here: Families, points: PointsBySite, params: Any = ()
    ) -> Averages:
        if (site := mixture_in(here)) is not None:
            return of_mixture(density, here, site, points, params, self.at_once)
        found = gradients(density, points.of(here), params, points.keys, self.at_once)
        kept = finite_draws((found.values, found.by_site))
        directions = {
            site: stein_direction(family, found.by_site[site], points.noise[site], kept)
            for site, family in here.items()
        }
        of_params = jax.tree.map(lambda leaf: masked_mean(leaf, kept), found.params)
        return Averages(directions, found.values, kept, of_params)


@jax.named_scope("direction")
def stein_direction(
    family: Family, gradient: jax.Array, noise: jax.Array, kept: jax.Array
) -> Family:
    """The natural gradient of the bound from gradients of the log density.

    :param gradient: of the log density at the draws, shape ``(K, d)``.
    :param noise: ``z`` of the draws, shape ``(K, d)``.
    :param kept: which draws count, booleans of shape ``(K,)``.
    """
    gradient = jnp.where(kept[:, None], gradient, 0)
    if hasattr(family, "draw_vjp"):  # of no draws the weights are NaN, as below
        weights = jnp.where(kept, 1.0, 0.0).astype(noise.dtype)[:, None]
        return natural_gradient_from_draws(family, gradient, noise, weights / jnp.sum(weights))

    def bound(q: Family) -> jax.Array:
        # Its derivative is the bound's: the gradients are constants here.
        reparametrised = q.reparametrised(noise)
        along = jnp.sum(gradient * draw_at(q, reparametrised), -1)
        return masked_mean(along - sticking_log_prob(q, reparametrised), kept)

    # Of no draws there is no direction, and the optimiser is to see it.
    nothing = jnp.where(jnp.any(kept), 0.0, jnp.nan).astype(noise.dtype)
    return jax.tree.map(lambda leaf: leaf + nothing, jax.grad(bound)(family))
