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


@pytest.mark.parametrize("size", [0.6, 1.0, 2.0, 1e6, 1e300])
def test_no_step_takes_a_deviation_below_half(backend, family_name, size, rng):
    loc, scale = random_gaussian(family_name, 4, rng)
    step = np.zeros(4), -size * scale
    moved = backend.family(family_name, loc, scale).retract(backend.family(family_name, *step))
    new_loc, new_scale = backend.coordinates(moved)
    np.testing.assert_array_equal(new_loc, loc)
    np.testing.assert_array_equal(
        _positive_part(family_name, new_scale), _positive_part(family_name, scale) / 2
    )
    if family_name == "covariance_cholesky":  # the rest of the factor is free, and added
        expected = scale + step[1]
        below = np.tril_indices(4, -1)
        np.testing.assert_array_equal(new_scale[below], expected[below])


def test_only_the_deviations_that_would_shrink_too_far_are_held(backend, family_name, rng):
    loc, scale = random_gaussian(family_name, 3, rng)
    positive = _positive_part(family_name, scale)
    change = positive * [-0.4, -0.6, 0.3]
    step = change if family_name == "diagonal" else np.diag(change)
    moved = backend.family(family_name, loc, scale).retract(
        backend.family(family_name, np.ones(3), step)
    )
    _, new_scale = backend.coordinates(moved)
    np.testing.assert_array_equal(
        _positive_part(family_name, new_scale),
        [positive[0] + change[0], positive[1] / 2, positive[2] + change[2]],
    )


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
