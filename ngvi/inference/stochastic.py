"""The way to the optimum when the bound itself is noisy: minibatches, partners, model parameters.

Draws cannot be held fixed here, because a fixed minibatch is not the data. Every step has fresh
groups of draws, each with a minibatch of its own. In the Fisher metric, half the squared norm of
the natural gradient is the gain that a quadratic bound would still have. The groups give the noise
``V`` of their mean and, by subtraction, the signal ``s^2 = |n|^2 - V``; both are unbiased.

- The step size is Wiener's, ``s^2 / (s^2 + V)``, which leaves the least expected gap; where noise
  hides the signal, ``1 / (1 / rho + 1)``, which averages the steps. ``rho V / 2`` is then the gap
  that the noise leaves.
- The groups double while noise dominates and steps are already short.
- Parameters that are not Gaussian move by Adam. Its learning rate falls to a fifth whenever the
  bound has stopped rising, and the fit is done when that has happened three times.
- The trust region in KL is as in :mod:`~ngvi.inference.search`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ngvi.inference.adam import Adam
from ngvi.inference.engine import Direction, Draws, Engine, Measured, Place, Step
from ngvi.inference.geometry import Geometry
from ngvi.inference.outcome import Outcome, Reason
from ngvi.inference.progress import Progress
from ngvi.inference.settings import Settings
from ngvi.inference.trace import Trace
from ngvi.optim.radius import GROWTH, INITIAL_RADIUS, SHRINKAGE

#: Groups of a step, at first and at most.
MIN_GROUPS, MAX_GROUPS = 4, 32
#: Signal over noise, below which steps are averaged.
NOISY = 0.5
#: Step size below which more groups are taken.
SHORT = 0.25
#: So many steps keep what their signals promise if the bound rises by this part of it.
WINDOW, KEPT_PART = 10, 0.1
#: Smallest step size.
MIN_STEP_SIZE = 1e-3
#: Noisy steps whose signals are averaged, at least and at most.
MIN_WINDOW, MAX_WINDOW = 10, 200
#: Standard errors that the estimate of the distance is raised by.
CAUTION = 2.0
#: Adam's learning rate for ordinary parameters: at first, and its decrease when the mean loss of
#: so many steps is no better than that of as many before; so often, and the search may end.
ORDINARY_STEP_SIZE, ORDINARY_DECREASE = 0.05, 0.2
PLATEAU, NUM_PLATEAUS = 20, 3
#: A step is taken back if it loses so many standard errors, and nats on top.
FALL, MAX_FALL = 4.0, 1.0
#: The noise after a step of a wary search counts up to so many times that before.
LOUDER = 10.0
#: Places that are not finite in a row, after which the search ends.
MAX_REFUSED = 20


@dataclass
class StochasticSearch:
    """One search with fresh draws at every step; see the module."""

    engine: Engine
    rng: np.random.Generator
    settings: Settings
    progress: Progress
    trace: Trace = field(default_factory=Trace)
    used: int = 0  #: steps of searches before this one
    least: int = 0  #: steps of this one before it may converge
    limit: float = math.inf  #: of the steps of this one
    budget: float = math.inf  #: of the engine's gradients, with those that it has had
    most_groups: int = MAX_GROUPS
    is_wary: bool = False  #: whether much more noise after a step is no excuse for a fall

    place: Place = None
    before: tuple[Place, float] | None = None  #: the place before the last step, and its length
    step: Step | None = None  #: the last, unless it was taken back
    refused: int = 0  #: places in a row that were not finite, or far below
    level: tuple[float, float] = (-math.inf, 0.0)  #: the last bound, and its standard error
    radius: float = INITIAL_RADIUS
    rho: float = 1.0  #: of the next step
    distance: float = math.inf  #: of the bound to its optimum, in nats
    num_groups: int = MIN_GROUPS
    signals: list[float] = field(default_factory=list)  #: of the last noisy steps
    promised: list[float] = field(default_factory=list)  #: gains of the steps so far, in nats
    longest: float = 1.0  #: the largest step size, by what the last steps kept of that
    adam: Adam = field(default_factory=Adam)
    ordinary_step_size: float = ORDINARY_STEP_SIZE
    ordinary_moves: bool = field(init=False)  #: whether parameters that are not Gaussian do
    num_plateaus: int = 0
    plateau_start: int = 0  #: the step at which the present one begins

    def __post_init__(self) -> None:
        self.place = self.engine.parameters.initial
        self.ordinary_moves = self.engine.parameters.has_ordinary

    def run(self, place: Place) -> Outcome:
        """Search from a place where the bound is finite."""
        self.place, self.distance = place, math.inf
        self.before, self.step, self.refused = None, None, 0
        while True:
            draws, measured = self._measured()
            reason = self._advance(draws, measured)
            if reason is not None:
                return Outcome(self.place, reason, self.distance, self.trace)

    @property
    def _num_steps(self) -> int:
        return self.used + len(self.trace)

    def _measured(self) -> tuple[list[Draws], Measured]:
        draws = self.engine.evaluator.draws(self.rng, self.num_groups)
        return draws, self.engine.evaluator.measure(self.place, draws)

    # -- one step ---------------------------------------------------------------------

    def _advance(self, draws: list[Draws], measured: Measured) -> Reason | None:
        """Learn from what was measured, and move.

        :return: why the search is over, or None.
        """
        geometry = self.engine.geometry(self.place, [])
        signal, noise = _signal_and_noise(geometry, measured)
        if not math.isfinite(measured.value + signal + noise) or self._has_fallen(measured):
            return self._go_back()
        self.level = measured.value, _error(measured)
        if self.step is not None:
            self.refused = 0
            self._judge(float(measured.mean.covector @ self.step.change), self.step, noise)
        self._compare()
        self._choose(signal, noise)
        self.promised.append(0.5 * self.rho * max(signal, 0.0))
        loss = self.trace.add(measured, draws, self.rho, self.distance)
        self.progress.update(self._num_steps, loss, self.rho, self.distance)
        self.settings.after_step(self._num_steps, loss, self.distance)
        if self.ordinary_moves:
            self._look_for_plateau()
        return self._why_over() or self._move(geometry, measured.mean)

    def _has_fallen(self, measured: Measured) -> bool:
        """Whether the last step lost more than the noise of the draws before and after.

        Of a wary search much more noise where it led is no excuse: a few draws far out in a tail
        make a fall of a million nats, and a standard error of as much.
        """
        if self.step is None:
            return False
        (value, before), after = self.level, _error(measured)
        after = min(after, LOUDER * before) if self.is_wary else after
        return measured.value < value - FALL * math.hypot(before, after) - MAX_FALL

    def _go_back(self) -> Reason | None:
        """From a place that is not finite, or far below, to try a shorter step."""
        self.refused += 1
        if self.before is None:
            return Reason.STUCK
        self.place, length = self.before
        if self.refused >= MAX_REFUSED:
            return Reason.STUCK
        self.radius = SHRINKAGE * min(length, self.radius)
        self.signals.clear()
        self.step = None
        return None

    def _why_over(self) -> Reason | None:
        settled = not self.ordinary_moves or self.num_plateaus >= NUM_PLATEAUS
        if self.distance <= self.settings.tolerance and settled and len(self.trace) >= self.least:
            return Reason.CONVERGED
        is_over = self._num_steps >= self.settings.max_steps or len(self.trace) >= self.limit
        is_over |= self.engine.evaluator.num_gradients >= self.budget
        return Reason.MAX_STEPS if is_over else None

    def _move(self, geometry: Geometry, natural: Direction) -> Reason | None:
        self.step = geometry.step(natural, self.rho, self.radius)
        if self.step is None:
            return Reason.STUCK
        self.before = self.place, self.step.length
        self.place = self.step.place
        if natural.ordinary:
            steps = self.adam.steps(natural.ordinary, self.ordinary_step_size)
            self.place = self.engine.parameters.moved(self.place, steps)
        return None

    # -- what a step tells ------------------------------------------------------------

    def _judge(self, ends: float, step: Step, noise: float) -> None:
        """Adapt the trust region to the slope at the end of the last step."""
        spread = math.sqrt(max(noise, 0.0) * 2.0 * max(step.length, 0.0))
        if ends < -step.slope - CAUTION * spread:
            self.radius = SHRINKAGE * step.length
            self.signals.clear()
        elif ends > 0:
            self.radius = max(self.radius, GROWTH * step.length)

    def _compare(self) -> None:
        """Shorten steps while the bound does not rise as their signals promise.

        Where its curvature is above the metric's, whole steps may turn about an optimum for ever.
        """
        if self.signals or len(self.promised) < 2 * WINDOW or len(self.promised) % WINDOW:
            return  # noise shortens steps by itself
        losses = self.trace.losses[-2 * WINDOW :]
        gained = float(np.mean(losses[:WINDOW]) - np.mean(losses[WINDOW:]))
        is_kept = gained > KEPT_PART * sum(self.promised[-WINDOW:])
        self.longest = min(2.0 * self.longest, 1.0) if is_kept else 0.5 * self.rho

    def _choose(self, signal: float, noise: float) -> None:
        """The next step size, the number of groups, and the distance to the optimum."""
        if signal > NOISY * noise:
            self.rho = min(signal / (signal + noise), self.longest)
            del self.signals[:]
            self.distance = 0.5 * signal + 0.5 * self.rho * noise
            return
        self.signals.append(signal)
        del self.signals[:-MAX_WINDOW]
        self.rho = max(1.0 / (1.0 / self.rho + 1.0), MIN_STEP_SIZE)
        short = self.rho < SHORT and noise > self.settings.tolerance
        if short and self.num_groups < self.most_groups:
            self.num_groups *= 2
            self.rho = min(1.0, 2.0 * self.rho)
        count = len(self.signals)
        if count < MIN_WINDOW:
            self.distance = 0.5 * max(signal, 0.0) + 0.5 * noise
            return
        error = float(np.std(self.signals)) / math.sqrt(count - 1)
        gap = 0.5 * max(float(np.mean(self.signals)) + CAUTION * error, 0.0)
        self.distance = gap + 0.5 * self.rho * noise

    def _look_for_plateau(self) -> None:
        losses = self.trace.losses[self.plateau_start :]
        if len(losses) < 2 * PLATEAU:
            return
        before, after = losses[-2 * PLATEAU : -PLATEAU], losses[-PLATEAU:]
        error = math.sqrt((np.var(before) + np.var(after)) / (PLATEAU - 1))
        gain = float(np.mean(before) - np.mean(after))
        if gain < max(error, 0.2 * self.settings.tolerance):
            self.num_plateaus += 1
            self.ordinary_step_size *= ORDINARY_DECREASE
            self.plateau_start = len(self.trace) - PLATEAU


def _signal_and_noise(geometry: Geometry, measured: Measured) -> tuple[float, float]:
    """``s^2`` and ``V`` in nats."""
    count, mean = len(measured.values), measured.mean
    with np.errstate(all="ignore"):
        squares = geometry.squares(measured.vectors - mean.vector)
        noise = float(squares.sum()) / (count * (count - 1))
        return float(mean.covector @ mean.vector) - noise, noise


def _error(measured: Measured) -> float:
    """The standard error of a bound in nats, from its groups."""
    values = measured.values
    return float(values.std()) / math.sqrt(max(len(values) - 1, 1))
