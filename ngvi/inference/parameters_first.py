"""The first steps where the model has many parameters of its own: a pair of draws for each.

A network's weights want thousands of small steps, and a gradient of them is known as well from one
draw as from forty, because their Gaussian hardly matters to where they are to go. So they move by
Adam with every antithetic pair, as under stock SVI, and the Gaussian once in eight pairs, whose
natural gradients belong to the same Gaussian and are averaged. Its step sizes and trust region are
those of :mod:`~ngvi.inference.stochastic`, and so is the fall of Adam's rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ngvi.inference.adam import Adam
from ngvi.inference.engine import Direction, Draws, Engine, Measured
from ngvi.inference.geometry import Geometry
from ngvi.inference.outcome import Reason
from ngvi.inference.stochastic import ORDINARY_DECREASE, PLATEAU, StochasticSearch
from ngvi.optim.radius import INITIAL_RADIUS

#: So many numbers of the model's own are many.
MANY = 11
#: Pairs of a step, and draws of each.
NUM_PAIRS, PAIR = 8, 2
#: Adam's rate at first. At 0.1 units of ReLU die within thirty steps, where 0.03 leads a thousand
#: nats higher; 0.01 leads there as well, in twice the steps.
RATE = 0.03
#: Steps at most.
STEPS = 400


def has_many(engine: Engine) -> bool:
    """Whether the model's own parameters come first."""
    parameters = engine.parameters
    if not parameters.has_ordinary:
        return False
    return sum(map(np.size, parameters.own(parameters.initial))) >= MANY


@dataclass
class ParametersFirst(StochasticSearch):
    """One search; see the module.

    Its engine's groups are pairs.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.num_groups = self.most_groups = NUM_PAIRS
        self.limit, self.ordinary_step_size = STEPS, RATE
        self.first = self.place  #: before the steps of the last pairs

    def _measured(self) -> tuple[list[Draws], Measured]:
        """Move the model's own parameters with each pair, and average what the Gaussian sees."""
        evaluator, parameters = self.engine.evaluator, self.engine.parameters
        draws, found, self.first = evaluator.draws(self.rng, NUM_PAIRS), [], self.place
        for pair in draws:
            one = evaluator.measure(self.place, [pair])
            found.append(one)
            if not np.isfinite(one.values).all():
                break
            steps = self.adam.steps(one.mean.ordinary, self.ordinary_step_size)
            self.place = parameters.moved(self.place, steps)
        vectors = np.concatenate([one.vectors for one in found])
        covector = np.mean([one.mean.covector for one in found], 0)
        values = np.concatenate([one.values for one in found])
        return draws[: len(found)], Measured(values, vectors, Direction(vectors.mean(0), covector))

    def _has_fallen(self, measured: Measured) -> bool:
        """Whether it is lower than ever: what Adam overshoots, and minibatches, are no falls."""
        is_lowest = -measured.value > max(self.trace.losses, default=0.0)
        return is_lowest and super()._has_fallen(measured)

    def _move(self, geometry: Geometry, natural: Direction) -> Reason | None:
        reason = super()._move(geometry, natural)
        if self.before is not None:  # where there is a bound, whatever the last pair has led to
            self.before = self.first, self.before[1]
        return reason

    def _look_for_plateau(self) -> None:
        """Now and then, over the later half of all steps at this rate, forty at least: minibatches
        hide what few of them gain.
        """
        count = len(self.trace) - self.plateau_start
        if count % PLATEAU or count < 2 * PLATEAU:
            return
        halves = np.array_split(self.trace.losses[-max(2 * PLATEAU, count // 2) :], 2)
        gain = float(np.mean(halves[0]) - np.mean(halves[1]))
        error = math.sqrt(sum(np.var(half) / (len(half) - 1) for half in halves))
        if gain < max(error, 0.2 * self.settings.tolerance):
            self.num_plateaus += 1
            self.ordinary_step_size *= ORDINARY_DECREASE
            self.plateau_start = len(self.trace)

    def _go_back(self) -> Reason | None:
        """Parameters that went too far go on by shorter steps."""
        self.adam = Adam()
        self.ordinary_step_size *= ORDINARY_DECREASE
        self.before = self.before or (self.first, INITIAL_RADIUS)
        return super()._go_back()
