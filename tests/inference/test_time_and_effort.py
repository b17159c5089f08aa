"""``time_limit=`` and ``effort=`` of ``fit``, by a clock of our own."""

from types import SimpleNamespace

import numpy as np

from ngvi.inference import monitor as clock
from ngvi.inference.api import optimise
from ngvi.inference.prices import num_affordable
from ngvi.inference.problem import Forwarding
from ngvi.inference.request import Request
from tests.inference.numpy_problem import Target, gaussian


class Clock:
    """A second for each evaluation."""

    def __init__(self):
        self.seconds = 0.0

    def perf_counter(self):
        return self.seconds


class Slow(Forwarding):
    """Takes a second for each evaluation, or each draw."""

    def __init__(self, inner, clock, by_draws):
        super().__init__(inner)
        self.clock, self.by_draws = clock, by_draws

    def __getattr__(self, name):
        found = super().__getattr__(name)
        if name not in ("bound", "gradient", "log_density"):
            return found

        def slow(state, at):
            draws = sum(len(one.points.weights) for one in at) if name == "bound" else len(at)
            self.clock.seconds += draws if self.by_draws else 1.0
            return found(state, at)

        return slow


def solved(monkeypatch, target=None, monitor=None, by_draws=False, **options):
    times = Clock()
    monkeypatch.setattr(clock.time, "perf_counter", times.perf_counter)
    problem = (target or Target(gaussian)).problem()
    problem = problem.replace(objective=Slow(problem.objective, times, by_draws))
    request = Request(**{"tolerance": 0.05, "max_steps": 400, "started": 0.0, **options})
    return optimise(problem, np.random.default_rng(0), request, monitor=monitor), times


def test_a_limit_never_withholds_what_was_verified(monkeypatch):
    """Once there is a claim, there is one with every longer limit."""
    whole, times = solved(monkeypatch, by_draws=True)
    assert whole.converged
    claims = []
    for limit in range(1, 2 * int(times.seconds), 100):
        outcome, _ = solved(monkeypatch, by_draws=True, time_limit=float(limit))
        claims.append(outcome.converged)
    assert claims == sorted(claims)
    assert claims[-1]


def test_no_evaluation_of_the_search_begins_after_the_limit(monkeypatch):
    """What is left to do is a validation, of few draws, and what the checks ask."""
    _, whole = solved(monkeypatch)
    for limit in (3.0, whole.seconds // 2):
        outcome, times = solved(monkeypatch, time_limit=limit)
        assert outcome.ending is not None
        assert times.seconds < limit + 30


def test_a_limit_holds_for_the_report_as_well(monkeypatch):
    """A second for each draw; the report is made of as many as a fifth of the fit pays for."""
    for limit in (500.0, 1000.0, 2100.0):
        outcome, times = solved(monkeypatch, by_draws=True, time_limit=limit)
        result = SimpleNamespace(cost=outcome.search.problem.objective.cost, seconds=times.seconds)
        assert result.cost.prices.value == result.cost.prices.gradient == 1.0
        draws = num_affordable(result, 16_000, limit - times.seconds)
        assert draws >= min(200, limit / 5) and times.seconds + draws < limit + 2
        assert (outcome.ending is None) is (limit == 2100.0)
