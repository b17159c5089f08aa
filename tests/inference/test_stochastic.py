"""A search with fresh draws at every step: its optimum, its steps, and its ends."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ngvi.inference.options import FitOptions, StochasticOptions
from ngvi.inference.search import Status
from ngvi.inference.stochastic import StochasticSearch, signal_and_noise
from tests.inference.numpy_problem import (
    CENTRE,
    OPTIMUM,
    SCALE,
    TOLERANCE,
    Metric,
    State,
    Target,
    best,
    divergence,
    exact_bound,
    gaussian,
    normal,
    search_of,
)


def with_parameters(theta, own):
    return gaussian(theta) - 5.0 * np.sum((own - [1.0, 2.0]) ** 2)


TARGETS = {
    "no noise": {"smooth": gaussian},
    "some noise": {"smooth": gaussian, "noise": 0.4},
    "much noise": {"smooth": gaussian, "noise": 3.0},
    "a kink": {"smooth": lambda x: -3.0 * np.abs(x).sum(-1), "noise": 0.4},
    "counts": {"smooth": lambda x: (3.0 * x - np.exp(x)).sum(-1) + normal(x / 3.0)},
    "steeper than the metric": {"smooth": lambda x: 2.5 * gaussian(x), "noise": 0.4},
    "parameters": {"smooth": with_parameters, "own": np.zeros(2), "noise": 0.4},
}


@pytest.mark.parametrize("name", TARGETS)
def test_it_reaches_the_optimum_about_within_the_tolerance(name):
    target = Target(**TARGETS[name], is_subsampled=True)
    search = search_of(StochasticSearch, target)
    search.advance()
    assert search.status is Status.OPTIMUM and search.certificate.is_met(TOLERANCE)
    gap = best(target, search.state)[1] - exact_bound(target, search.state)
    assert -1e-4 < gap < 1.5 * TOLERANCE


def test_noise_makes_steps_short_and_groups_many():
    sizes = {}
    for noise in (0.0, 3.0):
        target = Target(gaussian, noise=noise, is_subsampled=True)
        search = search_of(StochasticSearch, target)
        search.advance()
        sizes[noise] = search.trace.step_sizes[-1], max(len(some) for _, some in target.asked)
    options = StochasticOptions()
    assert sizes[0.0] == (1.0, options.min_groups)
    assert sizes[3.0][0] < 0.25 and options.min_groups < sizes[3.0][1] <= options.max_groups


def test_signal_and_noise_are_those_of_the_mean():
    """``V`` of 4 groups, and the squared norm without it, on average over their draws."""
    target, state = Target(gaussian, noise=1.0), State(CENTRE + SCALE, np.log(SCALE))
    metric, rng = Metric(target, state, []), np.random.default_rng(0)
    found = [
        signal_and_noise(metric, target.bound(state, target.sample(rng, 4))) for _ in range(1000)
    ]
    signal, noise = np.mean(found, 0)
    assert noise == pytest.approx(np.sum(SCALE**2) / 4, rel=0.05)
    assert signal == pytest.approx(2.0, abs=0.15)  # two means, one standard deviation off


def only_at_the_start(state, value):
    return value if np.abs(state.mean).max() < 1e-9 else math.nan


ENDS = {
    "no more steps": (Status.MAX_STEPS, {"noise": 100.0}, {"max_steps": 7}),
    "a cliff all around": (Status.STUCK, {"change": only_at_the_start}, {}),
    "not a number": (Status.STUCK, {"change": lambda *_: math.nan}, {}),
}


@pytest.mark.parametrize("name", ENDS)
def test_it_says_why_it_ended(name):
    status, options, monitor = ENDS[name]
    search = search_of(StochasticSearch, Target(gaussian, is_subsampled=True, **options), **monitor)
    search.advance()
    assert search.status is status and len(search.trace) <= 20
    assert np.isfinite([*search.state.mean, *search.state.log_scale]).all()


@pytest.mark.parametrize("beyond", [math.nan, -1e3])
def test_from_a_state_without_a_bound_or_far_below_it_goes_back(beyond):
    def wall(state, value):
        return value if state.mean[0] < 1.5 else value + beyond

    target = Target(gaussian, change=wall, noise=0.3, is_subsampled=True)
    search = search_of(StochasticSearch, target, max_steps=60)
    search.advance()
    assert search.state.mean[0] < 1.5 and max(state.mean[0] for state, _ in target.asked) > 1.5
    losses = np.array(search.trace.losses)
    assert np.isfinite(losses).all() and losses.max() < 500.0


def test_a_fall_that_is_noise_is_none():
    """Values scatter by five nats, by the seeds of their groups; no step is taken back."""
    rng = np.random.default_rng(3)
    target = Target(gaussian, change=lambda _, value: value + 5.0 * rng.standard_normal())
    target.is_subsampled = True
    search = search_of(StochasticSearch, target)
    search.advance()
    assert search.status is Status.OPTIMUM and divergence(search.state, OPTIMUM) < 0.1
    assert len(search.trace) == len(target.asked)


def test_the_rate_of_parameters_falls_on_plateaus_before_the_end():
    options = FitOptions(stochastic=StochasticOptions(num_plateaus=1))
    lengths = []
    for given in (options, None):
        target = Target(with_parameters, own=np.zeros(2), noise=0.4, is_subsampled=True)
        search = search_of(StochasticSearch, target, options=given)
        search.advance()
        lengths.append(len(search.trace))
    assert search.status is Status.OPTIMUM and lengths[0] < lengths[1]
    np.testing.assert_allclose(search.state.own, [1.0, 2.0], atol=0.1)
