"""A time limit that is kept: no evaluation begins after it."""

from __future__ import annotations

import numpy as np

from ngvi.inference.estimate import Estimate, Sample, State
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

    def bound(self, state: State, sample: Sample) -> Estimate:
        self._monitor.look_at_clock()
        return super().bound(state, sample)

    def gradient(self, state: State, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._monitor.look_at_clock()
        return super().gradient(state, theta)

    def log_density(self, state: State, theta: np.ndarray) -> np.ndarray:
        self._monitor.look_at_clock()
        return super().log_density(state, theta)

    def in_double(self, state: State, theta: np.ndarray) -> np.ndarray | None:
        self._monitor.look_at_clock()
        return super().in_double(state, theta)
