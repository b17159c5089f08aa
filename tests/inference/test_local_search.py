"""A search over fixed draws reaches the optimum, or says why not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ngvi.inference.local_search import LocalSearch
from ngvi.inference.options import CertificateOptions, FitOptions, LocalSearchOptions
from ngvi.inference.search import Status
from tests.inference.numpy_problem import (
    TOLERANCE,
    Target,
    best,
    correlated,
    exact_bound,
    gaussian,
    mixture,
    normal,
    search_of,
)


def far(theta):
    """Thousands of standard deviations from the start, and scales that are 10^4 apart."""
    return gaussian(theta, np.array([3000.0, -50.0]), np.array([100.0, 0.01]))


def with_parameters(theta, own):
    return gaussian(theta - own[:2]) - 5.0 * np.sum((own - [1.0, 2.0, 3.0]) ** 2)


def coupled(theta, own):
    """Parameters and means have a long way to go together, along a ridge."""
    return normal(theta - np.array([[1.0, 0.5], [2.0, -1.0]]) @ own) - 0.02 * np.sum(
        (own - [10.0, -7.0]) ** 2
    )


def scales_of_parameters(theta, own):
    """A location in thousands, and the logarithm of a scale."""
    return normal(theta) - 0.5 * ((own[0] - 3000.0) / 50.0) ** 2 - own[1] - 10.0 * np.exp(-own[1])


TARGETS = {
    "a Gaussian": {"smooth": gaussian},
    "correlated": {"smooth": correlated},
    "thousands away": {"smooth": far},
    "heavy tails": {"smooth": lambda x: -2.5 * np.log1p((x - 1.0) ** 2 / 4.0).sum(-1)},
    "binary data": {
        "smooth": lambda x: (
            normal(x / 2.0) - np.logaddexp(0, -3 * x[:, 0] - x[:, 1]) - np.logaddexp(0, x[:, 0])
        )
    },
    "counts": {"smooth": lambda x: (3.0 * x - np.exp(x)).sum(-1) + normal(x / 3.0)},
    "a funnel": {
        "smooth": lambda x: normal(x[:, :1] / 2.0) + normal(x[:, 1:] * np.exp(-x[:, :1] / 2.0))
    },
    "a kink": {"smooth": lambda x: -3.0 * np.abs(x).sum(-1)},
    "a banana": {"smooth": lambda x: -((x[:, 0] - 1) ** 2) - 5 * (x[:, 1] - x[:, 0] ** 2) ** 2},
    "another mode": {"smooth": mixture((1.0, [0.0, 0.0], 1.0), (2.0, [4.0, 4.0], 0.5))},
    "three latents": {"smooth": lambda x: gaussian(x, np.ones(3), np.full(3, 0.1)), "dim": 3},
    "noise": {"smooth": gaussian, "noise": 0.4},
    "an integral": {
        "smooth": lambda x: (3.0 * x - np.exp(x)).sum(-1) + normal(x / 3.0),
        "is_exact": True,
    },
    "parameters": {"smooth": with_parameters, "own": np.zeros(3)},
    "coupled parameters": {"smooth": coupled, "own": np.zeros(2)},
    "parameters in thousands": {"smooth": scales_of_parameters, "own": np.zeros(2)},
    # At 0.999 half a nat is left where the metric promises next to nothing.
    "a valley of a mean field": {
        "smooth": lambda x: correlated(x, 0.999),
        "leaves_out_correlations": True,
        "start": (1.0, 0.05),
    },
}


@pytest.mark.parametrize("name", TARGETS)
def test_it_reaches_the_optimum_within_the_tolerance(name):
    target = Target(**TARGETS[name])
    search = search_of(LocalSearch, target)
    search.advance()
    assert search.status is Status.OPTIMUM
    assert search.certificate.is_met(TOLERANCE) and search.gap <= TOLERANCE
    gap = best(target, search.state)[1] - exact_bound(target, search.state)
    assert -1e-4 < gap < TOLERANCE
    assert target.cost.evaluations < 20_000 and len(search.trace) < 60


def test_a_smaller_tolerance_is_met_from_an_optimum():
    target = Target(lambda x: (3.0 * x - np.exp(x)).sum(-1) + normal(x / 3.0))
    search = search_of(LocalSearch, target, tolerance=0.3)
    search.advance()
    before = search.certificate.upper
    search.refine(1e-3)
    assert search.status is Status.OPTIMUM and search.certificate.upper < 1e-3 < before
    gap = best(target, search.state)[1] - exact_bound(target, search.state)
    assert gap < 1e-3


# -- where it ends otherwise -----------------------------------------------------------


def only_at_the_start(state, value):
    return value if np.abs(state.mean).max() < 1e-9 else math.nan


ENDS = {
    "a cliff all around": (Status.STUCK, {"smooth": gaussian, "change": only_at_the_start}, {}),
    "not a number": (Status.STUCK, {"smooth": lambda x: math.nan * x[:, 0]}, {}),
    "noise": (Status.NOISE, {"smooth": gaussian, "noise": 30.0}, {}),
    "a jump": (
        Status.CONTRADICTED,
        {
            "smooth": lambda x: -2.5 * np.log1p((x - 1.0) ** 2 / 4.0).sum(-1),
            "unseen": lambda x: 5.0 * (x[:, 0] > 1.0),
        },
        {},
    ),
    "no more steps": (Status.MAX_STEPS, {"smooth": far}, {"max_steps": 3}),
    "a network's ripples": (
        Status.NOISE,
        {"smooth": lambda x: 60.0 * np.cos(40.0 * x).sum(-1) + normal(x)},
        {},
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_it_says_why_it_ended(name):
    status, target, monitor = ENDS[name]
    search = search_of(LocalSearch, Target(**target), **monitor)
    search.advance()
    assert search.status is status
    assert not search.certificate.is_met(TOLERANCE)
    assert np.isfinite(search.state.mean).all() and np.isfinite(search.state.log_scale).all()


def test_draws_that_are_overfitted_are_followed_by_four_times_as_many():
    """What a few draws' noise promises of a flat bound, others do not see."""
    counts, states = {}, {}
    for max_groups in (64, 2):
        target = Target(lambda x: normal(x / 100.0), noise=0.3, dim=8)
        options = FitOptions(local=LocalSearchOptions(check_every=2, max_groups=max_groups))
        search = search_of(LocalSearch, target, options=options)
        search.advance()
        counts[max_groups] = {len(sample) for _, sample in target.asked}
        states[max_groups] = search.status
    assert {1, 4, 16} <= counts[64] and counts[2] == {1}
    assert states == {64: Status.NOISE, 2: Status.OVERFITTED}
    states = search.state, target.asked[-1][0]  # it ends at the best, by others as well
    draws = target.sample(np.random.default_rng(1), 200)
    kept, last = (target.bound(state, draws).value for state in states)
    assert kept > last


