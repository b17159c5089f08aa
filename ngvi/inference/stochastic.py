"""Search for the optimum if the bound itself is noisy, because of minibatches.

Draws cannot be held fixed, because a fixed minibatch is not the data. Every step has fresh
groups of draws, each with a minibatch of its own. In the Fisher metric, half the squared norm of
the natural gradient is the gain that a quadratic bound would still have. The groups give the noise
``V`` of their mean and, by subtraction, the signal ``s^2 = |n|^2 - V``; both are unbiased.

- The step size is Wiener's, ``s^2 / (s^2 + V)``, which leaves the least expected gap; where noise
  hides the signal, ``1 / (1 / rho + 1)``, which averages the steps. ``rho V / 2`` is then the gap
  that the noise leaves.
- The groups double while noise dominates and steps are already short.
- Parameters of the model's own move by Adam (Kingma and Ba, 2015). Its rate falls to a quarter
  whenever the bound has stopped rising; the search may end when that has happened three times.
- The trust region in KL is as in :mod:`~ngvi.inference.local_search`.

The certificate is the upper 95 % limit of the gap, from the signals of the last noisy steps. If
there are few such steps, it comes from the groups of one step
(:mod:`~ngvi.inference.verdict.certificate`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ngvi.inference.estimate import Direction, Estimate, Sample, State, Step
from ngvi.inference.metric import Metric
from ngvi.inference.options import LEVELS
from ngvi.inference.search import Search, Status, Steps
from ngvi.inference.verdict.certificate import Certificate, quadratic

#: Words for the model's own parameters, along which no natural gradient says what is left.
OF_PARAMETERS = "along the model's own parameters the bound has stopped rising"
#: Plateaus after which these parameters are at their optimum.
NUM_PLATEAUS = 3


class StochasticSearch(Search):
    """A search with fresh draws at every step; see the module."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        options = self.options.stochastic
        self.num_groups = options.min_groups
        self.radius, self.step_size = LEVELS.notable, 1.0
        self._before: tuple[State, float] | None = None  # the last step's state and length
        self._step: Step | None = None  # the last, unless it was taken back
        self._refused, self._window = 0, self.options.local.check_every
        self._level = -math.inf, 0.0  # the last bound, and its standard error
        self._signals: list[float] = []  # of the last noisy steps
        self._adam, self._rate = Adam(), options.parameter_step_size
        self._num_plateaus, self._plateau_start = 0, len(self.trace)

    def _run(self) -> Steps:
        while True:
            sample = self.problem.objective.sample(self.rng, self.num_groups)
            status = self._advance(sample, self.problem.objective.bound(self.state, sample))
            if status is not None:
                return status
            yield

    def _advance(self, sample: Sample, estimate: Estimate) -> Status | None:
        """Learn from an estimate, and move."""
        metric = self.problem.metric(self.state, [])
        signal, noise = signal_and_noise(metric, estimate)
        if not math.isfinite(estimate.value + signal + noise) or self._has_fallen(estimate):
            return self._go_back()
        self._level = estimate.value, estimate.error
        if self._step is not None:
            self._refused = 0
            self._adapt(float(estimate.mean.gradient @ self._step.change), self._step, noise)
        self._choose(signal, noise)
        self._record(estimate, sample, self.step_size)
        if self.problem.space.has_model_parameters:
            self._look_for_plateau()
        return self._why_over(metric, estimate) or self._move(metric, estimate.mean)

    def _has_fallen(self, estimate: Estimate) -> bool:
        """Return whether the last step lost more than the noise of the draws before and after."""
        if self._step is None:
            return False
        value, error = self._level
        noise = LEVELS.certain * math.hypot(error, estimate.error)
        return estimate.value < value - noise - LEVELS.notable

    def _go_back(self) -> Status | None:
        """Go back from a state that is not finite, or far below, and try a shorter step."""
        self._refused += 1
        if self._before is None:
            return Status.STUCK
        self.state, length = self._before
        if self._refused >= 2 * self._window:
            return Status.STUCK
        self.radius = max(LEVELS.shrinkage * min(length, self.radius), self._rounding)
        self._signals.clear()
        self._step = None
        return None

    def _why_over(self, metric: Metric, estimate: Estimate) -> Status | None:
        is_settled = (
            not self.problem.space.has_model_parameters or self._num_plateaus >= NUM_PLATEAUS
        )
        if self.gap <= self.tolerance and is_settled:
            upper = self.gap  # of many signals
            if len(self._signals) < self._window:
                upper = max(upper, quadratic(metric, estimate, LEVELS.confidence).upper)
            beside = OF_PARAMETERS if self.problem.space.has_model_parameters else ""
            self.certificate = Certificate(self.gap, upper, beside=beside)
            if self.certificate.is_met(self.tolerance):
                return Status.OPTIMUM
        return Status.MAX_STEPS if len(self.trace) >= self.monitor.max_steps else None

    def _move(self, metric: Metric, natural: Direction) -> Status | None:
        self._step = metric.step(natural, self.step_size, self.radius)
        if self._step is None:
            return Status.STUCK
        self._before = self.state, self._step.length
        self.state = self._step.state
        if natural.parameters:
            steps = self._adam.steps(natural.parameters, self._rate)
            self.state = self.problem.space.moved(self.state, steps)
        return None

    # -- what a step says -------------------------------------------------------------

    def _adapt(self, ends: float, step: Step, noise: float) -> None:
        """Adapt the trust region to the slope at the end of the last step."""
        spread = math.sqrt(2.0 * noise * step.length)
        if ends < -step.slope - LEVELS.caution * spread:
            self.radius = max(LEVELS.shrinkage * step.length, self._rounding)
            self._signals.clear()
        elif ends > 0:
            self.radius = max(self.radius, LEVELS.growth * step.length)

    def _choose(self, signal: float, noise: float) -> None:
        """Return the next step size, the number of groups, and the distance to the optimum."""
        options = self.options.stochastic
        if signal > options.noisy * noise:
            self.step_size = signal / (signal + noise)
            self._signals.clear()
            self.gap = 0.5 * signal + 0.5 * self.step_size * noise
            return
        self._signals.append(signal)
        self.step_size = max(1.0 / (1.0 / self.step_size + 1.0), LEVELS.tiny)
        is_short = self.step_size < LEVELS.shrinkage and noise > self.tolerance
        if is_short and 2 * self.num_groups <= self.options.local.max_groups // 2:
            self.num_groups *= 2
            self.step_size = min(1.0, 2.0 * self.step_size)
        count = len(self._signals)
        if count < self._window:
            self.gap = 0.5 * max(signal, 0.0) + 0.5 * noise
            return
        error = float(np.std(self._signals)) / math.sqrt(count - 1)
        mean = float(np.mean(self._signals))
        left = 0.5 * max(mean + LEVELS.caution * error, 0.0)
        self.gap = left + 0.5 * self.step_size * noise

    def _look_for_plateau(self) -> None:
        losses, plateau = self.trace.losses[self._plateau_start :], 2 * self._window
        if len(losses) < 2 * plateau:
            return
        before, after = losses[-2 * plateau : -plateau], losses[-plateau:]
        error = math.sqrt((np.var(before) + np.var(after)) / (plateau - 1))
        gain = float(np.mean(before) - np.mean(after))
        if gain < max(error, LEVELS.negligible * self.tolerance):
            self._num_plateaus += 1
            self._rate *= LEVELS.shrinkage
            self._plateau_start = len(self.trace) - plateau


