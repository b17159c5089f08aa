"""How far a step may go, and how large it is: two numbers that learn from earlier steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ngvi.families.path import Path
from ngvi.optim.trust_region import LineSearch, TrustRegion, TrustRegionState, longest_within
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
    return TrustRegion().judge(algebra, TrustRegionState(**known), [dual], [change])


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


@pytest.mark.parametrize(("ratio", "changes"), [(0.8, 2), (0.4, 4), (1.5, 4)])
def test_two_steps_in_a_row_that_leave_most_of_their_slope_take_two_sign_changes_back(
    backend, ratio, changes
):
    """Noise may do it once, and leaves more than all of it as often."""
    steady = float(judged(backend, 2.0 * ratio).steady)
    assert sign_changes_after(backend, 1.6, steady=steady) == (changes, changes)
    assert sign_changes_after(backend, 1.6, steady=1.0, sign_changes=1) == (0, 0)
    assert sign_changes_after(backend, 2.4, steady=1.0) == (4, 4)


def test_a_part_that_is_steady_takes_its_own_sign_changes_back_and_the_mean_has_a_momentum(backend):
    mean, scale = {"mean_slope": 2.0, "mean_steady": 1.0}, {"scale_steady": 1.0}
    assert sign_changes_after(backend, 1.6, **mean) == (2, 4)
    assert momentum_after(backend, 1.6, **mean) == pytest.approx(TrustRegion().momentum)
    assert sign_changes_after(backend, 1.6, **scale) == (
        4,
        4,
    )  # which did not change: nothing is left
    assert momentum_after(backend, 1.6, **scale) == 0.0


def test_a_sign_change_of_a_step_far_shorter_than_the_one_before_does_not_count(backend):
    assert sign_changes_after(backend, -0.1, previous_length=1.1) == (5, 4)
    assert sign_changes_after(backend, -0.1, previous_length=1.3) == (4, 4)


def momentum_after(backend, end_slope, **known):
    return float(judged(backend, end_slope, **known).momentum)


def test_on_a_long_way_there_is_a_momentum_until_the_slope_changes_its_sign_sharply(backend):
    assert momentum_after(backend, 1.6, steady=1.0) == pytest.approx(TrustRegion().momentum)
    assert momentum_after(backend, 1.6, steady=0.0) == 0.0  # noise may do it once, ...
    assert momentum_after(backend, 1.6, steady=1.0, length=0.6) == 0.0  # ... and the radius twice
    for end_slope, expected in [(0.1, 0.4), (-1.5, 0.4), (-1.7, 0.0)]:
        after = momentum_after(backend, end_slope, mean_slope=2.0, momentum=0.4)
        assert after == pytest.approx(expected)
    assert momentum_after(backend, -1.7, slope=20.0, mean_slope=2.0, momentum=0.4) == 0.0
    assert momentum_after(backend, 1.6, slope=-0.1, steady=1.0, momentum=0.4) == 0.0


@pytest.mark.parametrize("end_slope", [-5.0, 0.0, 5.0])
def test_without_a_step_before_there_is_nothing_to_learn(backend, end_slope):
    assert radius_after(backend, end_slope, slope=0.0) == 1.0
    assert sign_changes_after(backend, end_slope, slope=0.0, steady=1.0) == (4, 4)


@pytest.mark.parametrize("length", [0.009, 1e-4, -1e-17])
def test_after_a_short_step_another_slope_is_taken_for_noise(backend, length):
    """A radius that noise may shorten would be nothing before long."""
    assert radius_after(backend, -1e9, length=length) == pytest.approx(0.01)
    assert radius_after(backend, -1e9, length=length, radius=1e-3) == pytest.approx(1e-3)
    assert not judged(backend, -1e9, length=length).is_rejected
    assert judged(backend, -1e9, length=0.011).is_rejected


def test_the_step_size_decreases_with_every_sign_change():
    for count, expected in [(0, 1.0), (2, 0.5), (18, 0.1)]:
        assert TrustRegion().step_size(count) == pytest.approx(expected)


# -- the search ---------------------------------------------------------------------------


def advanced(backend, radius, advance, rho=1.0):
    """``(loc, scale, length)`` after the step that is found."""
    rho = backend.array(rho) if backend.name == "numpyro" else rho
    path = Path(point(backend), advance)
    algebra = backend.module("optim.algebra").algebra
    moved, length, _ = longest_within(algebra, radius, path, rho)
    loc, scale = (c.item() for c in backend.coordinates(moved))
    return loc, scale, float(length)


@pytest.mark.parametrize(
    ("by", "first", "count"),
    [
        (1e4, 0.9e-4, 1),  # fits, and is long enough
        (1e4, 2e-4, 2),  # too long: the square root of what is missing
        (1e4, 1e-6, 3),  # too short: ten times, and then what is missing
        (1e4, math.inf, 6),  # from the full step on
        (0.9, 1e-3, 4),  # grows to the full step, and no further
    ],
)
def test_the_first_attempt_may_be_a_shorter_one(backend, by, first, count):
    tried, algebra = [], backend.module("optim.algebra").algebra
    advance = moving_the_mean(backend, by)

    class Counted(Path):
        def at(self, rho):
            tried.append(rho)
            return super().at(rho)

    rho = backend.array(1.0) if backend.name == "numpyro" else 1.0
    path = Counted(point(backend), advance)
    _, length, taken = longest_within(algebra, 0.5, path, rho, first)
    assert float(length) == pytest.approx(0.5 * (by * float(taken)) ** 2)
    assert 0.25 <= float(length) <= 0.5
    assert float(taken) == min(float(taken), 1.0)
    assert backend.name == "numpyro" or len(tried) == count


def test_the_last_step_says_how_long_the_next_may_be(backend):
    algebra = backend.module("optim.algebra").algebra

    def promised(**known):
        number = backend.array if backend.name == "numpyro" else float
        last = TrustRegionState(**{name: number(one) for name, one in known.items()})
        return float(LineSearch().promising(algebra, last, 8.0))

    assert promised(length=2.0, rho=0.1) == pytest.approx(0.1 * math.sqrt(4 * LineSearch().aim))
    for unknown in ({}, {"length": 2.0}, {"rho": 0.1}, {"length": -1e-9, "rho": 0.1}):
        assert promised(**unknown) == math.inf


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
