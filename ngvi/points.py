"""Random points at which expectations under ``N(0, I)`` are sums: orthogonal ones, with weights.

With ``z = r u``, ``r`` chi-distributed and ``u`` uniform on the sphere, Genz and Monahan (1998,
*Stochastic integration rules for infinite regions*, SIAM J. Sci. Comput. 19, their rule of
degree 3) integrate over the columns ``q_i`` of a random orthogonal matrix and their opposites,
all at one radius, and the centre::

    E[f(z)] = E[ (1 - d / r^2) f(0) + sum_i (f(r q_i) + f(-r q_i)) / (2 r^2) ],  r ~ chi(d + 2)

It is unbiased for every integrable ``f`` and exact, without any noise, for cubic ones. A *group*
is the ``2 d + 1`` points of one orthogonal matrix; its weighted second moment is exactly ``I``.

The draws of :func:`spherical_points` come from numpy's generator, so that both packages can see the
same ones.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import chi2

#: The ends would be a radius of zero, whose weights are infinite, and an infinite one.
LEVELS = (1e-6, 1.0 - 1e-6)


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
    squares = chi2.ppf(np.clip(levels, *LEVELS), dim + 2)
    groups = []
    for square in squares:
        rotation, triangle = np.linalg.qr(rng.standard_normal((dim, dim)))
        # Without the signs the matrices would not be uniformly distributed.
        points = np.sqrt(square) * rotation * np.sign(np.diag(triangle))
        noise = np.concatenate([points, -points, np.zeros((1, dim))])
        weights = np.append(np.full(2 * dim, 0.5 / square), 1.0 - dim / square)
        groups.append(Points(noise, weights))
    return groups


@functools.cache
def radius_polynomial(dim: int) -> np.ndarray:
    """Of the quantile of ``r^2`` whose level is that of a standard normal ``x``: its cube root.

    For compiled programs, which have no quantile function. The cube root of a chi-squared variable
    is nearly normal (Wilson and Hilferty, 1931): a polynomial in ``x`` gives the mean of
    ``1 / r^2`` to 2e-7 for one latent, and to rounding for ten.

    :return: the coefficients, the highest power first.
    """
    x = np.linspace(ndtri(LEVELS[0]), ndtri(LEVELS[1]), 4001)
    roots = np.cbrt(chi2.ppf(ndtr(x), dim + 2))
    fitted = np.polynomial.Chebyshev.fit(x, roots, 11)
    return fitted.convert(kind=np.polynomial.Polynomial).coef[::-1]
