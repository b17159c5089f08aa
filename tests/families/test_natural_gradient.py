"""``natural_gradient`` is ``F^-1 g`` with the dense Fisher matrix of the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests import reference
from tests.reference import natural_gradient, random_gaussian, relative_error

#: The bar of the issue. The dense solve itself loses cond(F) * 1e-16, about 1e-12 here.
TOLERANCE = 1e-10

DIMS = (1, 2, 5, 12)


def _instance(family_name, dim, rng):
    """Coordinates, and a gradient with entries above the diagonal, which must not matter."""
    loc, scale = random_gaussian(family_name, dim, rng)
    return (loc, scale), (rng.normal(size=loc.shape), rng.normal(size=scale.shape))


def _test_function(backend, dim, rng):
    """A scalar function of a family in which every coordinate appears, not quadratic."""
    noise = backend.array(rng.normal(size=(3, dim)))
    value = backend.array(rng.normal(size=dim))

    def function(family):
        draws = family.sample(noise)
        return (draws**3).sum() + draws.prod() + family.log_prob(value) + family.entropy()

    return function


@pytest.mark.parametrize("dim", DIMS)
def test_natural_gradient_is_the_dense_solve(backend, family_name, dim, rng):
    for _ in range(3 if dim < 12 else 1):
        q, g = _instance(family_name, dim, rng)
        expected = natural_gradient(family_name, *q, *g)
        actual = backend.family(family_name, *q).natural_gradient(backend.family(family_name, *g))
        for a, e in zip(backend.coordinates(actual), expected, strict=True):
            assert relative_error(a, e) < TOLERANCE


@pytest.mark.parametrize("dim", DIMS)
def test_euclidean_gradient_is_the_dense_product(backend, family_name, dim, rng):
    for _ in range(3 if dim < 12 else 1):
        q, n = _instance(family_name, dim, rng)
        if family_name == "covariance_cholesky":
            n = n[0], np.tril(n[1])
        expected = reference.euclidean_gradient(family_name, *q, *n)
        actual = backend.family(family_name, *q).euclidean_gradient(backend.family(family_name, *n))
        for a, e in zip(backend.coordinates(actual), expected, strict=True):
            assert relative_error(a, e) < TOLERANCE


@pytest.mark.parametrize("dim", [1, 12, 60])
def test_euclidean_gradient_inverts_natural_gradient(backend, family_name, dim, rng):
    q, g = _instance(family_name, dim, rng)
    if family_name == "covariance_cholesky":
        g = g[0], np.tril(g[1])
    family = backend.family(family_name, *q)
    back = family.euclidean_gradient(family.natural_gradient(backend.family(family_name, *g)))
    for a, e in zip(backend.coordinates(back), g, strict=True):
        assert relative_error(a, e) < TOLERANCE


@pytest.mark.parametrize("dim", [1, 5, 12])
def test_precondition_is_the_identity_in_value(backend, family_name, dim, rng):
    q, _ = _instance(family_name, dim, rng)
    for a, e in zip(
        backend.coordinates(backend.family(family_name, *q).precondition()), q, strict=True
    ):
        np.testing.assert_array_equal(a, e)


@pytest.mark.parametrize("dim", [1, 5, 12])
def test_precondition_is_the_inverse_fisher_in_reverse_mode(backend, family_name, dim, rng):
    q, _ = _instance(family_name, dim, rng)
    family, function = backend.family(family_name, *q), _test_function(backend, dim, rng)
    euclidean = backend.coordinates(backend.grad(function, family))
    expected = natural_gradient(family_name, *q, *euclidean)
    actual = backend.grad(lambda f: function(f.precondition()), family)
    for a, e in zip(backend.coordinates(actual), expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


@pytest.mark.parametrize("dim", [1, 5, 12])
def test_precondition_is_the_inverse_fisher_in_forward_mode(backend, family_name, dim, rng):
    q, direction = _instance(family_name, dim, rng)
    if family_name == "covariance_cholesky":
        direction = direction[0], np.tril(direction[1])
    family, function = backend.family(family_name, *q), _test_function(backend, dim, rng)
    gradient = reference.flatten(family_name, *backend.coordinates(backend.grad(function, family)))
    preconditioned = reference.flatten(family_name, *natural_gradient(family_name, *q, *direction))
    actual = backend.jvp(
        lambda f: function(f.precondition()), family, backend.family(family_name, *direction)
    )
    assert np.isclose(float(actual), gradient @ preconditioned, rtol=TOLERANCE)


def test_the_draws_natural_gradient_stays_lower_triangular(backend, rng):
    q, _ = _instance("covariance_cholesky", 5, rng)
    family, function = backend.family("covariance_cholesky", *q), _test_function(backend, 5, rng)
    _, tril = backend.coordinates(backend.grad(lambda f: function(f.precondition()), family))
    np.testing.assert_array_equal(np.triu(tril, 1), 0)


def test_the_entropys_natural_gradient_is_half_the_scale(backend, family_name, rng):
    q, _ = _instance(family_name, 5, rng)
    family = backend.family(family_name, *q)
    actual = backend.grad(lambda f: f.precondition().entropy(), family)
    loc, scale = backend.coordinates(actual)
    np.testing.assert_allclose(loc, 0)
    # A few roundings of numbers of order one.
    np.testing.assert_allclose(scale, q[1] / 2, rtol=1e-12, atol=1e-14)
