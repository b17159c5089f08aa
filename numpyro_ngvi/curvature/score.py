"""The natural gradient of the bound from values alone, for log densities that jump.

With the score function (Paisley, Blei and Jordan, 2012), at draws ``theta`` of ``q`` with
``w = log p - log q``, less its mean,

    grad E[w] = E[w S (theta - mu)],    hess E[w] = E[w S (theta - mu) (theta - mu)^T S],

and what they add to the natural gradient is all of it, because that of ``E[log q]`` and that of
the entropy cancel. Any ``w`` will do, with or without a gradient; the price is noise.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from numpyro_ngvi.families.base import Family


def score_direction(family: Family, log_weights: jax.Array, noise: jax.Array) -> Family:
    """The natural gradient of the bound.

    :param log_weights: ``log p - log q`` at the draws, shape ``(N,)``.
    :param noise: of the draws, shape ``(N, d)``.
    :return: the direction of ascent, NaN if a value is not finite.
    """
    scores = family.scores(noise)
    centred = (log_weights - jnp.mean(log_weights)) / len(log_weights)
    weighted = centred[:, None] * scores

    def direction(weighted: jax.Array) -> Family:
        return family.bonnet_price(weighted.sum(0), family.outer_products(weighted, scores))

    return jax.tree.map(jnp.subtract, direction(weighted), direction(jnp.zeros_like(weighted)))
