"""Prices of evaluations, measured at those that a fit makes anyway, and a limit of their time.

Each phase of a fit, and each call of its result, knows before it begins what it will take: its
evaluations by their price. It takes fewer draws where that is more than its part of what the fit
has taken.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from ngvi.inference.monitor import Monitor
from ngvi.inference.problem import Cost, Forwarding, Objective

#: Part of a fit's seconds that a phase may take unasked, and the seconds that any may.
PART, FREE = 0.2, 1.0
#: Draws that are made at any price.
FEW_DRAWS = 200


def num_affordable(result: Any, wanted: int) -> int:
    """Return how many draws of a result are evaluated: as many as wanted, or as its part pays for.

    :param result: a ``FitResult``, which has their price.
    """
    price, allowed = result.cost.prices.draw, max(PART * result.seconds, FREE)
    if not wanted * price > allowed:  # nor if the price is not known
        return wanted
    return min(wanted, max(FEW_DRAWS, int(allowed / price)))


class Timed(Forwarding):
    """An objective that asks for the time first, and notes what its evaluations take.

    A step is one of many evaluations where ascents, validations and checks are at work, none of
    which counts steps.

    :param monitor: raises :class:`~ngvi.inference.monitor.TimeLimitReached`.
    """

    def __init__(self, inner: Objective, monitor: Monitor) -> None:
        super().__init__(inner)
        self._monitor = monitor

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in ("bound", "gradient", "log_density", "in_double"):
            return found

        def timed(state: Any, at: Any) -> Any:
            self._monitor.look_at_clock()
            programs, start = self.inner.num_programs, time.perf_counter()
            answer = found(state, at)
            if self.inner.num_programs == programs:  # none was compiled meanwhile
                _note(self.inner.cost, name, at, time.perf_counter() - start)
            return answer

        return timed


def _note(cost: Cost, name: str, at: Any, seconds: float) -> None:
    """Note the least that an evaluation has taken, as other work on the machine adds to it."""
    seen = {}
    if name == "bound":
        num_points = sum(len(group.points.weights) for group in at)
        seen = {"group": seconds / len(at), "gradient": seconds / num_points}
    elif name != "in_double":
        seen = {"value" if name == "log_density" else name: seconds / max(len(at), 1)}
    for kind, new in seen.items():
        if not getattr(cost.prices, kind) <= new:
            cost.prices = dataclasses.replace(cost.prices, **{kind: new})
