"""The natural gradient of the bound from values alone, for log densities that jump.

With the score function (Paisley, Blei and Jordan, 2012), at draws ``theta`` of ``q`` with
``w = log p - log q``, less its mean,

    grad E[w] = E[w S (theta - mu)],    hess E[w] = E[w S (theta - mu) (theta - mu)^T S],

and what they add to the natural gradient is all of it, because that of ``E[log q]`` and that of
the entropy cancel. Any ``w`` will do, with or without a gradient; the price is noise.
"""

from __future__ import annotations

from ngvi.families import direction
from ngvi.families.base import Array, Family


def score_direction(family: Family, log_weights: Array, noise: Array) -> Family:
    """The natural gradient of the bound.

    :param log_weights: ``log p - log q`` at the draws, shape ``(N,)``.
    :param noise: of the draws, shape ``(N, d)``.
    :return: the direction of ascent, NaN if a value is not finite.
    """
    scores = family.scores(noise)
    weighted = ((log_weights - log_weights.mean()) / len(log_weights))[:, None] * scores

    def of(weighted: Array) -> Family:
        return family.bonnet_price(weighted.sum(0), family.outer_products(weighted, scores))

    return direction.subtract([of(weighted)], [of(family.xp.zeros_like(weighted))])[0]
