"""Where runs begin: starts that are finite, and modes to which ascents lead."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ngvi.inference.map_ascent import map_ascents
from ngvi.inference.options import FitOptions, StartOptions
from ngvi.inference.starts import DRAW, GUIDE, PRIOR, Starts
from tests.inference.numpy_problem import CENTRE, Target, gaussian, mixture

OPTIONS = StartOptions()


def starts(target, seed=0):
    return Starts(target.problem(), np.random.default_rng(seed), FitOptions(), 2)


# -- the guide's -----------------------------------------------------------------------


def narrower_than(scale):
    return lambda state, value: value if state.scale.max() < scale else math.inf


def near_the_mode(state, value):
    return value if np.abs(state.mean - CENTRE).max() < 0.5 else math.nan


def beyond(state, value):
    return value if state.mean[0] > 0.2 else -math.inf


@pytest.mark.parametrize(
    ("options", "name", "mean", "scales"),
    [
        ({}, GUIDE, np.zeros(2), (1.0,)),
        ({"change": narrower_than(0.5)}, GUIDE, np.zeros(2), (0.1,)),
        ({"change": narrower_than(2e-5)}, GUIDE, np.zeros(2), (1e-5,)),
        # Where the density is: the highest of the prior's draws and of a box.
        ({"change": near_the_mode}, DRAW, CENTRE, OPTIONS.scales),
        ({"change": beyond, "of_prior": (3.0, 0.5)}, DRAW, CENTRE, OPTIONS.scales),
    ],
)
def test_the_guides_start_or_as_near_to_it_as_the_bound_is_finite(options, name, mean, scales):
    found = starts(Target(gaussian, **options)).own()
    assert found.name == name and math.isfinite(found.value)
    np.testing.assert_allclose(found.state.mean, mean, atol=0.5 if name == DRAW else 2e-2)
    assert any(found.state.scale == pytest.approx(scale, rel=0.4) for scale in scales)


# -- the prior's, a mean field's, and points -------------------------------------------


@pytest.mark.parametrize(
    ("of_prior", "is_other"),
    [(None, False), ((0.0, 1.0), False), ((8.0, 1.0), True), ((0.0, 500.0), True)],
)
def test_the_prior_is_a_start_where_it_is_elsewhere(of_prior, is_other):
    found = starts(Target(gaussian, of_prior=of_prior)).of_prior()
    assert (found is not None) == is_other
    if is_other:
        assert found.name == PRIOR
        np.testing.assert_allclose(found.state.mean, of_prior[0], atol=0.5 * of_prior[1])


# -- ascents ---------------------------------------------------------------------------

MODES = np.array([[0.0, 0.0], [4.0, 4.0]])
TWO = mixture((1.0, MODES[0], 1.0), (2.0, MODES[1], 0.3))


def test_ascents_end_at_the_modes():
    target = Target(TWO)
    points = np.random.default_rng(0).uniform(-2.0, 6.0, (20, 2))
    found = map_ascents(target.problem(), target.initial, points, OPTIONS)
    ends = {tuple(np.round(end.mean).astype(int)) for end in found}
    assert ends == {(0, 0), (4, 4)} and all(end.is_mode for end in found)
    for end in found:
        mode = MODES[int(end.mean[0] > 2)]
        (height,) = target.log_density(target.initial, mode[None])
        assert end.height == pytest.approx(height, abs=1e-3)


@pytest.mark.filterwarnings("error")
def test_an_ascent_without_density_or_slope_is_at_no_mode():
    half = Target(lambda x: np.where(x[:, 0] > 0, -1e5 * x[:, 0], -math.inf))
    points = np.array([[-1.0, 0.0], [1.0, 0.0]])
    none, edge = map_ascents(half.problem(), half.initial, points, OPTIONS)
    assert none.height == -math.inf
    assert not none.is_mode and not edge.is_mode and math.isfinite(edge.height)


def test_the_last_ascents_end_on_their_way():
    """A model with a loop would run for them alone as long as for all."""

    def valley(theta):
        return -10.0 - 1e4 * (theta[:, 1] - theta[:, 0] ** 2) ** 2 - (1.0 - theta[:, 0]) ** 2

    points, ends, costs = np.array([*[[1.0, 1.01]] * 7, [-1.5, 2.25]]), [], []
    for some in (points, points[:7], points[7:]):
        target = Target(valley)
        ends.append(map_ascents(target.problem(), target.initial, some, OPTIONS)[-1])
        costs.append(target.cost.gradients)
    assert costs[2] > 200 and costs[0] <= costs[1] + 100  # a quarter of 400 steps
    assert ends[2].height > ends[0].height > -math.inf and not ends[0].is_mode
