"""``retract`` adds, and never reaches the border of the domain."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import random_gaussian


def _positive_part(family_name, scale):
    return scale if family_name == "diagonal" else np.diag(scale)


@pytest.mark.parametrize("dim", [1, 5])
def test_an_ordinary_step_is_added(backend, family_name, dim, rng):
    q, step = random_gaussian(family_name, dim, rng), random_gaussian(family_name, dim, rng)
    step = 0.1 * step[0], 0.1 * step[1]
    moved = backend.family(family_name, *q).retract(backend.family(family_name, *step))
    for a, before, change in zip(backend.coordinates(moved), q, step, strict=True):
        np.testing.assert_array_equal(a, before + change)


@pytest.mark.parametrize("size", [0.6, 1.4, 2.0, 1e6])
def test_a_deviation_may_cross_zero(backend, family_name, size, rng):
    loc, scale = random_gaussian(family_name, 4, rng)
    step = np.zeros(4), -size * scale
    moved = backend.family(family_name, loc, scale).retract(backend.family(family_name, *step))
    for a, expected in zip(backend.coordinates(moved), (loc, scale + step[1]), strict=True):
        np.testing.assert_array_equal(a, expected)


def test_no_step_lands_on_zero(backend, family_name, rng):
    loc, scale = random_gaussian(family_name, 4, rng)
    step = np.zeros(4), -scale
    moved = backend.family(family_name, loc, scale).retract(backend.family(family_name, *step))
    new_scale = backend.coordinates(moved)[1]
    np.testing.assert_array_equal(
        np.abs(_positive_part(family_name, new_scale)), 0.01 * _positive_part(family_name, scale)
    )


def test_a_step_that_keeps_pointing_at_zero_leaves_it_behind(backend, family_name):
    # A momentum of 0.9 decays more slowly than a coordinate that is halved at every step.
    scale = np.full(2, 0.1) if family_name == "diagonal" else 0.1 * np.eye(2)
    q = backend.family(family_name, np.zeros(2), scale)
    for t in range(200):
        step = backend.family(family_name, np.zeros(2), -0.03 * 0.9**t * np.sign(scale))
        q = q.retract(step)
    deviations = np.abs(_positive_part(family_name, backend.coordinates(q)[1]))
    np.testing.assert_allclose(deviations, 0.2, atol=0.01)


def test_a_factor_moved_by_a_natural_gradient_stays_lower_triangular(backend, rng):
    family = backend.family("covariance_cholesky", *random_gaussian("covariance_cholesky", 5, rng))
    gradient = rng.normal(size=5), rng.normal(size=(5, 5))
    step = family.natural_gradient(backend.family("covariance_cholesky", *gradient))
    tril = backend.coordinates(family.retract(step))[1]
    np.testing.assert_array_equal(np.triu(tril, 1), 0)


def test_repeated_huge_steps_leave_a_gaussian(backend, family_name, rng):
    family = backend.family(family_name, *random_gaussian(family_name, 3, rng))
    for _ in range(50):
        scale = backend.coordinates(family)[1]
        family = family.retract(backend.family(family_name, np.zeros(3), -1e3 * scale))
    assert (_positive_part(family_name, backend.coordinates(family)[1]) > 0).all()


def test_the_original_is_not_changed(backend, family_name, rng):
    q = random_gaussian(family_name, 3, rng)
    family = backend.family(family_name, *q)
    family.retract(backend.family(family_name, *random_gaussian(family_name, 3, rng)))
    for a, e in zip(backend.coordinates(family), q, strict=True):
        np.testing.assert_array_equal(a, e)
