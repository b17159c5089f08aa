"""Moments of a log density from gradients at orthogonal points: no Hessian, and little noise.

With ``z = r u``, ``r`` chi-distributed and ``u`` uniform on the sphere, Genz and Monahan (1998,
*Stochastic integration rules for infinite regions*, SIAM J. Sci. Comput. 19, their rule of
degree 3) integrate over the columns ``q_i`` of a random orthogonal matrix and their opposites,
all at one radius, and the centre::

    E[f(z)] = E[ (1 - d / r^2) f(0) + sum_i (f(r q_i) + f(-r q_i)) / (2 r^2) ],  r ~ chi(d + 2)

It is unbiased for every integrable ``f`` and exact, without any noise, for cubic ones. A *group*
is the ``2 d + 1`` points of one orthogonal matrix. Its weighted second moment is exactly ``I``,
so that by Bonnet's theorem and Stein's lemma

    E[grad l] = sum_k w_k grad l(theta_k),
    E[hess l] = sum_k w_k grad l(theta_k) (S (theta_k - mu))^T

are exact for a quadratic log density; the second is a central difference of gradients in ``d``
orthogonal directions, with steps of the size of ``q`` itself. Measured on 22 posteriors of
posteriordb, at their optima: the squared Fisher norm of the noise is 20 to 10^6 times smaller than
with a pair of exact Hessians and their gradients, which costs as much.

The draws come from numpy's generator, so that both packages can see the same ones.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.stats import chi2

from numpyro_ngvi.families.base import Family


class Points(NamedTuple):
    """Noise ``z`` of shape ``(N, d)`` and weights of shape ``(N,)``, which sum to one."""

    noise: np.ndarray
    weights: np.ndarray


def spherical_points(rng: np.random.Generator, dim: int, num_groups: int) -> list[Points]:
    """Groups of points; any one of them gives unbiased estimates.

    The groups' radii are stratified: each is chi-distributed, and together they are spread evenly.

    :param rng: where the draws come from.
    :param dim: ``d``.
    :param num_groups: how many groups.
    :return: a group has ``2 d + 1`` points.
    """
    levels = (rng.random() + np.arange(num_groups) / num_groups) % 1.0
    # The ends would be a radius of zero, whose weights are infinite, and an infinite one.
    squares = chi2.ppf(np.clip(levels, 1e-6, 1.0 - 1e-6), dim + 2)
    groups = []
    for square in squares:
        rotation, triangle = np.linalg.qr(rng.standard_normal((dim, dim)))
        # Without the signs the matrices would not be uniformly distributed.
        points = np.sqrt(square) * rotation * np.sign(np.diag(triangle))
        noise = np.concatenate([points, -points, np.zeros((1, dim))])
        weights = np.append(np.full(2 * dim, 0.5 / square), 1.0 - dim / square)
        groups.append(Points(noise, weights))
    return groups


def spherical_direction(
    family: Family, gradients: jax.Array, draws: jax.Array, weights: jax.Array
) -> Family:
    """The natural gradient of the bound.

    :param gradients: of the log density at the draws, shape ``(N, d)``.
    :param draws: ``theta``, shape ``(N, d)``.
    :param weights: of the draws, shape ``(N,)``.
    :return: the direction of ascent, NaN if any gradient is not finite.
    """
    scores: Any = -jax.vmap(jax.grad(family.log_prob))(draws)
    hessian = family.outer_products(weights[:, None] * gradients, scores)
    return family.bonnet_price(weights @ gradients, hessian)
