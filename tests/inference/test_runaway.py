"""Latents and parameters that run to infinity are named, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.inference.search import Status
from ngvi.inference.verdict.outcome import NOT_CONVERGED
from ngvi.inference.verdict.runaway import runaway
from tests.inference.numpy_problem import CENTRE, SCALE, State, Target, gaussian, normal
from tests.inference.test_multistart import solved


def found(density, mean, scale, tolerance=0.0, **target):
    one = Target(density, **target)
    own = () if one.own is None else (np.asarray(target.pop("now", one.own), float),)
    state = State(np.asarray(mean, float), np.log(np.asarray(scale, float)), *own)
    return runaway(one.problem(), state, tolerance)


def half(theta):
    """A normal latent beside one that is flat to the right, as ``log`` of a flat positive one."""
    return normal(theta[:, :1]) + theta[:, 1]


ENDLESS = {
    "a mean that runs away": (half, [0.0, 40.0], [1.0, 1.0]),
    "a width without limit": (lambda x: normal(x[:, :1]), [0.0, 5.0], [1.0, 1e3]),
    "a separable regression": (lambda x: normal(x[:, :1]) - np.exp(-x[:, 1]), [0, 60], [1, 20]),
    "two that are one": (lambda x: normal(x[:, :1]) + 1e-3 * x[:, 1], [0.5, 90.0], [1.0, 30.0]),
    "two whose sum is known": (lambda x: normal(x.sum(1)[:, None]), [0, 0], [40, 80]),
    "where numbers end": (lambda x: x[:, 1] + normal(x[:, :1]) / (x[:, 1] < 700), [0, 60], [1, 1]),
}
PROPER = {
    "an optimum": (lambda x: gaussian(x), CENTRE, SCALE),
    "one that is far": (lambda x: gaussian(x, [1.0, 5e3], [1.0, 9.0]), [1.0, 5e3], [1.0, 9.0]),
    "half-way": (lambda x: gaussian(x, [1.0, 100.0], [1.0, 9.0]), [1.0, 50.0], [1.0, 9.0]),
    "wide": (lambda x: gaussian(x, [1.0, 0.0], [1.0, 1e5]), [1.0, 0.0], [1.0, 1e5]),
    "a scale in small units": (lambda x: gaussian(x, [1.0, 14.0], [1, 0.3]), [1, 14], [1, 0.3]),
    "heavy tails": (lambda x: normal(x[:, :1]) - np.log1p((x[:, 1] / 50.0) ** 2), [0, 0], [1, 90]),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_a_latent_that_runs_away_is_named(case):
    assert "'x[1]' runs away" in found(*ENDLESS[case]) and "proper prior" in found(*ENDLESS[case])


@pytest.mark.parametrize("case", PROPER)
def test_a_posterior_that_ends_is_none(case):
    assert found(*PROPER[case]) == ""


@pytest.mark.parametrize(
    ("limit", "now", "tolerance", "is_found"),
    [
        (1.0, 4.0, 0.0, True),
        (1.0, 4.0, 0.05, False),
        (100.0, 4.0, 0.05, True),
        (1.0, 1.0, 0.0, False),
        (0.0, 4.0, 0.0, False),
    ],
)
def test_a_parameter_at_its_limit_is_named_where_it_is_worth_something(
    limit, now, tolerance, is_found
):
    """The bound rises to ``limit`` as ``own`` grows: a negative binomial of Poisson counts."""

    def density(theta, own):
        return normal(theta) - limit * np.exp(-own[0])

    one = Target(density, own=[0.0])
    state = State(one.initial.mean, one.initial.log_scale, [now])
    words = runaway(one.problem(), state, tolerance)
    assert ("parameter 'own'" in words) is is_found


def test_a_search_that_runs_away_is_none_that_has_converged():
    outcome = solved(Target(half))
    assert outcome.verdict == NOT_CONVERGED and "'x[1]' runs away" in outcome.finding.sentence
    assert outcome.optimum.status is not Status.OPTIMUM
