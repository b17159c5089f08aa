"""The way to the optimum of a bound without noise of its own: a model that sees all its data.

A *stage* maximises the bound over a fixed set of draws. It is then an ordinary function, whose
gain can be measured, and the whole is retrospective approximation (Chen and Schmeiser, 2001):
each stage starts where the one before ended, with more draws if theirs were too few.

- The first stage has few draws and a broad start. Its steps are natural gradients within a trust
  region in ``KL(q_new || q_old)``, tenfold after a step at whose end the bound still rises, a
  quarter of the step's length after one that lost.
- Where steps are small, pairs of steps and falls of the natural gradient correct the Fisher metric
  (limited-memory quasi-Newton), because a bound may be much flatter than the metric says, and
  plain natural gradients slow, and their norm deceptively small.
- A stage ends when the gain that a quadratic bound would still have is a fraction of the tolerance.
  The groups of draws then say by how much the optimum would move with others; fresh draws
  confirm it, or join the next stage.

Nothing here knows the PPL, and all randomness comes from numpy: the file is the same in both
packages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ngvi.fit.engine import Draws, Engine, Measured
from ngvi.fit.outcome import Outcome, Reason
from ngvi.fit.progress import Progress
from ngvi.fit.trace import Trace

#: Points of the first stage, at least, and groups of the last, at most.
MIN_POINTS = 10
MAX_GROUPS = 64

#: The trust region in nats: at first, after a good step, and after a bad one.
INITIAL_RADIUS, GROWTH, SHRINKAGE = 1.0, 10.0, 0.25
#: A step is too long if the bound falls at its end as fast as it rose at its beginning.
TURN = 0.9
#: A step is at most so many times as long as the one before, in ``rho``.
LONGER = 100.0
#: Rounding of the bound, in units of its precision.
ROUNDING = 32.0
#: So many refused steps in a row end a stage.
MAX_REFUSED = 16

#: A place is hopeless if the bound seems this far from its optimum, in nats, and so many steps
#: gain less than this fraction of its size.
HOPELESS, STALL, STALL_PART = 1e3, 15, 1e-3

#: Steps up to this length, both ways in nats, are pairs of the quasi-Newton memory: over longer
#: ones the metric has changed.
MAX_PAIR_LENGTH = 0.3

#: How often the Gaussian is checked for a variance without limit, in steps.
CHECK_EVERY = 10

#: A first stage ends this close to its optimum, in nats: its draws are few.
ROUGH = 0.25
#: A later one at this fraction of the tolerance, and the draws may have this one.
STAGE_PART, NOISE_PART = 0.125, 0.5


@dataclass
class Settings:
    """What the user may ask for; see ``fit``."""

    tolerance: float
    max_steps: int
    deterministic: bool = False


@dataclass
class Search:
    """One search; see the module."""

    engine: Engine
    rng: np.random.Generator
    settings: Settings
    progress: Progress
    trace: Trace = field(default_factory=Trace)
    radius: float = INITIAL_RADIUS
    rho: float = 1.0
    begun: int = 0
    pairs: list[tuple[Any, Any]] = field(default_factory=list)
    gain: float = math.inf  #: what the present draws still promise, in nats
    noise: float = 0.0  #: what other draws might take away, in nats

    def run(self, place: Any, draws: list[Draws], measured: Measured) -> Outcome:
        """Search from a place.

        :param draws: of the first stage.
        :param measured: the bound at the place, finite.
        """
        tolerance = self.settings.tolerance
        self.place, self.draws, self.measured = place, draws, measured
        status = self._stage(ROUGH)
        if status is not None:
            return self._outcome(status)
        if self.settings.deterministic:
            return self._deterministic()
        self._use(self.engine.draws(self.rng, max(2, len(draws))))
        while True:
            status = self._stage(STAGE_PART * tolerance)
            self.noise = noise = self._noise()
            if status is not None:
                return self._outcome(status)
            fresh, confirmation = self._confirm()
            if noise <= NOISE_PART * tolerance and confirmation <= 2 * tolerance:
                return self._outcome(Reason.CONVERGED, fresh[1])
            count = len(self.draws)
            if count >= MAX_GROUPS:
                close = self.gain + noise <= tolerance and confirmation <= 2 * tolerance
                return self._outcome(Reason.CONVERGED if close else Reason.NOISE, fresh[1])
            wanted = min(MAX_GROUPS, math.ceil(count * noise / (NOISE_PART * tolerance)))
            if wanted >= 4 * count:
                self._use(self.engine.draws(self.rng, wanted))
            else:
                self._join(*fresh)

    def _deterministic(self) -> Outcome:
        count = max(8, math.ceil(200 / max(1, len(self.draws[0].points.weights))))
        self._use(self.engine.draws(self.rng, count))
        status = self._stage(1e-4 * self.settings.tolerance)
        self.noise = self._noise()
        if status is None:
            few = self.noise > 4 * self.settings.tolerance
            status = Reason.NOISE if few else Reason.CONVERGED
        return self._outcome(status)

    def begin_again(self) -> None:
        """Forget what was learnt from one start, before another; the trace goes on."""
        self.radius, self.rho, self.begun = INITIAL_RADIUS, 1.0, len(self.trace)
        self.gain, self.noise = math.inf, 0.0
        self.pairs.clear()

    # -- one stage --------------------------------------------------------------------

    def _stage(self, tolerance: float) -> Reason | None:
        """Maximise the bound over the present draws.

        :return: None at its optimum, else why it stopped before.
        """
        engine, refused = self.engine, 0
        self.radius = max(self.radius, INITIAL_RADIUS)
        while True:
            value, natural = float(self.measured.values.mean()), engine.mean(self.measured)
            direction, gain, fisher = engine.corrected(self.place, natural, self.pairs)
            if not gain > 0:
                self.pairs.clear()
                direction, gain = natural, fisher
            self.gain = max(gain, fisher)
            if self.gain <= tolerance:
                return None
            if self._is_hopeless(value):
                return Reason.STUCK
            if len(self.trace) >= self.settings.max_steps:
                return Reason.MAX_STEPS
            # Where the last step was a small one, the search for the size begins there.
            step = engine.step(self.place, direction, min(1.0, LONGER * self.rho), self.radius)
            if step is None:
                return Reason.STUCK
            self.rho = step.rho
            self._record(step.rho)
            measured = engine.measure(step.place, self.draws)
            new, ends = self._at_the_end(measured, step)
            turned = ends < -step.slope and new < value
            slack = 1.0 + abs(step.slope) + ROUNDING * engine.eps * abs(value)
            if not math.isfinite(new) or turned or new < value - slack:
                self.radius = SHRINKAGE * step.length
                refused += 1
                if refused > 1:
                    self.pairs.clear()
                if refused >= MAX_REFUSED or not self.radius > 0:
                    return Reason.STUCK
                continue
            refused = 0
            if ends > 0:
                self.radius = max(self.radius, GROWTH * step.length)
            elif ends < -TURN * step.slope:
                self.radius = 0.5 * step.length
            if max(step.length, step.backward) <= MAX_PAIR_LENGTH:
                fall = engine.difference(natural, engine.mean(measured))
                self.pairs.append((step.change, fall))
                del self.pairs[: -max(engine.max_pairs, 1)]
            else:
                self.pairs.clear()
            self.place, self.measured = step.place, measured
            if len(self.trace) % CHECK_EVERY == 0 and engine.is_too_wide(self.place):
                return Reason.UNBOUNDED

    def _is_hopeless(self, value: float) -> bool:
        """Whether the last steps led nowhere, and there is far to go."""
        if self.gain < HOPELESS or len(self.trace) < self.begun + STALL:
            return False
        gained = value + self.trace.losses[-STALL]
        return gained < STALL_PART * min(self.gain, abs(value))

    def _at_the_end(self, measured: Measured, step: Any) -> tuple[float, float]:
        """The bound after a step, and its derivative along the step."""
        new = float(measured.values.mean())
        if not math.isfinite(new):
            return new, -math.inf
        ends = self.engine.slope(step.place, self.engine.mean(measured), step.change)
        return (new, ends) if math.isfinite(ends) else (math.nan, -math.inf)

    # -- draws ------------------------------------------------------------------------

    def _use(self, draws: list[Draws]) -> None:
        self.draws, self.measured = draws, self.engine.measure(self.place, draws)

    def _join(self, draws: list[Draws], measured: Measured) -> None:
        self.draws = self.draws + draws
        self.measured = Measured(
            np.concatenate([self.measured.values, measured.values]),
            self.measured.directions + measured.directions,
        )

    def _noise(self) -> float:
        """By how much, in nats, the optimum over other draws would be lower; from the groups."""
        count = len(self.draws)
        mean = self.engine.mean(self.measured)
        total = 0.0
        for deviation in self.engine.deviations(self.measured, mean):
            _, gain, fisher = self.engine.corrected(self.place, deviation, self.pairs)
            total += max(gain, fisher)
        return total / (count * max(count - 1, 1))

    def _confirm(self) -> tuple[tuple[list[Draws], Measured], float]:
        """As many draws again, and the gain that they see."""
        draws = self.engine.draws(self.rng, len(self.draws))
        measured = self.engine.measure(self.place, draws)
        if not np.isfinite(measured.values).all():
            return (draws, measured), math.inf
        mean = self.engine.mean(measured)
        _, gain, fisher = self.engine.corrected(self.place, mean, self.pairs)
        return (draws, measured), max(gain, fisher)

    # -- bookkeeping ------------------------------------------------------------------

    def _record(self, rho: float) -> None:
        values = self.measured.values
        count = len(values)
        error = float(values.std() / math.sqrt(count - 1)) if count > 1 else math.nan
        loss = -float(values.mean())
        self.trace.losses.append(loss)
        self.trace.loss_errors.append(error)
        self.trace.step_sizes.append(rho)
        self.trace.distances.append(self.gain)
        self.trace.num_draws.append(sum(len(group.points.weights) for group in self.draws))
        self.progress.update(len(self.trace), loss, rho, self.gain)

    def _outcome(self, reason: Reason, fresh: Measured | None = None) -> Outcome:
        if fresh is not None:  # over the stage's own draws the bound looks too good
            self.measured = fresh
        if not self.trace.losses or reason not in (Reason.STUCK, Reason.MAX_STEPS):
            self._record(0.0)
        return Outcome(self.place, reason, self.gain + self.noise, self.trace)
