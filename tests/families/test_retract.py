"""``retract`` adds, and never reaches the border of the domain."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import (
    ALL_FAMILIES,
    SYMMETRIC,
    TRIANGULAR,
    covariance,
    random_gaussian,
    relative_error,
)

#: The families whose coordinates are square roots: a sign may change, zero must be kept off.
ROOTS = tuple(name for name in ALL_FAMILIES if name not in SYMMETRIC)


def _positive_part(family_name, scale):
    return scale if family_name == "diagonal" else np.diag(scale)


@pytest.mark.parametrize("dim", [1, 5])
def test_an_ordinary_step_is_added(backend, family_name, dim, rng):
    q, step = random_gaussian(family_name, dim, rng), random_gaussian(family_name, dim, rng)
    step = 0.1 * step[0], 0.1 * step[1]
    moved = backend.family(family_name, *q).retract(backend.family(family_name, *step))
    loc, scale = backend.coordinates(moved)
    np.testing.assert_array_equal(scale, q[1] + step[1])
    if not family_name.startswith("precision"):
        np.testing.assert_array_equal(loc, q[0] + step[0])


@pytest.mark.parametrize("dim", [1, 5])
def test_the_updated_factor_of_the_precision_moves_the_mean(backend, dim, rng):
    # Corollary 1: T_new^-T T^-1 dL/dmu, where the step is Sigma dL/dmu.
    q, g = (random_gaussian("precision_cholesky", dim, rng) for _ in range(2))
    family = backend.family("precision_cholesky", *q)
    step = family.natural_gradient(backend.family("precision_cholesky", *g))
    loc, new = backend.coordinates(family.retract(step))
    expected = np.linalg.solve(new.T, np.linalg.solve(q[1], g[0]))
    assert relative_error(loc - q[0], expected) < 1e-12


@pytest.mark.parametrize("dim", [1, 5])
def test_the_updated_precision_moves_the_mean(backend, dim, rng):
    # Table 1, lambda: Sigma_new dL/dmu, where the step is Sigma dL/dmu.
    q, g = (random_gaussian("precision", dim, rng) for _ in range(2))
    family = backend.family("precision", *q)
    step = family.natural_gradient(backend.family("precision", *g))
    loc, new = backend.coordinates(family.retract(step))
    assert relative_error(loc - q[0], np.linalg.solve(new, g[0])) < 1e-12


@pytest.mark.parametrize("family_name", ROOTS)
@pytest.mark.parametrize("size", [0.6, 1.4, 2.0, 1e6])
def test_a_deviation_may_cross_zero(backend, family_name, size, rng):
    loc, scale = random_gaussian(family_name, 4, rng)
    step = np.zeros(4), -size * scale
    moved = backend.family(family_name, loc, scale).retract(backend.family(family_name, *step))
    for a, expected in zip(backend.coordinates(moved), (loc, scale + step[1]), strict=True):
        np.testing.assert_array_equal(a, expected)


@pytest.mark.parametrize("family_name", ROOTS)
def test_a_change_of_sign_does_not_turn_the_means_step(backend, family_name, rng):
    loc, scale = random_gaussian(family_name, 4, rng)
    family = backend.family(family_name, loc, scale)
    shift = rng.normal(size=4)
    # To the mirror image, which is the same Gaussian: the mean must move as if nothing were.
    moved = family.retract(backend.family(family_name, shift, -2 * scale))
    np.testing.assert_allclose(backend.coordinates(moved)[0], loc + shift, rtol=1e-13)


@pytest.mark.parametrize("family_name", ROOTS)
def test_no_step_lands_on_zero(backend, family_name, rng):
    loc, scale = random_gaussian(family_name, 4, rng)
    step = np.zeros(4), -scale
    moved = backend.family(family_name, loc, scale).retract(backend.family(family_name, *step))
    new_scale = backend.coordinates(moved)[1]
    np.testing.assert_array_equal(
        np.abs(_positive_part(family_name, new_scale)), 0.01 * _positive_part(family_name, scale)
    )


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
@pytest.mark.parametrize("size", [0.6, 1.0, 1.4, 1e3])
def test_an_indefinite_sum_of_symmetric_matrices_is_corrected(backend, family_name, size, rng):
    loc, scale = random_gaussian(family_name, 4, rng)
    step = np.zeros(4), -size * scale
    moved = backend.family(family_name, loc, scale).retract(backend.family(family_name, *step))
    factor = 1 - size if size < 1 else 0.5
    np.testing.assert_allclose(backend.coordinates(moved)[1], factor * scale, rtol=1e-11)


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


@pytest.mark.parametrize("family_name", SYMMETRIC)
def test_the_part_of_a_step_that_is_not_symmetric_is_not_felt(backend, family_name, rng):
    q = random_gaussian(family_name, 4, rng)
    step = np.zeros(4), 0.1 * rng.normal(size=(4, 4))
    moved = backend.family(family_name, *q).retract(backend.family(family_name, *step))
    expected = q[1] + 0.5 * (step[1] + step[1].T)
    np.testing.assert_allclose(backend.coordinates(moved)[1], expected, rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize("family_name", TRIANGULAR)
def test_a_factor_moved_by_a_natural_gradient_stays_lower_triangular(backend, family_name, rng):
    family = backend.family(family_name, *random_gaussian(family_name, 5, rng))
    gradient = rng.normal(size=5), rng.normal(size=(5, 5))
    step = family.natural_gradient(backend.family(family_name, *gradient))
    tril = backend.coordinates(family.retract(step))[1]
    np.testing.assert_array_equal(np.triu(tril, 1), 0)


def test_repeated_huge_steps_leave_a_gaussian(backend, family_name, rng):
    family = backend.family(family_name, *random_gaussian(family_name, 5, rng))
    for _ in range(20):
        scale = backend.coordinates(family)[1]
        family = family.retract(backend.family(family_name, np.zeros(5), -1e3 * scale))
    sigma = covariance(family_name, backend.coordinates(family)[1])
    assert (np.linalg.eigvalsh(sigma) > 0).all()


def test_the_original_is_not_changed(backend, family_name, rng):
    q = random_gaussian(family_name, 5, rng)
    family = backend.family(family_name, *q)
    family.retract(backend.family(family_name, *random_gaussian(family_name, 5, rng)))
    for a, e in zip(backend.coordinates(family), q, strict=True):
        np.testing.assert_array_equal(a, e)
