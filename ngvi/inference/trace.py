"""The trace of a fit's steps."""

from __future__ import annotations

import dataclasses
import math

from ngvi.inference.estimate import Estimate, Sample
from ngvi.inference.tables import in_digits


@dataclasses.dataclass(repr=False)
class Trace:
    """Numbers of each step, one entry in each list."""

    #: Minus the bound, in nats, as estimated before each step.
    losses: list[float] = dataclasses.field(default_factory=list)
    #: Standard errors of ``losses``, in nats.
    loss_errors: list[float] = dataclasses.field(default_factory=list)
    #: Step sizes; 1 is a whole natural-gradient step.
    step_sizes: list[float] = dataclasses.field(default_factory=list)
    #: Estimated distances of the bound to its optimum, in nats.
    distances: list[float] = dataclasses.field(default_factory=list)
    #: How many draws each step averaged over.
    num_draws: list[int] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.losses)

    def __repr__(self) -> str:
        if not self.losses:
            return "Trace(no steps)"
        first, last = (in_digits(-self.losses[index]) for index in (0, -1))
        return f"Trace({len(self)} steps, bound {first} at the first and {last} nats at the last)"

    @property
    def last_loss(self) -> float:
        """Loss of the last step, in nats; infinite before the first step."""
        return self.losses[-1] if self.losses else math.inf

    def add(self, estimate: Estimate, sample: Sample, step_size: float, distance: float) -> float:
        """Note a step.

        :param estimate: of the bound before it.
        :param distance: of the bound to its optimum before it, in nats.
        :return: the loss in nats.
        """
        self.losses.append(-estimate.value)
        self.loss_errors.append(estimate.error if len(estimate.values) > 1 else math.nan)
        self.step_sizes.append(step_size)
        self.distances.append(distance)
        self.num_draws.append(sum(len(group.points.weights) for group in sample))
        return self.losses[-1]

    def then(self, other: Trace) -> Trace:
        """Return the steps of both, one after the other."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Trace(*(one + two for one, two in pairs))
