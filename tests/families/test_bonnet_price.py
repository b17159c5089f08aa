"""``bonnet_price`` is the natural gradient of the bound, from gradients and Hessians of ``l``."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import bonnet_price_gradient, natural_gradient, random_gaussian, relative_error

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


def test_outer_products_are_the_hessian_of_half_a_sum_of_squares(backend, family_name, rng):
    left, right = rng.normal(size=(2, 7, 4))
    family = backend.family(family_name, *random_gaussian(family_name, 4, rng))
    product = left.T @ right
    expected = family.assemble_hessian(backend.array(0.5 * (product + product.T)))
    actual = family.outer_products(backend.array(left), backend.array(right))
    np.testing.assert_allclose(backend.numpy(actual), backend.numpy(expected), rtol=1e-12)
