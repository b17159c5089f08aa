"""First-order natural gradients: curvature from gradients alone, by Stein's lemma.

``E[hess l] = E[S (theta - mu) grad l^T]`` (Lin, Khan and Schmidt, 2019, *Stein's lemma for the
reparameterization trick with exponential family mixtures*): the estimate behind IVON. It equals the
reparameterised gradient of the bound, which the families turn into a natural gradient without
forming a matrix; ``log q`` is differentiated through the draws alone (sticking the landing), so
that the noise vanishes where ``q`` is exact.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_ngvi.curvature.moments import (
    Density,
    Estimate,
    Families,
    Points,
    finite_draws,
    gradients,
    masked_mean,
)
from numpyro_ngvi.families.base import Family


@dataclasses.dataclass(frozen=True)
class Stein:
    """The natural gradient of the bound from gradients of the log density.

    :param at_once: how many draws share a pass.
    """

    at_once: int

    def __call__(
        self, density: Density, here: Families, points: Points, ordinary: Any = ()
    ) -> Estimate:
        found = gradients(density, points.of(here), ordinary, points.keys, self.at_once)
        kept = finite_draws((found.values, found.by_site))
        directions = {
            site: _direction(family, found.by_site[site], points.noise[site], kept)
            for site, family in here.items()
        }
        of_ordinary = jax.tree.map(lambda leaf: masked_mean(leaf, kept), found.ordinary)
        return Estimate(directions, found.values, kept, of_ordinary)


def _direction(family: Family, gradient: jax.Array, noise: jax.Array, kept: jax.Array) -> Family:
    gradient = jnp.where(kept[:, None], gradient, 0)

    def bound(q: Family) -> jax.Array:
        # Its derivative is the bound's: the gradients are constants here.
        displaced = q.displaced(noise)
        along = jnp.sum(gradient * q.draw_at(displaced), -1)
        return masked_mean(along - q.sticking_log_prob(displaced), kept)

    # Of no draws there is no direction, and the optimiser is to see it.
    nothing = jnp.where(jnp.any(kept), 0.0, jnp.nan).astype(noise.dtype)
    return jax.tree.map(lambda leaf: leaf + nothing, jax.grad(bound)(family))
