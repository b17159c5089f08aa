"""The search with fresh draws at every step, on an engine whose optimum is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ngvi.inference import stochastic
from ngvi.inference.adam import Adam
from ngvi.inference.engine import Measured, Step
from ngvi.inference.outcome import Reason
from ngvi.inference.progress import Progress
from ngvi.inference.settings import Settings
from ngvi.inference.stochastic import StochasticSearch
from ngvi.optim.radius import GROWTH, INITIAL_RADIUS, SHRINKAGE
from tests.inference.numpy_engine import Metric, Place, Target, divergence

CENTRE, SCALE = np.array([1.0, -1.0]), np.array([0.3, 2.0])
OPTIMUM = Place(CENTRE, np.log(SCALE))


def new_search(tolerance=0.05, max_steps=300, **options):
    target = Target(**{"centre": CENTRE, "scale": SCALE, "is_subsampled": True, **options})
    settings = Settings(tolerance, max_steps)
    progress = Progress(max_steps, enabled=False)
    return StochasticSearch(target.engine(), np.random.default_rng(0), settings, progress)


def searched(**options):
    one = new_search(**options)
    return one, one.run(one.engine.parameters.initial)


def step_of(length=0.2, slope=1.0):
    return Step(None, None, slope, length, length, 1.0)


# -- to the optimum -------------------------------------------------------------------


def test_without_noise_the_steps_are_whole():
    one, outcome = searched()
    assert outcome.converged
    assert divergence(outcome.place, OPTIMUM) < 0.05
    assert set(outcome.trace.step_sizes) == {1.0}
    assert one.num_groups == stochastic.MIN_GROUPS


def test_noise_is_averaged_by_shorter_steps_and_more_groups():
    one, outcome = searched(noise=3.0)
    assert outcome.converged
    assert divergence(outcome.place, OPTIMUM) < 0.2
    assert outcome.trace.step_sizes[-1] < stochastic.SHORT
    assert stochastic.MIN_GROUPS < one.num_groups <= stochastic.MAX_GROUPS


def test_steps_that_turn_about_for_ever_are_shortened():
    """Of thrice the metric's curvature a whole step ends on the other side, and further away."""
    one, outcome = searched(steepness=3.0, noise=3.0)
    assert outcome.converged and one.longest < 1.0
    assert 3.0 * divergence(outcome.place, OPTIMUM) < 0.2


def test_ordinary_parameters_rise_until_the_bound_has_stopped_rising():
    one, outcome = searched(
        of_ordinary=lambda value: (-0.5 * (value - 0.7) ** 2, 0.7 - value), is_subsampled=False
    )
    assert outcome.converged
    assert outcome.place.ordinary == pytest.approx(0.7, abs=0.05)
    assert one.num_plateaus == stochastic.NUM_PLATEAUS
    factor = stochastic.ORDINARY_DECREASE**stochastic.NUM_PLATEAUS
    assert one.ordinary_step_size == pytest.approx(stochastic.ORDINARY_STEP_SIZE * factor)


def test_steps_may_be_used_up():
    _, outcome = searched(max_steps=2, noise=3.0)
    assert outcome.reason is Reason.MAX_STEPS
    assert len(outcome.trace) == 2 and np.isfinite(outcome.remaining)


# -- where it goes wrong --------------------------------------------------------------


def test_a_place_that_is_not_finite_is_left_for_a_shorter_step():
    def wall(place, value):
        return math.nan if place.log_scale[1] > 0.8 else value

    _, outcome = searched(change=wall)
    assert outcome.converged
    assert divergence(outcome.place, OPTIMUM) < 0.1


def test_a_cliff_all_around_is_the_end_where_it_stands():
    here = new_search().place
    one, outcome = searched(
        change=lambda place, value: value if divergence(place, here) == 0.0 else math.nan
    )
    assert outcome.reason is Reason.STUCK
    assert one.refused == len(outcome.trace) == stochastic.MAX_REFUSED
    assert divergence(outcome.place, here) == 0.0


def test_a_model_that_is_no_longer_finite_anywhere_is_the_end():
    one = new_search()
    calls = []

    def broken(place, value):
        calls.append(value)
        return value if len(calls) <= 2 * stochastic.MIN_GROUPS else math.nan

    one.engine.evaluator.change = broken
    assert one.run(one.engine.parameters.initial).reason is Reason.STUCK
    assert one.refused == stochastic.MAX_REFUSED
    assert len(one.trace) == 2


def test_a_first_place_that_is_not_finite_is_the_end():
    one = new_search()
    one.engine.evaluator.change = lambda place, value: math.nan
    outcome = one.run(one.engine.parameters.initial)
    assert outcome.reason is Reason.STUCK and not outcome.trace.losses


def test_a_fall_beyond_noise_is_taken_back_and_the_radius_shrinks():
    """On the way to the optimum a cliff: beyond it the bound is finite, and 50 nats lower."""

    def cliff(place, value):
        return value - 50.0 if place.loc[0] > 0.7 and place.log_scale[0] > -0.5 else value

    one, outcome = searched(change=cliff, noise=0.3)
    assert outcome.converged
    assert divergence(outcome.place, OPTIMUM) < 0.1
    assert max(outcome.trace.losses) < 50  # no step began beyond the cliff


