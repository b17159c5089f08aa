"""How far a step may go, and how large it is: two numbers that learn from earlier steps."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.families.path import Path
from ngvi.optim.trust_region import TrustRegion, first_state, longest_within
from tests.optim.runs import kl_divergence


def point(backend, loc=0.0, scale=1.0):
    return backend.family("diagonal", np.array([loc]), np.array([scale]))


def judged(backend, end_slope, sign_changes=4, **known):
    """The progress after a step of these slopes and this length, of the mean alone."""
    # At a standard normal a dual is the direction, and the change is of length one.
    change, dual = point(backend, 1.0, 0.0), point(backend, end_slope, 0.0)
    known = {"radius": 1.0, "slope": 2.0, "length": 0.3, **known}
    known = {"mean_sign_changes": sign_changes, "scale_sign_changes": sign_changes, **known}
    if backend.name == "numpyro":
        known = {name: backend.array(value) for name, value in known.items()}
    algebra = backend.module("optim.algebra").algebra
    return TrustRegion().judge(algebra, first_state()._replace(**known), [dual], [change])


def radius_after(backend, end_slope, **known):
    return float(judged(backend, end_slope, **known).radius)


def sign_changes_after(backend, end_slope, **known):
    progress = judged(backend, end_slope, **known)
    return int(progress.mean_sign_changes), int(progress.scale_sign_changes)


def test_the_radius_grows_tenfold_past_a_step_that_hardly_changed_the_slope(backend):
    assert radius_after(backend, 1.9) == pytest.approx(3.0)
    assert radius_after(backend, 1e9) == pytest.approx(3.0)
    assert radius_after(backend, 1.9, length=0.01) == 1.0  # and never shrinks by that


def test_it_moves_to_where_a_linear_slope_vanishes(backend):
    assert radius_after(backend, 1.0, length=1.0) == pytest.approx(4.0)
    assert radius_after(backend, -2.1) == pytest.approx(0.3 * (2 / 4.1) ** 2)
    assert radius_after(backend, -4.0, length=20.0) == pytest.approx(20 / 9)
    assert radius_after(backend, -1e9) == pytest.approx(0.03)
    assert radius_after(backend, -1e200) == pytest.approx(0.03)


def test_a_step_a_little_beyond_the_optimum_is_counted_and_nothing_else(backend):
    for end_slope in (-0.1, -1.9):
        assert radius_after(backend, end_slope) == 1.0
        assert sign_changes_after(backend, end_slope) == (5, 4)


# -- the search ---------------------------------------------------------------------------


def advanced(backend, radius, advance, rho=1.0):
    """``(loc, scale, length)`` after the step that is found."""
    rho = backend.array(rho) if backend.name == "numpyro" else rho
    path = Path(point(backend), advance)
    algebra = backend.module("optim.algebra").algebra
    moved, length, _ = longest_within(algebra, radius, path, rho)
    loc, scale = (c.item() for c in backend.coordinates(moved))
    return loc, scale, float(length)


def moving_the_mean(backend, by):
    start, step = point(backend), point(backend, by, 0.0)
    if backend.name == "pyro":
        return lambda rho: start.map(lambda a, b: a + rho * b, step)
    import jax

    return lambda rho: jax.tree.map(lambda a, b: a + rho * b, start, step)


@pytest.mark.parametrize("rho", [1.0, 0.2])
def test_a_step_that_fits_is_taken_whole(backend, rho):
    loc, _, length = advanced(backend, 0.5, moving_the_mean(backend, 0.9), rho)
    assert loc == pytest.approx(0.9 * rho, rel=1e-15)
    assert length == pytest.approx(0.5 * (0.9 * rho) ** 2)


@pytest.mark.parametrize("by", [1.1, 10.0, 1e6, 1e150])
def test_one_that_does_not_is_shortened_to_nearly_the_radius(backend, by):
    loc, scale, length = advanced(backend, 0.5, moving_the_mean(backend, by))
    assert 0.25 <= length <= 0.5
    start, end = (np.zeros(1), np.eye(1)), (np.array([loc]), np.array([[scale**2]]))
    assert length == pytest.approx(kl_divergence(end, start))


def test_it_comes_back_from_where_nothing_is_finite(backend):
    step = moving_the_mean(backend, 1.0)

    def advance(rho):
        moved = step(rho)
        where = backend.module("families.base")
        lib = where.torch if backend.name == "pyro" else where.jnp
        return type(moved)(moved.loc, moved.scale / lib.where(moved.loc < 1e-7, 1.0, 0.0))

    loc, scale, length = advanced(backend, 0.5, advance)
    assert 0 < loc < 1e-7
    assert scale == 1.0
    assert length <= 0.5