def signal_and_noise(metric: Metric, estimate: Estimate) -> tuple[float, float]:
    """``s^2`` and ``V`` in nats."""
    count, mean = len(estimate.values), estimate.mean
    with np.errstate(all="ignore"):
        squares = metric.squares(estimate.natural - mean.natural)
        noise = float(squares.sum()) / (count * (count - 1))
        return float(mean.gradient @ mean.natural) - noise, noise


#: Decay of the averages of gradients and of their squares, and what keeps off a division by zero:
#: the paper's.
DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """The state of an ascent by Adam, for the model's own parameters."""

    def __init__(self) -> None:
        self.count = 0
        self.means: list[np.ndarray] = []
        self.squares: list[np.ndarray] = []

    def steps(self, gradients: Sequence[np.ndarray], rate: float) -> list[np.ndarray]:
        """Return what to add to the parameters.

        :param gradients: of what is to rise, one array for each parameter.
        """
        if not self.count:
            self.means = self.squares = [np.zeros_like(gradient) for gradient in gradients]
        self.count += 1
        pairs = list(zip(self.means, self.squares, gradients, strict=True))
        self.means = [DECAY * mean + (1.0 - DECAY) * new for mean, _, new in pairs]
        self.squares = [
            SQUARE_DECAY * square + (1.0 - SQUARE_DECAY) * new**2 for _, square, new in pairs
        ]
        rate /= 1.0 - DECAY**self.count
        unbiased = 1.0 - SQUARE_DECAY**self.count
        return [
            rate * mean / (np.sqrt(square / unbiased) + EPSILON)
            for mean, square in zip(self.means, self.squares, strict=True)
        ]
