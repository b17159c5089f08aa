"""``time_limit=`` and ``effort=`` of ``fit``, by a clock of our own."""

import numpy as np

from ngvi.inference import monitor as clock
from ngvi.inference.api import optimise
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
    def __init__(self, inner, clock):
        super().__init__(inner)
        self.clock, self.last = clock, 0.0

    def _tick(self):
        self.clock.seconds += 1.0

    def bound(self, *args):
        self._tick()
        return self.inner.bound(*args)

    def gradient(self, *args):
        self._tick()
        return self.inner.gradient(*args)

    def log_density(self, *args):
        self._tick()
        return self.inner.log_density(*args)


def solved(monkeypatch, target=None, monitor=None, **options):
    times = Clock()
    monkeypatch.setattr(clock.time, "perf_counter", times.perf_counter)
    problem = (target or Target(gaussian)).problem()
    problem = problem.replace(objective=Slow(problem.objective, times))
    request = Request(**{"tolerance": 0.05, "max_steps": 400, "started": 0.0, **options})
    return optimise(problem, np.random.default_rng(0), request, monitor=monitor), times


def test_a_limit_never_withholds_what_was_verified(monkeypatch):
    """Once there is a claim, there is one with every longer limit."""
    whole, times = solved(monkeypatch)
    assert whole.converged
    claims = []
    for limit in range(1, int(times.seconds), 3):
        outcome, _ = solved(monkeypatch, time_limit=float(limit))
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
