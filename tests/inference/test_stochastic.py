"""A search with fresh draws at every step: its optimum, its steps, and its ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from ngvi.inference.search import Status
from ngvi.inference.stochastic import StochasticSearch
from tests.inference.numpy_problem import (
    OPTIMUM,
    TOLERANCE,
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
    # The limit is above the estimate, and says what it leaves out.
    test = search.certificate
    assert test.upper >= test.gap and bool(test.beside) == ("own" in TARGETS[name])


@pytest.mark.slow
def test_few_noisy_signals_are_no_limit():
    """One estimate of four groups that happens to be small says little of what is left."""
    target = Target(gaussian, noise=0.05, is_subsampled=True)
    missed = 0
    for seed in range(40):
        search = search_of(StochasticSearch, target, seed=seed)
        search.advance()
        gap = best(target, search.state)[1] - exact_bound(target, search.state)
        missed += gap > search.certificate.upper
    assert missed <= binom.ppf(0.999, 40, 0.05)


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


def test_a_fall_that_is_noise_is_none():
    """Values scatter by five nats, by the seeds of their groups; no step is taken back."""
    rng = np.random.default_rng(3)
    target = Target(gaussian, change=lambda _, value: value + 5.0 * rng.standard_normal())
    target.is_subsampled = True
    search = search_of(StochasticSearch, target)
    search.advance()
    assert search.status is Status.OPTIMUM and divergence(search.state, OPTIMUM) < 0.1
    assert len(search.trace) == len(target.asked)
