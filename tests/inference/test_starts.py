"""Where runs begin: starts that are finite, and modes to which ascents lead."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ngvi.inference.map_ascent import map_ascents
from ngvi.inference.options import FitOptions, StartOptions
from ngvi.inference.starts import GUIDE, HIGH_POINT, MEAN_FIELD, MODE, PRIOR, Starts
from tests.inference.numpy_problem import (
    CENTRE,
    SCALE,
    State,
    Target,
    divergence,
    gaussian,
    mixture,
    monitored,
)

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
        ({"change": near_the_mode}, HIGH_POINT, CENTRE, OPTIONS.scales),
        # Uphill, for other points may be flat.
        ({"change": narrower_than(2e-5)}, HIGH_POINT, CENTRE, (1e-5,)),
        # As broad as the prior, or narrower.
        ({"change": beyond, "of_prior": (3.0, 0.5)}, HIGH_POINT, CENTRE, (0.5, 0.05, 0.005)),
    ],
)
def test_the_guides_start_or_as_near_to_it_as_the_bound_is_finite(options, name, mean, scales):
    found = starts(Target(gaussian, **options)).own()
    assert found.name == name and math.isfinite(found.value)
    np.testing.assert_allclose(found.state.mean, mean, atol=2e-2)
    assert any(found.state.scale == pytest.approx(scale, rel=0.4) for scale in scales)


@pytest.mark.parametrize("options", [{"change": lambda *_: math.nan}, {"smooth": None}])
def test_there_may_be_no_start(options):
    smooth = (lambda x: np.full(len(x), np.nan)) if "smooth" in options else gaussian
    options = {key: value for key, value in options.items() if key != "smooth"}
    assert starts(Target(smooth, **options)).own() is None


def test_a_state_is_a_start_if_its_step_is_one():
    one = starts(Target(gaussian))
    good = State(np.ones(2), np.zeros(2))
    assert one.usable(good, "a").state is good
    bad = State(np.array([np.nan, 0.0]), np.zeros(2))
    assert one.usable(bad, "a") is None


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


def test_a_prior_is_read_by_medians_and_quartiles_and_must_be_finite():
    class Odd(Target):
        def prior(self, rng, count):
            draws = np.full((count, 2), 3.0)
            draws[:, 1] = rng.standard_cauchy(count)
            draws[: self.num_bad] = np.nan
            return draws

    one = Odd(gaussian)
    one.num_bad = 10
    found = starts(one).prior
    np.testing.assert_allclose(found.mean, [3.0, 0.0], atol=0.5)
    assert found.sd[0] == 1.0 and found.sd[1] == pytest.approx(2 / 1.349, rel=0.5)
    one.num_bad = 60
    assert starts(one).prior is None
    assert starts(Target(gaussian, of_prior=(0.0, 1.0), is_subsampled=True)).prior is None


def test_a_mean_field_leads_near_the_optimum_by_few_draws():
    target = Target(gaussian, noise=0.2)
    found = starts(target).mean_field(monitored(), starts(target).own())
    assert found.name == MEAN_FIELD
    assert divergence(found.state, State(CENTRE, np.log(SCALE))) < 2.0
    assert all(group.one_batch for _, sample in target.asked[1:-3] for group in sample)


def test_other_parameters_are_as_far_as_the_given_ones_are_from_zero():
    target = Target(lambda x, own: gaussian(x) - 1e-6 * np.sum(own**2), own=np.full(4, 30.0))
    one = starts(target)
    found = [one.other_parameters(one.own()).state.own for _ in range(20)]
    assert 15.0 < np.std(found) < 45.0 and np.ptp(found) > 50.0


def test_points_are_drawn_alike_once_each_and_have_a_density():
    half = Target(lambda x: np.where(x[:, 0] > 0, gaussian(x), -math.inf), of_prior=(0.0, 1.0))
    one = starts(half)
    found = np.concatenate([one.points(30) for _ in range(8)])
    assert len(found) == len(np.unique(found, axis=0)) and 60 < len(found) < 140
    assert (found[:, 0] > 0).all() and one.points(5).shape == (0, 2)
    highest = half.log_density(half.initial, one.highest(5))
    assert (np.diff(highest) <= 0).all() and highest[0] > half.log_density(None_, found).mean()


None_ = State(np.zeros(2), np.zeros(2))


def test_about_a_mode_it_is_as_wide_as_a_gaussian_that_is_known():
    scale, centre = np.array([3e-5, 0.2, 400.0]), np.array([1.0, 2.0, 3.0])
    one = starts(Target(lambda x: gaussian(x, centre, scale), 3))
    start = one.at(centre, MODE, State(np.zeros(3), np.log(scale)))
    assert start.state.scale == pytest.approx(scale)
    assert start.value > one.at(centre, MODE).value + 5.0


# -- ascents ---------------------------------------------------------------------------

MODES = np.array([[0.0, 0.0], [4.0, 4.0]])
TWO = mixture((1.0, MODES[0], 1.0), (2.0, MODES[1], 0.3))


@pytest.mark.parametrize("factor", [None, np.diag([1.0, 0.5])])
def test_ascents_end_at_the_modes(factor):
    target = Target(TWO)
    points = np.random.default_rng(0).uniform(-2.0, 6.0, (20, 2))
    found = map_ascents(target.problem(), target.initial, points, OPTIONS, factor)
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
