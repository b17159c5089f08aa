"""Random points at which expectations under ``N(0, I)`` are sums: orthogonal ones, with weights.

With ``z = r u``, ``r`` chi-distributed and ``u`` uniform on the sphere, Genz and Monahan (1998,
*Stochastic integration rules for infinite regions*, SIAM J. Sci. Comput. 19, their rule of
degree 3) integrate over the columns ``q_i`` of a random orthogonal matrix and their opposites,
all at one radius, and the centre::

    E[f(z)] = E[ (1 - d / r^2) f(0) + sum_i (f(r q_i) + f(-r q_i)) / (2 r^2) ],  r ~ chi(d + 2)

It is unbiased for every integrable ``f`` and exact, without any noise, for cubic ones. A *group*
is the ``2 d + 1`` points of one orthogonal matrix; its weighted second moment is exactly ``I``.

For a few latents :func:`quintic_points` is exact for polynomials of degree 5, at more points.

The draws of both come from numpy's generator, so that both packages can see the same ones.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import scipy

#: The ends would be a radius of zero, whose weights are infinite, and an infinite one.
LEVELS = (1e-6, 1.0 - 1e-6)


class Points(NamedTuple):
    """Noise ``z`` of shape ``(N, d)`` and weights of shape ``(N,)``, which sum to one."""

    noise: np.ndarray
    weights: np.ndarray


def spherical_points(rng: np.random.Generator, dim: int, num_groups: int) -> list[Points]:
    """Return groups of points, any one of which gives unbiased estimates.

    The groups' radii are stratified: each is chi-distributed, and together they are spread evenly.

    :return: a group has ``2 d + 1`` points.
    """
    levels = (rng.random() + np.arange(num_groups) / num_groups) % 1.0
    squares = 2.0 * scipy.special.gammaincinv(0.5 * dim + 1.0, np.clip(levels, *LEVELS))
    groups = []
    for square in squares:
        points = np.sqrt(square) * _rotation(rng, dim)
        noise = np.concatenate([points, -points, np.zeros((1, dim))])
        weights = np.append(np.full(2 * dim, 0.5 / square), 1.0 - dim / square)
        groups.append(Points(noise, weights))
    return groups


def num_quintic(dim: int) -> int:
    """Return how many points a group of :func:`quintic_points` has."""
    return 2 * len(_on_sphere(dim).weights) + 1


def quintic_points(rng: np.random.Generator, dim: int, num_groups: int) -> list[Points]:
    """Return groups of points that are exact for polynomials of degree 5.

    Any one of them gives unbiased estimates. They are the centre and two random radii ``r < s``. On
    these a randomly rotated rule of degree 5 integrates over the sphere (Mysovskikh, 1968: the
    corners of a simplex, the middles of its edges and their opposites). The weights of the radii
    are those with ``E[|z|^2] = d`` and ``E[|z|^4] = d (d + 2)``. Squared radii with the density
    ``prod (r^2)^(d / 2) exp(-r^2 / 2) (s^2 - r^2)^2`` make it unbiased for every integrable
    function (Ermakov and Zolotukhin, 1960, of ``(f(z) - f(0)) / |z|^2``, as the centre has the rest
    of the weight). They are the eigenvalues of a random matrix (Dumitriu and Edelman, 2002, *Matrix
    models for beta ensembles*, J. Math. Phys. 43). Three chi-squared variables make that matrix;
    each of them is stratified over the groups.

    :param dim: ``d``, two at least; ``O(d^2)`` points.
    :return: a group has :func:`num_quintic` points, 113 for ``d = 7``.
    """
    sphere = _on_sphere(dim)
    strata = np.stack([rng.permutation(num_groups) for _ in range(3)], -1)
    levels = np.clip((strata + rng.random(strata.shape)) / num_groups, *LEVELS)
    groups = []
    for first, second, between in 2.0 * scipy.special.gammaincinv(
        [0.5 * dim + 2.0, 0.5 * dim + 1.0, 1.0], levels
    ):
        trace, product = first + second + between, first * second
        large = 0.5 * (trace + np.sqrt(trace**2 - 4.0 * product))
        squares = np.array([product / large, large])
        others = squares[::-1]
        weights = dim * (dim + 2.0 - others) / (squares * (squares - others))
        # One rotation for both: where the radii are close to each other their weights are large and
        # of opposite signs, and the sphere's own errors cancel.
        turned = sphere.noise @ _rotation(rng, dim).T
        noise = [np.sqrt(square) * turned for square in squares]
        groups.append(
            Points(
                np.concatenate([*noise, np.zeros((1, dim))]),
                np.append(np.outer(weights, sphere.weights), 1.0 - weights.sum()),
            )
        )
    return groups


def _rotation(rng: np.random.Generator, dim: int) -> np.ndarray:
    rotation, triangle = np.linalg.qr(rng.standard_normal((dim, dim)))
    # Without the signs the matrices would not be uniformly distributed.
    return rotation * np.sign(np.diag(triangle))


@functools.cache
def _on_sphere(dim: int) -> Points:
    """Mysovskikh's rule of degree 5 for the mean over the unit sphere."""
    # The corners of the standard simplex, centred, in an orthonormal basis of where they lie.
    corners = np.eye(dim + 1) - 1.0 / (dim + 1)
    basis = np.linalg.svd(corners)[2][:dim]
    corners = corners @ basis.T * np.sqrt((dim + 1) / dim)
    first, second = np.triu_indices(dim + 1, 1)
    middles = (corners[first] + corners[second]) * np.sqrt(0.5 * dim / (dim - 1))
    of_corner = dim * (7 - dim) / (2 * (dim + 1) ** 2 * (dim + 2))
    of_middle = 2 * (dim - 1) ** 2 / (dim * (dim + 1) ** 2 * (dim + 2))
    parts = [(middles, of_middle)] + ([(corners, of_corner)] if of_corner else [])
    noise = np.concatenate([sign * points for points, _ in parts for sign in (1.0, -1.0)])
    weights = np.concatenate([np.full(2 * len(points), weight) for points, weight in parts])
    return Points(noise, weights)


@functools.cache
def radius_polynomial(dim: int) -> np.ndarray:
    """Return the cube root of the quantile of ``r^2`` at the level of a normal ``x``.

    For compiled programs, which have no quantile function. The cube root of a chi-squared variable
    is nearly normal (Wilson and Hilferty, 1931): a polynomial in ``x`` gives the mean of
    ``1 / r^2`` to 2e-7 for one latent, and to rounding for ten.

    :return: the coefficients, the highest power first.
    """
    x = np.linspace(scipy.special.ndtri(LEVELS[0]), scipy.special.ndtri(LEVELS[1]), 4001)
    roots = np.cbrt(2.0 * scipy.special.gammaincinv(0.5 * dim + 1.0, scipy.special.ndtr(x)))
    fitted = np.polynomial.Chebyshev.fit(x, roots, 11)
    return fitted.convert(kind=np.polynomial.Polynomial).coef[::-1]
