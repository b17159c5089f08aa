"""First-order natural gradients: curvature from gradients alone, by Stein's lemma.

``E[hess l] = E[S (theta - mu) grad l^T]`` (Lin, Khan and Schmidt, 2019, *Stein's lemma for the
reparameterization trick with exponential family mixtures*): the estimate behind IVON. It equals the
reparameterised gradient of the bound, which the families turn into a natural gradient without
forming a matrix; ``log q`` is differentiated through the draws alone (sticking the landing), so
that the noise vanishes where ``q`` is exact.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from numpyro_ngvi.curvature.moments import Density, finite_draws, masked_mean
from numpyro_ngvi.families.base import Family


def stein_direction(
    density: Density, noise: jax.Array, context: Any, family: Family
) -> tuple[Family, jax.Array, jax.Array]:
    """The natural gradient of the bound from gradients of the log density.

    :param density: the log density.
    :param noise: ``z``, shape ``(K, d)``.
    :param context: of each draw, a pytree with leading axes of length ``K``.
    :return: the direction of ascent, which draws count, booleans of shape ``(K,)``, and the
        log density at the draws, shape ``(K,)``.
    """
    values, gradients = jax.vmap(jax.value_and_grad(density))(family.sample(noise), context)
    kept = finite_draws((values, gradients))
    gradients = jnp.where(kept[:, None], gradients, 0)

    def bound(q: Family) -> jax.Array:
        # Its derivative is the bound's: the gradients are constants here.
        displaced = q.displaced(noise)
        along = jnp.sum(gradients * q.draw_at(displaced), -1)
        return masked_mean(along - q.sticking_log_prob(displaced), kept)

    return jax.grad(bound)(family), kept, values