def test_only_what_is_no_noise_is_a_fall():
    one = new_search()
    one.before, one.step, one.level = (one.place, 0.2), step_of(), (-10.0, 0.5)

    def fallen(value, spread=0.0):
        values = value + spread * np.array([-1.0, 1.0, -1.0, 1.0, 0.0])
        return one._has_fallen(Measured(values, None, None))

    limit = -10.0 - stochastic.FALL * 0.5 - stochastic.MAX_FALL
    assert fallen(limit - 0.01) and not fallen(limit + 0.01)
    assert not fallen(limit - 0.01, spread=2.0)  # its own noise counts as well
    assert not fallen(limit - 1e6, spread=1e6)
    one.is_wary = True  # but that of a tail may not
    assert fallen(limit - 1e6, spread=1e6) and not fallen(limit - 0.01, spread=2.0)
    first = one.place
    one.place = OPTIMUM
    assert one._go_back() is None and one.place is first
    assert one.radius == SHRINKAGE * 0.2
    assert not fallen(-1e9)  # of a step that was taken back nothing more is asked


def test_without_a_step_there_is_no_way(monkeypatch):
    one = new_search(noise=1.0)
    monkeypatch.setattr(Metric, "step", lambda *_: None)
    assert one.run(one.engine.parameters.initial).reason is Reason.STUCK


# -- what a step tells ----------------------------------------------------------------


def test_the_radius_grows_past_a_step_at_whose_end_the_bound_rises():
    one = new_search()
    one._judge(0.1, step_of(length=0.5), noise=0.0)
    assert one.radius == GROWTH * 0.5
    one._judge(0.1, step_of(length=0.01), noise=0.0)
    assert one.radius == GROWTH * 0.5


def test_the_radius_falls_after_a_step_that_went_too_far_whatever_the_noise():
    one = new_search()
    one.signals.append(1.0)
    noisy = 1.0  # sd of the slope: sqrt(V 2 KL) = sqrt(0.4)
    one._judge(-1.0 - 1.9 * math.sqrt(0.4), step_of(), noisy)
    assert one.radius == INITIAL_RADIUS and one.signals
    one._judge(-1.0 - 2.1 * math.sqrt(0.4), step_of(), noisy)
    assert one.radius == SHRINKAGE * 0.2 and not one.signals


def test_the_step_size_is_wieners_where_the_signal_is_seen():
    one = new_search()
    one.signals.append(1.0)
    one._choose(signal=3.0, noise=1.0)
    assert one.rho == 0.75 and not one.signals
    assert one.distance == 0.5 * 3.0 + 0.5 * 0.75 * 1.0


def test_the_step_size_averages_where_noise_hides_the_signal():
    one = new_search(tolerance=10.0)
    sizes = []
    for _ in range(3):
        one._choose(signal=0.1, noise=1.0)
        sizes.append(one.rho)
    np.testing.assert_allclose(sizes, [1 / 2, 1 / 3, 1 / 4])
    assert one.num_groups == stochastic.MIN_GROUPS  # the noise is within the tolerance
    one.rho = stochastic.MIN_STEP_SIZE
    one._choose(signal=0.1, noise=1.0)
    assert one.rho == stochastic.MIN_STEP_SIZE


def test_groups_double_while_noise_dominates_and_steps_are_short():
    one = new_search()
    one.rho = 0.3
    one._choose(signal=0.1, noise=1.0)
    assert one.num_groups == 2 * stochastic.MIN_GROUPS
    assert one.rho == pytest.approx(2 * 0.3 / 1.3)
    one.num_groups, one.rho = stochastic.MAX_GROUPS, 0.01
    one._choose(signal=0.1, noise=1.0)
    assert one.num_groups == stochastic.MAX_GROUPS


def test_the_distance_averages_signals_and_is_cautious():
    one = new_search(tolerance=10.0)
    one._choose(signal=-0.3, noise=1.0)
    assert one.distance == 0.5  # too few signals: all the noise
    signals = np.random.default_rng(0).normal(0.2, 0.1, stochastic.MIN_WINDOW)
    one.signals[:] = signals[:-1]
    one._choose(signal=signals[-1], noise=1.0)
    error = signals.std() / math.sqrt(len(signals) - 1)
    gap = 0.5 * (signals.mean() + stochastic.CAUTION * error)
    assert one.distance == pytest.approx(gap + 0.5 * one.rho)
    one.signals[:] = [0.0] * stochastic.MAX_WINDOW
    one._choose(signal=0.0, noise=1.0)
    assert len(one.signals) == stochastic.MAX_WINDOW


def test_a_plateau_is_as_many_steps_that_gained_nothing():
    one = new_search()
    one.trace.losses[:] = list(np.linspace(50.0, 10.0, 2 * stochastic.PLATEAU))
    one._look_for_plateau()
    assert one.num_plateaus == 0
    one.trace.losses += [10.0] * (2 * stochastic.PLATEAU)
    one._look_for_plateau()
    one._look_for_plateau()  # from its own beginning there are not enough steps yet
    assert one.num_plateaus == 1
    assert one.plateau_start == len(one.trace) - stochastic.PLATEAU


def test_adam_is_adam():
    """Against the formulas of Kingma and Ba, with a first step of the learning rate."""
    adam, gradients = Adam(), np.random.default_rng(1).normal(size=(5, 3))
    mean = square = np.zeros(3)
    for count, gradient in enumerate(gradients, 1):
        (step,) = adam.steps([gradient], 0.1)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        expected = mean / (1 - 0.9**count) / (np.sqrt(square / (1 - 0.999**count)) + 1e-8)
        np.testing.assert_allclose(step, 0.1 * expected)
        if count == 1:
            np.testing.assert_allclose(step, 0.1 * np.sign(gradient), rtol=1e-6)
