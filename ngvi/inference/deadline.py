"""A time limit that is kept: no evaluation begins after it."""

from __future__ import annotations

from typing import Any

from ngvi.inference.monitor import Monitor
from ngvi.inference.problem import Forwarding, Objective


class Timed(Forwarding):
    """An objective that asks for the time first.

    A step is one of many evaluations where ascents, validations and checks are at work, none of
    which counts steps.

    :param monitor: raises :class:`~ngvi.inference.monitor.TimeLimitReached`.
    """

    def __init__(self, inner: Objective, monitor: Monitor) -> None:
        super().__init__(inner)
        self._monitor = monitor

    def __getattr__(self, name: str) -> Any:
        if name in ("bound", "gradient", "log_density", "in_double"):
            self._monitor.look_at_clock()
        return super().__getattr__(name)
