"""``natural_gradient`` is ``F^-1 g`` with the dense Fisher matrix of the reference."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.families import steps
from ngvi.families.steps import free_coordinates
from tests import reference
from tests.reference import felt, natural_gradient, random_gaussian, relative_error

#: The bar of the issue. The dense solve itself loses cond(F) * 1e-16, about 1e-12 here.
TOLERANCE = 1e-10

DIMS = (1, 5)


def _instance(family_name, dim, rng):
    """Coordinates, and a gradient with a part that must not be felt."""
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
    for _ in range(3):
        q, g = _instance(family_name, dim, rng)
        expected = natural_gradient(family_name, *q, *g)
        actual = backend.family(family_name, *q).natural_gradient(backend.family(family_name, *g))
        for a, e in zip(backend.coordinates(actual), expected, strict=True):
            assert relative_error(a, e) < TOLERANCE


@pytest.mark.parametrize("dim", DIMS)
def test_euclidean_gradient_is_the_dense_product(backend, family_name, dim, rng):
    for _ in range(3):
        q, n = _instance(family_name, dim, rng)
        n = n[0], felt(family_name, n[1])
        expected = reference.euclidean_gradient(family_name, *q, *n)
        actual = backend.family(family_name, *q).euclidean_gradient(backend.family(family_name, *n))
        for a, e in zip(backend.coordinates(actual), expected, strict=True):
            assert relative_error(a, e) < TOLERANCE


@pytest.mark.parametrize("dim", [1, 40])
def test_euclidean_gradient_inverts_natural_gradient(backend, family_name, dim, rng):
    q, g = _instance(family_name, dim, rng)
    g = g[0], felt(family_name, g[1])
    family = backend.family(family_name, *q)
    back = family.euclidean_gradient(family.natural_gradient(backend.family(family_name, *g)))
    for a, e in zip(backend.coordinates(back), g, strict=True):
        assert relative_error(a, e) < TOLERANCE


@pytest.mark.parametrize("dim", DIMS)
def test_precondition_is_the_identity_in_value(backend, family_name, dim, rng):
    q, _ = _instance(family_name, dim, rng)
    for a, e in zip(
        backend.coordinates(backend.family(family_name, *q).precondition()), q, strict=True
    ):
        np.testing.assert_array_equal(a, e)


@pytest.mark.fast_in_numpyro("*-5")
@pytest.mark.parametrize("dim", DIMS)
def test_precondition_is_the_inverse_fisher_in_reverse_mode(backend, family_name, dim, rng):
    q, _ = _instance(family_name, dim, rng)
    family, function = backend.family(family_name, *q), _test_function(backend, dim, rng)
    euclidean = backend.coordinates(backend.grad(function, family))
    expected = natural_gradient(family_name, *q, *euclidean)
    actual = backend.grad(lambda f: function(f.precondition()), family)
    for a, e in zip(backend.coordinates(actual), expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


@pytest.mark.fast_in_numpyro("*-5")
@pytest.mark.parametrize("dim", DIMS)
def test_precondition_is_the_inverse_fisher_in_forward_mode(backend, family_name, dim, rng):
    q, direction = _instance(family_name, dim, rng)
    direction = direction[0], felt(family_name, direction[1])
    family, function = backend.family(family_name, *q), _test_function(backend, dim, rng)
    gradient = reference.flatten_gradient(
        family_name, *backend.coordinates(backend.grad(function, family))
    )
    preconditioned = reference.flatten(family_name, *natural_gradient(family_name, *q, *direction))
    actual = backend.jvp(
        lambda f: function(f.precondition()), family, backend.family(family_name, *direction)
    )
    assert np.isclose(float(actual), gradient @ preconditioned, rtol=TOLERANCE)


def test_the_natural_gradient_has_the_form_of_a_direction(backend, family_name, rng):
    q, g = _instance(family_name, 5, rng)
    family, function = backend.family(family_name, *q), _test_function(backend, 5, rng)
    for direction in (
        backend.grad(lambda f: function(f.precondition()), family),
        family.natural_gradient(backend.family(family_name, *g)),
        family.bonnet_price(*map(backend.array, (g[0], g[1]))),
    ):
        _, scale = backend.coordinates(direction)
        np.testing.assert_array_equal(scale, felt(family_name, scale))


def test_the_norm_of_a_direction_is_that_of_its_free_coordinates(backend, family_name, rng):
    direction = random_gaussian(family_name, 5, rng)
    free = free_coordinates(backend.family(family_name, *direction))
    norm = np.sqrt(sum((backend.numpy(array) ** 2).sum() for array in free))
    expected = np.linalg.norm(reference.flatten(family_name, *direction))
    assert np.isclose(norm, expected, rtol=1e-14)


@pytest.mark.parametrize("dim", DIMS)
def test_the_inner_product_is_the_fisher_matrixs(backend, family_name, dim, rng):
    q, left = _instance(family_name, dim, rng)
    right = rng.normal(size=left[0].shape), felt(family_name, rng.normal(size=left[1].shape))
    left = left[0], felt(family_name, left[1])
    dense = reference.fisher(family_name, *q)
    expected = reference.flatten(family_name, *left) @ dense
    expected = expected @ reference.flatten(family_name, *right)
    actual = steps.inner(
        backend.family(family_name, *q),
        backend.family(family_name, *left),
        backend.family(family_name, *right),
    )
    np.testing.assert_allclose(backend.numpy(actual), expected, rtol=TOLERANCE)


def test_float32_natural_gradients_are_accurate_to_float32(backend, family_name, rng):
    q, g = random_gaussian(family_name, 5, rng), random_gaussian(family_name, 5, rng)
    results = [
        backend.family(family_name, *q, dtype).natural_gradient(
            backend.family(family_name, *g, dtype)
        )
        for dtype in ("float32", "float64")
    ]
    for low, high in zip(*map(backend.coordinates, results), strict=True):
        # Two products of 5 terms each, at 6e-8 a rounding.
        np.testing.assert_allclose(low, high, rtol=1e-5, atol=1e-5)
