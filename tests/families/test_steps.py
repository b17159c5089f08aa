"""Steps at the border of the domain: corrected eigenvalues, and coordinates kept off zero."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import (
    ALL_FAMILIES,
    DENSE_FAMILIES,
    SYMMETRIC,
    covariance,
    gaussian_from_covariance,
    random_gaussian,
)


def _direction(backend, family, gradient, hessian, dtype="float64"):
    structured = family.assemble_hessian(backend.array(hessian, dtype))
    return family.bonnet_price(backend.array(gradient, dtype), structured)


def _moments(backend, family_name, family):
    loc, scale = backend.coordinates(family)
    return loc, np.linalg.inv(covariance(family_name, scale))


@pytest.mark.parametrize("family_name", DENSE_FAMILIES)
def test_an_eigenvalue_that_would_not_be_positive_is_corrected_and_only_that(
    backend, family_name, rng
):
    dim, step_size = 5, 0.8
    loc, scale = random_gaussian(family_name, dim, rng)
    root = np.linalg.inv(np.linalg.cholesky(np.linalg.inv(covariance(family_name, scale))))
    vectors = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    # Of the curvature in whitened coordinates; -1 and -30 are too negative for the step.
    values = np.array([-30.0, -1.0, -0.1, 0.5, 20.0])
    inverse = np.linalg.inv(root)
    curvature = inverse @ (vectors * values) @ vectors.T @ inverse.T
    family = backend.family(family_name, loc, scale)
    direction = _direction(backend, family, np.zeros(dim), -curvature)
    _, precision = _moments(backend, family_name, family.natural_step(direction, step_size))
    whitened = root @ precision @ root.T
    change = step_size * (values - 1)
    expected = np.where(1 + change > 0, 1 + change, 0.5)
    np.testing.assert_allclose(
        vectors.T @ whitened @ vectors, np.diag(expected), rtol=1e-9, atol=1e-9
    )


def _steps(backend, family_name, starts, gradients, hessians, step_sizes, dtype):
    """The coordinates after many steps, each from its own start."""
    cls = backend.family_class(family_name)
    arrays = [backend.array(a, dtype) for a in (*starts, gradients, hessians, step_sizes)]

    def step(loc, scale, gradient, hessian, step_size):
        family = cls(loc, scale)
        direction = family.bonnet_price(gradient, family.assemble_hessian(hessian))
        return tuple(family.natural_step(direction, step_size).coordinates().values())

    if backend.name == "numpyro":
        import jax

        locs, scales = jax.jit(jax.vmap(step))(*arrays)
        return np.asarray(locs), np.asarray(scales)
    moved = [step(*row) for row in zip(*arrays, strict=True)]
    return tuple(
        np.stack([backend.numpy(c) for c in column]) for column in zip(*moved, strict=True)
    )


@pytest.mark.parametrize("family_name", ALL_FAMILIES)
def test_float32_never_returns_nan_for_badly_scaled_curvature(backend, family_name, rng):
    # Variances over twelve orders of magnitude, curvatures of either sign over twenty.
    num, dim = 200, 6
    hessians = rng.normal(size=(num, dim, dim)) * 10 ** rng.uniform(-8, 12, size=(num, 1, 1))
    hessians = hessians + np.swapaxes(hessians, 1, 2)
    hessians[::4] *= 10 ** rng.uniform(-6, 0, size=(num // 4, dim, 1))
    hessians = 0.5 * (hessians + np.swapaxes(hessians, 1, 2))
    hessians[1::4] = -np.eye(dim)  # on the border: the rule's eigenvalues are near zero
    deviations = 10 ** rng.uniform(-3, 3, size=(num, dim))
    scales = np.stack([gaussian_from_covariance(family_name, np.diag(s**2)) for s in deviations])
    starts = rng.normal(size=(num, dim)), scales
    locs, scales = _steps(
        backend, family_name, starts, rng.normal(size=(num, dim)), hessians, np.ones(num), "float32"
    )
    assert np.isfinite(locs).all()
    assert np.isfinite(scales).all()


def test_what_is_not_finite_is_left_to_the_optimiser(backend, family_name, rng):
    family = backend.family(family_name, *random_gaussian(family_name, 5, rng))
    direction = _direction(backend, family, np.zeros(5), np.full((5, 5), np.nan))
    scale = backend.coordinates(family.natural_step(direction, 0.5))[1]
    assert np.isnan(scale).any()


#: The families whose coordinates are square roots: a sign may change, zero must be kept off.
ROOTS = tuple(name for name in ALL_FAMILIES if name not in SYMMETRIC)


def _positive_part(family_name, scale):
    return scale if family_name == "diagonal" else np.diag(scale)


@pytest.mark.parametrize("family_name", ROOTS)
def test_a_deviation_may_cross_zero_and_does_not_land_on_it(backend, family_name, rng):
    loc, scale = random_gaussian(family_name, 4, rng)
    family, shift = backend.family(family_name, loc, scale), rng.normal(size=4)

    def moved(size, of_mean=0.0):
        step = backend.family(family_name, of_mean * shift, -size * scale)
        return backend.coordinates(family.retract(step))

    for size in (0.6, 1.4, 2.0, 1e6):
        np.testing.assert_array_equal(moved(size)[1], scale - size * scale)
    # To the mirror image, which is the same Gaussian: the mean must move as if nothing were.
    np.testing.assert_allclose(moved(2.0, 1.0)[0], loc + shift, rtol=1e-13)
    new, old = (_positive_part(family_name, one) for one in (moved(1.0)[1], scale))
    np.testing.assert_array_equal(np.abs(new), 0.01 * old)


@pytest.mark.parametrize("family_name", ROOTS)
def test_a_step_that_keeps_pointing_at_zero_leaves_it_behind(backend, family_name):
    # A momentum of 0.9 decays more slowly than a coordinate that is halved at every step.
    scale = np.full(2, 0.1) if family_name == "diagonal" else 0.1 * np.eye(2)
    q = backend.family(family_name, np.zeros(2), scale)
    for t in range(200):
        step = backend.family(family_name, np.zeros(2), -0.03 * 0.9**t * np.sign(scale))
        q = q.retract(step)
    deviations = np.abs(_positive_part(family_name, backend.coordinates(q)[1]))
    np.testing.assert_allclose(deviations, 0.2, atol=0.01)


@pytest.mark.parametrize("family_name", SYMMETRIC)
def test_only_what_is_indefinite_is_corrected(backend, family_name, rng):
    # Two directions, one of which would become negative.
    loc, scale = np.zeros(2), np.diag([1.0, 4.0])
    step = loc, np.diag([0.5, -8.0])
    moved = backend.family(family_name, loc, scale).retract(backend.family(family_name, *step))
    np.testing.assert_allclose(backend.coordinates(moved)[1], np.diag([1.5, 2.0]), atol=1e-14)


@pytest.mark.parametrize("family_name", SYMMETRIC)
def test_a_symmetric_matrix_survives_the_rounding_of_an_added_difference(backend, family_name, rng):
    # optax adds the difference of the new and the old parameters to the old ones.
    singular = 0
    for _ in range(50):
        loc, scale = random_gaussian(family_name, 6, rng)
        low = rng.normal(size=(6, 2))
        step = np.zeros(6), low @ low.T - scale  # of rank two, up to rounding
        old, step = (backend.family(family_name, *x, dtype="float32") for x in ((loc, scale), step))
        new = backend.coordinates(old.retract(step))[1]
        before = backend.coordinates(old)[1]
        assert np.linalg.eigvalsh((before + (new - before)).astype(float)).min() > 0
        singular += np.linalg.eigvalsh(before + backend.coordinates(step)[1]).min() <= 0
    assert singular > 10  # so that the plain sum would not have done


def test_repeated_huge_steps_leave_a_gaussian(backend, family_name, rng):
    family = backend.family(family_name, *random_gaussian(family_name, 5, rng))
    for _ in range(20):
        scale = backend.coordinates(family)[1]
        family = family.retract(backend.family(family_name, np.zeros(5), -1e3 * scale))
    sigma = covariance(family_name, backend.coordinates(family)[1])
    assert (np.linalg.eigvalsh(sigma) > 0).all()
