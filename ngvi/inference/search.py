"""The base of searches from one start, which go on when asked to, and say how they ended."""

from __future__ import annotations

import enum
import math
from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from ngvi.inference.estimate import Estimate, Sample, State
from ngvi.inference.monitor import Monitor
from ngvi.inference.options import LEVELS, FitOptions
from ngvi.inference.problem import Problem
from ngvi.inference.trace import Trace
from ngvi.inference.verdict.certificate import UNKNOWN


class Status(enum.Enum):
    """Why a search stopped."""

    OPTIMUM = "the upper limit of what is left is within the tolerance"
    MAX_STEPS = "all steps are used"
    STUCK = "no step gains, or next to nothing"
    OVERFITTED = "the bound rises over the draws that are learnt from alone"
    NOISE = "the most draws leave more than the tolerance"
    RISING = "steps keep gaining"
    CONTRADICTED = "values of the log density contradict its gradients"
    UNBOUNDED = "a standard deviation grows without limit"


#: Ends of a search over fixed draws without an optimum: a latent may run to infinity.
NO_PROGRESS = (Status.STUCK, Status.OVERFITTED, Status.NOISE, Status.RISING)

Steps = Generator[None, None, Status | None]


class Context(NamedTuple):
    """Everything that a search or a check needs besides a state."""

    problem: Problem
    rng: np.random.Generator
    tolerance: float  #: What may be left to an optimum, in nats.
    options: FitOptions


class Search:
    """A search from one start, which goes on when it is asked to.

    :ivar state: where it is.
    :ivar status: why it has ended, or None.
    :ivar gap: what is left to the optimum, estimated in nats.
    :ivar certificate: of the state, if it has ended at an optimum.
    :ivar trace: its steps.
    """

    def __init__(self, context: Context, monitor: Monitor, state: State) -> None:
        self.problem, self.rng, self.tolerance, self.options = context
        self.monitor, self.state, self.trace = monitor, state, Trace()
        self.status: Status | None = None
        self.gap, self.certificate = math.inf, UNKNOWN
        self._steps = self._run()

    def advance(self, max_cost: float = math.inf, max_steps: float = math.inf) -> None:
        """Take steps until it ends.

        :param max_cost: in gradients, from now on.
        :param max_steps: from now on.
        """
        cost = self.problem.objective.cost
        limit, last = cost.total + max_cost, len(self.trace) + max_steps
        while self.status is None and cost.total < limit and len(self.trace) < last:
            if self._is_at_a_rest():
                return
            try:
                next(self._steps)
            except StopIteration as end:
                self.status = end.value

    def _run(self) -> Steps:
        """Yield after each step, and return why it has ended."""
        raise NotImplementedError

    @property
    def _rounding(self) -> float:
        """The divergence, in nats, that rounding alone may give a step."""
        space = self.problem.space
        return LEVELS.rounding_units * space.dim * space.eps

    def _is_at_a_rest(self) -> bool:
        return False

    def _record(self, estimate: Estimate, sample: Sample, step_size: float) -> None:
        loss = self.trace.add(estimate, sample, step_size, self.gap)
        self.monitor.after_step(loss, self.gap)
