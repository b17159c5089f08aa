"""``bonnet_price`` is the natural gradient of the bound, from gradients and Hessians of ``l``."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.reference import (
    ALL_FAMILIES,
    bonnet_price_gradient,
    natural_gradient,
    random_gaussian,
    relative_error,
)

#: The bar of the issue is 1e-8.
TOLERANCE = 1e-10


def _symmetric(dim, rng):
    matrix = rng.normal(size=(dim, dim))
    return 0.5 * (matrix + matrix.T)


def _bonnet_price(backend, family, gradient, hessian):
    """From a dense Hessian, which is its own product with the unit vectors."""
    probes = family.hessian_probes()
    np.testing.assert_array_equal(probes, np.arange(family.dim))
    structured = family.assemble_hessian(backend.array(hessian))
    return family.bonnet_price(backend.array(gradient), structured)


@pytest.mark.parametrize("dim", [1, 5])
def test_it_is_the_dense_solve_of_the_chain_rule(backend, family_name, dim, rng):
    loc, scale = random_gaussian(family_name, dim, rng)
    gradient, hessian = rng.normal(size=dim), _symmetric(dim, rng)
    euclidean = bonnet_price_gradient(family_name, scale, gradient, hessian)
    expected = natural_gradient(family_name, loc, scale, *euclidean)
    family = backend.family(family_name, loc, scale)
    actual = _bonnet_price(backend, family, gradient, hessian)
    for a, e in zip(backend.coordinates(actual), expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


def test_of_the_precision_it_is_minus_the_sum_of_hessian_and_precision(backend, rng):
    _, precision = random_gaussian("precision", 5, rng)
    family = backend.family("precision", np.zeros(5), precision)
    hessian = _symmetric(5, rng)
    _, direction = backend.coordinates(_bonnet_price(backend, family, np.zeros(5), hessian))
    np.testing.assert_allclose(direction, -(hessian + precision), rtol=1e-14)


def test_outer_products_are_the_hessian_of_half_a_sum_of_squares(backend, family_name, rng):
    left, right = rng.normal(size=(2, 7, 4))
    family = backend.family(family_name, *random_gaussian(family_name, 4, rng))
    product = left.T @ right
    expected = family.assemble_hessian(backend.array(0.5 * (product + product.T)))
    actual = family.outer_products(backend.array(left), backend.array(right))
    np.testing.assert_allclose(backend.numpy(actual), backend.numpy(expected), rtol=1e-12)


def _log_density(theta):
    """Neither quadratic nor separable, a polynomial of degree four."""
    quartic = -0.1 * (theta**4).sum(-1) - (theta**2).sum(-1)
    return quartic + 0.2 * theta[..., 0] * theta[..., 1] ** 2 + theta[..., 2]


def _derivatives(theta):
    """Its gradients ``(n, 3)`` and Hessians ``(n, 3, 3)``."""
    gradient = -0.4 * theta**3 - 2 * theta
    gradient[:, 0] += 0.2 * theta[:, 1] ** 2
    gradient[:, 1] += 0.4 * theta[:, 0] * theta[:, 1]
    gradient[:, 2] += 1
    hessian = np.zeros((len(theta), 3, 3))
    hessian[:, range(3), range(3)] = -1.2 * theta**2 - 2
    hessian[:, 1, 1] += 0.4 * theta[:, 0]
    hessian[:, 0, 1] = hessian[:, 1, 0] = 0.4 * theta[:, 1]
    return gradient, hessian


@pytest.mark.parametrize("family_name", ALL_FAMILIES)
def test_first_and_second_order_agree_in_mean(backend, family_name, rng):
    # A product rule with six nodes a dimension is exact for polynomials of degree eleven, so
    # that these are the estimators' means without a sampling error.
    family = backend.family(family_name, *random_gaussian(family_name, 3, rng))
    nodes, weights = np.polynomial.hermite_e.hermegauss(6)
    noise = np.array(list(itertools.product(nodes, repeat=3)))
    weights = np.prod(list(itertools.product(weights / weights.sum(), repeat=3)), 1)

    z, w = backend.array(noise), backend.array(weights)
    first = backend.grad(
        lambda f: (w * (_log_density(f.draw(z)) - f.draw_log_prob(z))).sum(), family
    )
    gradients, hessians = _derivatives(backend.numpy(family.sample(z)).copy())
    mean_hessian = np.tensordot(weights, hessians, 1)
    second = _bonnet_price(backend, family, weights @ gradients, mean_hessian)
    for a, e in zip(backend.coordinates(second), backend.coordinates(first), strict=True):
        assert relative_error(a, e) < TOLERANCE