# -- steps -----------------------------------------------------------------------------


WALLS = {
    "nan beyond a wall": lambda x: np.where(np.abs(x[:, 0]) < 2.6, gaussian(x), math.nan),
    "no density beyond a wall": lambda x: np.where(np.abs(x[:, 0]) < 2.6, gaussian(x), -math.inf),
    "an overflow": lambda x: gaussian(x) - np.exp(np.exp(60.0 * (x[:, 0] - 2.6))),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", WALLS)
def test_no_step_is_taken_to_a_state_that_is_not_finite(name):
    start = (np.array([-0.5, 0.0]), 0.3)
    target = Target(WALLS[name], start=start)
    search = search_of(LocalSearch, target)
    while search.status is None:
        search.advance(max_steps=1)
        state = search.state
        assert np.isfinite([*state.mean, *state.log_scale]).all()
        assert math.isfinite(search.trace.last_loss)
    seen = [target.bound(state, sample).is_finite for state, sample in list(target.asked)]
    assert not all(seen)  # it has been there, and has gone back


# -- in pieces -------------------------------------------------------------------------


@pytest.mark.parametrize("few_latents", [0, 3])
def test_flat_directions_are_found_by_steps_where_the_quadratic_model_is_not_believed(few_latents):
    """A valley whose metric promises next to nothing at its side."""
    options = FitOptions(certificate=CertificateOptions(few_latents=few_latents, flat=0.0))
    target = Target(lambda x: correlated(x, 0.99), start=(0.3, 0.14))
    search = search_of(LocalSearch, target, options=options)
    search.advance()
    left = best(target, search.state)[1] - exact_bound(target, search.state)
    assert search.status is Status.OPTIMUM
    assert left < TOLERANCE or not few_latents
