"""What evaluations take, and what phases make of it."""

import dataclasses
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest

from ngvi.inference.prices import Timed, num_affordable
from ngvi.inference.problem import Cost, Prices
from tests.inference.numpy_problem import Target, gaussian, monitored


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is told to go on."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(time, "perf_counter", lambda: now.seconds)
    return now


def slow(clock, **seconds):
    """A target whose values take so many seconds each."""

    def density(theta):
        clock.seconds += len(theta) * seconds["value"]
        return gaussian(theta)

    return Target(density)


def test_prices_are_the_least_that_was_seen_without_compilation(clock):
    target = slow(clock, value=2.0)
    timed, state = Timed(target, monitored()), target.initial
    rng = np.random.default_rng(0)
    timed.log_density(state, np.zeros((5, 2)))
    assert target.cost.prices.value == 2.0 and math.isnan(target.cost.prices.gradient)
    timed.bound(state, timed.sample(rng, 3))
    prices = target.cost.prices
    assert prices.gradient * 5 == prices.group  # of five points, and without products
    change = clock.seconds
    timed.gradient(state, np.zeros((1, 2)))
    assert target.cost.prices.gradient == min(prices.gradient, clock.seconds - change)


def test_a_slow_model_is_told_what_a_fit_takes_after_its_first_value(clock):
    target = slow(clock, value=60.0)
    timed = Timed(target, monitored())
    with pytest.warns(UserWarning, match="takes 60 s.* 17 hours. Vectorise"):
        timed.log_density(target.initial, np.zeros((1, 2)))
    timed.log_density(target.initial, np.zeros((1, 2)))  # and no more


def test_what_compiles_has_no_price():
    class Compiles(Target):
        num_programs = property(lambda self: time.perf_counter())

    target = Compiles(gaussian)
    Timed(target, monitored()).log_density(target.initial, np.zeros((5, 2)))
    assert math.isnan(target.cost.prices.value)


def test_what_a_fit_will_take_is_said_while_the_first_evaluations_run(clock):
    from numpyro_ngvi.inference.objective import wait

    class Running:
        def is_ready(self):
            clock.seconds += 5.0
            return False

    with pytest.warns(UserWarning, match="takes more than 2.5 s.* 0.69 hours. Vectorise"):
        wait([Running()], 2)


@pytest.mark.parametrize(
    "price, seconds, left, expected",
    [
        (math.nan, 1.0, 0.0, 4000),
        (1e-4, 0.1, math.inf, 4000),  # less than a second
        (0.01, 100.0, math.inf, 2000),  # a fifth of the fit
        (1.0, 100.0, math.inf, 200),  # the fewest that say anything
        (1.0, 100.0, 50.0, 50),  # of a time limit
        (1.0, 100.0, -1.0, 8),
    ],
)
def test_draws_of_the_report_take_a_fifth_of_the_fit(price, seconds, left, expected):
    cost = dataclasses.replace(Cost(), prices=Prices(value=price))
    assert num_affordable(SimpleNamespace(cost=cost, seconds=seconds), 4000, left) == expected


def test_counts_are_the_evaluations_by_kind_without_their_prices():
    cost = Cost(gradients=3, values=7, prices=Prices(value=0.1))
    counts = {"gradients": 3, "products": 0, "values": 7, "passes": 0, "compiled": 0, "reused": 0}
    assert cost.counts == counts


def test_what_is_under_way_is_waited_for_numpyro():
    passes = pytest.importorskip("numpyro_ngvi.inference.objective")
    answers = iter([False, False, True])
    passes.wait([SimpleNamespace(is_ready=lambda: next(answers))], count=4)
    assert not list(answers)
