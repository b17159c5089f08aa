"""How far a step may go, and how large it is: two numbers that learn from earlier steps."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optim.runs import kl_divergence


@pytest.fixture
def region(backend):
    return backend.module("optim.trust_region")


def point(backend, loc=0.0, scale=1.0):
    return backend.family("diagonal", np.array([loc]), np.array([scale]))


def judged(backend, region, end_slope, slope=2.0, length=0.3, radius=1.0, num_turns=4):
    """``(radius, num_turns)`` after a step of these slopes and this length."""
    # At a standard normal the Fisher product of a step of one and a direction is the direction.
    here, change, direction = (
        point(backend),
        point(backend, 1.0, 0.0),
        point(backend, end_slope, 0.0),
    )
    if backend.name == "pyro":
        progress = region.Progress(radius, num_turns, slope, length)
        progress = region.judge(progress, [here], [direction], [change])
    else:
        numbers = (backend.array(x) for x in (radius, num_turns, slope, length))
        progress = region.judge(region.Progress(*numbers, [change]), [here], [direction])
    return float(progress.radius), int(progress.num_turns)


def test_the_radius_grows_tenfold_past_a_step_that_could_have_been_longer(backend, region):
    assert judged(backend, region, 0.1) == (3.0, 4)
    assert judged(backend, region, 1e9) == (3.0, 4)
    assert judged(backend, region, 0.1, length=0.01) == (1.0, 4)  # and never shrinks by that


def test_it_falls_to_a_quarter_of_a_step_that_went_far_beyond_the_optimum(backend, region):
    assert judged(backend, region, -2.1) == (0.075, 5)
    assert judged(backend, region, -2.1, length=20.0) == (5.0, 5)


def test_a_step_a_little_beyond_the_optimum_is_counted_and_nothing_else(backend, region):
    assert judged(backend, region, -0.1) == (1.0, 5)
    assert judged(backend, region, -1.9) == (1.0, 5)


@pytest.mark.parametrize("end_slope", [-5.0, 0.0, 5.0])
def test_without_a_step_before_there_is_nothing_to_learn(backend, region, end_slope):
    assert judged(backend, region, end_slope, slope=0.0) == (1.0, 4)


def test_the_radius_does_not_fall_below_what_rounding_resolves(backend, region):
    radius, _ = judged(backend, region, -5.0, length=-1e-17)
    assert 1e-16 < radius < 1e-13


def test_the_step_size_decreases_with_every_turn(backend, region):
    for num_turns, expected in [(0, 1.0), (2, 0.5), (18, 0.1)]:
        if backend.name == "pyro":
            progress = region.Progress(num_turns=num_turns)
        else:
            progress = region.start([point(backend)])
            progress = progress._replace(num_turns=backend.array(num_turns))
        assert float(region.step_size(progress)) == pytest.approx(expected)


# -- the search ---------------------------------------------------------------------------


def advanced(backend, region, radius, advance, rho=1.0):
    """``(loc, scale, length)`` after the step that is found."""
    rho = backend.array(rho) if backend.name == "numpyro" else rho
    path = backend.module("families.path").Path(point(backend), advance)
    moved, length, _ = region.longest_within(radius, path, rho)
    loc, scale = (c.item() for c in backend.coordinates(moved))
    return loc, scale, float(length)


def moving_the_mean(backend, by):
    start, step = point(backend), point(backend, by, 0.0)
    if backend.name == "pyro":
        return lambda rho: start.map(lambda a, b: a + rho * b, step)
    import jax

    return lambda rho: jax.tree.map(lambda a, b: a + rho * b, start, step)


@pytest.mark.parametrize("rho", [1.0, 0.2])
def test_a_step_that_fits_is_taken_whole(backend, region, rho):
    loc, _, length = advanced(backend, region, 0.5, moving_the_mean(backend, 0.9), rho)
    assert loc == pytest.approx(0.9 * rho, rel=1e-15)
    assert length == pytest.approx(0.5 * (0.9 * rho) ** 2)


@pytest.mark.parametrize("by", [1.1, 10.0, 1e6, 1e150])
def test_one_that_does_not_is_shortened_to_nearly_the_radius(backend, region, by):
    loc, scale, length = advanced(backend, region, 0.5, moving_the_mean(backend, by))
    assert 0.25 <= length <= 0.5
    start, end = (np.zeros(1), np.eye(1)), (np.array([loc]), np.array([[scale**2]]))
    assert length == pytest.approx(kl_divergence(end, start))


def test_it_comes_back_from_where_nothing_is_finite(backend, region):
    step = moving_the_mean(backend, 1.0)

    def advance(rho):
        moved = step(rho)
        where = backend.module("families.base")
        lib = where.torch if backend.name == "pyro" else where.jnp
        return type(moved)(moved.loc, moved.scale / lib.where(moved.loc < 1e-7, 1.0, 0.0))

    loc, scale, length = advanced(backend, region, 0.5, advance)
    assert 0 < loc < 1e-7
    assert scale == 1.0
    assert length <= 0.5
