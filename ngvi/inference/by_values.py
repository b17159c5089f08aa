"""An engine whose natural gradients come from values of the log density, for those that jump.

It jumps in the latents. Parameters of the model's own have their gradients, at a few of the draws:
an optimum at which they had stayed as they were would be none.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from ngvi.families.points import Points
from ngvi.inference.audit import difference
from ngvi.inference.engine import Around, Draws, Engine, Measured, Place
from ngvi.inference.outcome import Outcome, Reason, after_trial
from ngvi.inference.stochastic import MAX_GROUPS, StochasticSearch

#: Draws of a group: pairs of opposite ones; and the pairs of these that see ordinary gradients.
GROUP, PAIRS = 256, 16
#: Steps of a trial, how often there is one, and the draws that judge it.
TRIAL_STEPS, MAX_TRIALS, TRIAL_DRAWS = 20, 12, 8192


def by_values(engine: Engine) -> Engine:
    """The engine without gradients of the latents."""
    return engine._replace(evaluator=_Evaluator(engine.evaluator, engine.parameters.has_ordinary))


def tried(search: StochasticSearch, outcome: Outcome) -> Outcome:
    """An optimum that values claim, or what more steps with the most draws made of it.

    Where the bound is flatter than the Fisher metric, the natural gradient promises less than
    there is to gain. The steps go on for as long as draws of their own see a gain.
    """
    tolerance, search.limit = search.settings.tolerance, math.inf
    for _ in range(MAX_TRIALS):
        old = outcome.place
        search.num_groups, search.rho = MAX_GROUPS, 1.0
        search.signals.clear()
        search.least = len(search.trace) + TRIAL_STEPS
        new = search.run(old)
        gain, error = difference(search.engine, old, new.place, search.rng, TRIAL_DRAWS)
        verdict = after_trial(gain, error, tolerance) if math.isfinite(gain) else Reason.NOISE
        if gain > 0:
            outcome = new
        if verdict is None and new.converged:
            continue
        remaining = max(outcome.remaining, gain, error)
        return dataclasses.replace(outcome, reason=verdict or new.reason, remaining=remaining)
    return dataclasses.replace(outcome, reason=Reason.RIDGE)


class _Evaluator(Around):
    """An evaluator of ordinary draws, by the score function."""

    def __init__(self, inner: Any, has_ordinary: bool) -> None:
        super().__init__(inner)
        self._has_ordinary = has_ordinary

    def draws(self, rng: np.random.Generator, num_groups: int) -> list[Draws]:
        """Fresh groups of antithetic draws."""
        half = rng.standard_normal((num_groups, GROUP // 2, self._inner.dim))
        weights = np.full(GROUP, 1.0 / GROUP)
        seeds = rng.integers(2**31, size=num_groups)
        return [
            Draws(Points(np.concatenate([noise, -noise]), weights), int(seed))
            for noise, seed in zip(half, seeds, strict=True)
        ]

    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        """The bound and its natural gradient, from values alone."""
        measured = self._inner.measure_values(place, draws)
        if not self._has_ordinary:
            return measured
        some = np.r_[:PAIRS, GROUP // 2 : GROUP // 2 + PAIRS]
        weights = np.full(len(some), 1.0 / len(some))
        few = [Draws(Points(group.points.noise[some], weights), group.seed) for group in draws]
        ordinary = self._inner.measure(place, few).mean.ordinary
        return measured._replace(mean=measured.mean._replace(ordinary=ordinary))
