"""An engine whose natural gradients come from values of the log density, for those that jump."""

from __future__ import annotations

from typing import Any

import numpy as np

from ngvi.fit.engine import Draws, Engine, Measured, Place
from ngvi.points import Points

#: Draws of a group: pairs of opposite ones.
GROUP = 256


def by_values(engine: Engine) -> Engine:
    """The engine without gradients; ordinary parameters stay as they are."""
    return engine._replace(evaluator=_Evaluator(engine.evaluator))


class _Evaluator:
    """An evaluator of ordinary draws, by the score function."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

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
        return self._inner.measure_values(place, draws)
