"""Run the inferences of one PPL, with the clock stopped whenever they are looked at."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from examples.demo.bound import ExactBound
from examples.demo.credit import Credit
from examples.demo.settings import BOUND_DRAWS, INIT_SCALE, Method


@dataclass
class Result:
    """What one guide achieved."""

    ppl: str
    method: Method
    num_steps: int
    seconds: list[float] = field(default_factory=list)  #: since the start, at 0 and each look
    bounds: list[float] = field(default_factory=list)  #: exact, in nats, at the same times
    mean: np.ndarray | None = None  #: of the final posterior
    sd: np.ndarray | None = None
    estimate: float = 0.0  #: of the final bound by the stock ELBO
    standard_error: float = 0.0

    @property
    def first_step(self) -> float:
        """Seconds for building the guide and taking the first step, which compiles."""
        return self.seconds[1]

    @property
    def step_milliseconds(self) -> float:
        """Time of a step after the first."""
        return 1e3 * (self.seconds[-1] - self.first_step) / (self.num_steps - 1)


def race(
    ppl,
    methods: Sequence[Method],
    data: Credit,
    exact: ExactBound,
    num_steps: int,
    seed: int,
    advance: Callable[[Method, int], None],
) -> list[Result]:
    """Fit every guide, by turns of a few steps.

    Turns, because the speed of a shared machine drifts: it drifts for all of them alike.

    :param ppl: the module ``with_pyro`` or ``with_numpyro``.
    :param advance: told after each turn who has taken how many steps.
    """
    dim = data.X.shape[1]
    start = exact.value(np.zeros(dim), INIT_SCALE**2 * np.eye(dim))
    results = [
        Result(ppl.NAME, m, m.num_steps(num_steps), seconds=[0.0], bounds=[start]) for m in methods
    ]
    inferences = {}
    for turn in zip_longest(*(_turns(result.num_steps) for result in results), fillvalue=0):
        for method, result, steps in zip(methods, results, turn, strict=True):
            if not steps:
                continue
            clock = time.perf_counter()
            if method not in inferences:
                inferences[method] = ppl.Inference(method, data.X, data.y, num_steps, seed)
            inferences[method].run(steps)
            result.seconds.append(result.seconds[-1] + time.perf_counter() - clock)
            mean, covariance = inferences[method].posterior()
            result.bounds.append(exact.value(mean, covariance))
            result.mean, result.sd = mean, np.sqrt(np.diag(covariance))
            advance(method, steps)
    for method, result in zip(methods, results, strict=True):
        draws = inferences[method].bound_draws(BOUND_DRAWS, seed + 1)
        result.estimate = float(draws.mean())
        result.standard_error = float(draws.std(ddof=1) / np.sqrt(len(draws)))
    return results


def warm_up(ppl, method: Method, data: Credit) -> None:
    """Two steps, so that what a process does only once is on nobody's clock.

    Compiling the step stays on it: every inference compiles its own.
    """
    ppl.Inference(method, data.X, data.y, num_steps=2, seed=0).run(2)


def _turns(num_steps: int, looks: int = 60) -> list[int]:
    # The first step alone, because it is the one that compiles.
    ends = np.unique(np.linspace(1, num_steps, min(looks, num_steps)).astype(int))
    return np.diff(ends, prepend=0).tolist()
