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
- Where the bound has been flatter than the metric, its gains may be small and many: trial steps
  over more draws say whether ordinary draws see a gain, and while they do it is no optimum.
- Gaussians that leave out correlations have a metric that does as well: along an intercept and the
  effects of its groups, say, the bound may be ten thousand times flatter, what the metric promises
  next to nothing, and a step that is short for the bound long in the metric. There the pairs are
  many and last as long as the bound is quadratic, and every optimum is tried, until steps promise
  no more than those before.
- A group that is never learnt from tells whether the others are overfitted: the bound over few
  draws of a density with kinks, or far from quadratic, may rise while the bound itself falls.
  Then, or where a stage makes no progress, fresh draws at every step must go on
  (:mod:`~ngvi.inference.stochastic`), from the best place that the group has seen.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import numpy as np

from ngvi.inference.audit import difference, is_improper
from ngvi.inference.engine import Direction, Draws, Engine, Measured, Place, Step
from ngvi.inference.geometry import Geometry
from ngvi.inference.outcome import Outcome, Reason, after_trial
from ngvi.inference.precision import rounding
from ngvi.inference.progress import Progress
from ngvi.inference.settings import Settings
from ngvi.inference.trace import Trace
from ngvi.optim.radius import GROWTH, INITIAL_RADIUS, SHRINKAGE

#: Points of the first stage, at least, and groups of the last, at most.
MIN_POINTS = 10
MAX_GROUPS = 64

#: A step is too long if the bound falls at its end as fast as it rose at its beginning.
TURN = 0.9
#: A step is at most so many times as long as the one before, in ``rho``.
LONGER = 100.0
#: Rounding of the bound, in units of its precision.
ROUNDING = 32.0
#: So many refused steps in a row end a stage.
MAX_REFUSED = 16

#: A step may lose so much of its slope, and so many nats: fixed draws' gradients are exact only
#: for the mean.
SLACK_PART, MAX_SLACK = 0.05, 0.25

#: A stage stalls if so many steps gain less than half of what it is to reach.
STALLED = 20
#: Fixed draws are overfitted if so many nats were gained, and twice less than this part of them
#: over the draws that are not learnt from, or once as much was lost.
MIN_GAIN, LEARNT_PART = 1.0, 0.1

#: A bound whose curvature was below this fraction of the metric's is tried once more, with so
#: many points at least, by so many steps, so often at most; so is one of few latents.
FLAT, FEW = 0.3, 3
TRIAL_POINTS, TRIAL_STEPS, MAX_TRIALS = 32, 4, 12
#: A trial ends at this fraction of the tolerance, if that is sooner, ...
TRIAL_PART = 1.25e-4
#: ... and at this one where Gaussians leave out correlations: of a curvature that nothing has met
#: the metric's promise may be the ten-thousandth part. Trials of these have more steps, the first
#: of which find the direction (the weights of a network's unit that hardly counts: after four steps
#: 0.002 nats, after twelve 0.23), and go on while a step promises so many times what one before
#: has.
RESTRICTED_PART, RESTRICTED_STEPS, RISING = 1e-7, 12, 2.0
#: So many steps with parameters of the model's own.
PLATEAU_STEPS = 30

#: So many times as many draws are learnt from if a first stage was overfitted.
MORE = 4

#: A place is hopeless if the bound seems this far from its optimum, in nats, and so many steps
#: gain less than this fraction of its size.
HOPELESS, STALL, STALL_PART = 1e3, 15, 1e-3

#: Steps up to this length, both ways in nats, are pairs of the quasi-Newton memory: over longer
#: ones the metric has changed.
MAX_PAIR_LENGTH = 0.3
#: Of many latents each changes little over a step that is longer together: up to that length for
#: each so many latents, if the step is about as long in the metric of its end, up to this factor.
OF_LATENTS, ALIKE = 30, 1.5

#: How often the Gaussian is checked for a variance without limit, in steps.
CHECK_EVERY = 10
#: A standard deviation of an unconstrained latent that tells of an improper posterior.
TOO_WIDE = 1e7

#: A first stage ends this close to its optimum, in nats: its draws are few.
ROUGH = 0.25
#: A later one at this fraction of the tolerance, and the draws may have this one.
STAGE_PART, NOISE_PART = 0.125, 0.5

#: Ends whose place has been measured since the last step was noted.
_ENDS = (Reason.CONVERGED, Reason.NOISE, Reason.UNBOUNDED, Reason.RIDGE)


@dataclass
class Search:
    """One search; see the module."""

    engine: Engine
    rng: np.random.Generator
    settings: Settings
    progress: Progress
    trace: Trace = field(default_factory=Trace)
    used: int = 0  #: steps of searches before this one

    place: Place = None
    draws: list[Draws] = field(default_factory=list)  #: of the present stage
    measured: Measured = field(init=False)  #: at the place, over these draws
    #: Changes of the Gaussians, and the falls of the natural gradient along them.
    pairs: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    radius: float = INITIAL_RADIUS
    rho: float = 1.0  #: of the last step
    judge: list[Draws] = field(default_factory=list)  #: draws that are not learnt from
    judged: list[float] = field(default_factory=list)  #: the bound over them, now and then
    unlearnt: int = 0  #: times in a row that they gained too little
    best: Place = None  #: of those that were judged
    probed: float = 0.0  #: when the curvature along ordinary parameters was last looked at
    rough: Place = None  #: the end of the first stage
    flattest: float = 1.0  #: the least curvature that was seen, of the metric's
    gain: float = math.inf  #: what the present draws still promise, in nats
    noise: float = 0.0  #: what other draws might take away, in nats
    _geometry: Geometry | None = None  #: of the place with the pairs, once it is asked for

    def __post_init__(self) -> None:
        self.place = self.best = self.engine.parameters.initial

    def run(self, place: Place) -> Outcome:
        """Search from a place where the bound is finite."""
        return self.finish(self.begin(place))

    def begin(
        self,
        place: Place,
        max_steps: float = math.inf,
        tolerance: float = ROUGH,
        num_points: float = MIN_POINTS,
    ) -> Reason | None:
        """The first, rough stage: see :meth:`run`.

        :param tolerance: in nats, of its end.
        :param num_points: of its draws, at least.
        :return: why it is over before its optimum, or None.
        """
        self._forget()
        self.place = self.best = place
        self._learn_from(math.ceil(num_points / (2 * self.engine.parameters.dim + 1)))
        return self.go_on(max_steps, tolerance)

    def go_on(self, max_steps: float, tolerance: float) -> Reason | None:
        """So many more steps of the first stage, as :meth:`begin`."""
        status = self._stage(tolerance, max_steps)
        self.rough = self.place
        return status

    def finish(self, status: Reason | None) -> Outcome:
        """What comes after the first stage.

        :param status: how it ended.
        """
        if status is Reason.TRIED:
            status = self._stage(ROUGH)
        while status is Reason.OVERFITTED and MORE * len(self.draws) <= MAX_GROUPS:
            self.place, self._geometry = self.best, None
            self._forget()
            self._learn_from(MORE * len(self.draws))
            status = self._stage(ROUGH)
        if status is not None:
            return self._outcome(status)
        if self.settings.deterministic:
            return self._deterministic()
        self._use(self.engine.evaluator.draws(self.rng, max(2, len(self.draws))))
        while True:
            status = self._stage(STAGE_PART * self.settings.tolerance)
            self.noise = self._noise()
            # Near the optimum rounding may end a stage: trials say whether it is one.
            is_near = self.gain <= self.settings.tolerance
            is_doubtful = status in (Reason.STUCK, Reason.STALLED) and is_near
            if status is not None and not is_doubtful:
                return self._outcome(status)
            status, fresh = self._confirm()
            if status is Reason.CONVERGED and (is_doubtful or self._is_flat()):
                return self._outcome(self._tried())
            if status is not None:
                return self._outcome(status, fresh)

    def _deterministic(self) -> Outcome:
        count = max(8, math.ceil(200 / max(1, len(self.draws[0].points.weights))))
        self._use(self.engine.evaluator.draws(self.rng, count))
        status = self._stage(1e-4 * self.settings.tolerance)
        self.noise = self._noise()
        if status is None:
            few = self.noise > 4 * self.settings.tolerance
            status = Reason.NOISE if few else Reason.CONVERGED
        return self._outcome(status)

    # -- trials -----------------------------------------------------------------------

    def verified(self, outcome: Outcome) -> Outcome:
        """An optimum that a search with fresh draws claims, or what trial steps made of it."""
        self._forget()
        self.place, self.radius = outcome.place, INITIAL_RADIUS
        self._use(self.engine.evaluator.draws(self.rng, 2))
        tried = self._outcome(self._tried())
        remaining = max(tried.remaining, outcome.remaining if tried.converged else 0.0)
        return dataclasses.replace(tried, remaining=remaining)

    def _is_flat(self) -> bool:
        parameters = self.engine.parameters
        is_known = self.flattest >= FLAT and not self._metric().is_restricted
        return not is_known or parameters.dim <= FEW or parameters.has_ordinary

    def _tried(self) -> Reason:
        """Take short steps over more draws for as long as ordinary draws see a gain."""
        tolerance = self.settings.tolerance
        size = len(self.draws[0].points.weights)
        count = max(len(self.draws), math.ceil(TRIAL_POINTS / size))
        has_ordinary, steps = self.engine.parameters.has_ordinary, self._trial_steps()
        # Gains along a ridge of a network's weights may be long and large: the steps are counted.
        for _ in range(self.settings.max_steps if has_ordinary else MAX_TRIALS):
            old, gap = self.place, self.gain + self.noise
            self._use(self.engine.evaluator.draws(self.rng, count))
            before, promised = len(self.trace), self._probe(widely=True)
            status = self._stage(self._trial_end(), steps)
            gain, error = difference(self.engine, old, self.place, self.rng)
            if not math.isfinite(gain):  # draws without a density tell nothing
                gain, error = 0.0, gap
            if not gain > 0:
                self.place, self._geometry = old, None
            if status in (Reason.MAX_STEPS, Reason.UNBOUNDED):
                return status
            self.gain, self.noise = max(gain, 0.0), error
            verdict = after_trial(gain, error, tolerance)
            if verdict is Reason.CONVERGED and promised > max(2 * gain, 2 * tolerance):
                verdict, self.gain = Reason.NOISE, promised
            if verdict is Reason.CONVERGED and gain > 0 and self._is_rising(before):
                verdict = None
            if verdict is not None:
                # What the search expects counts if the trial did not see more.
                self.gain = max(self.gain, min(gap, tolerance))
                return verdict
        return Reason.RIDGE

    def _is_rising(self, before: int) -> bool:
        """Whether the steps since then promise ever more: what they have gained is the beginning.

        So it is where Gaussians leave out correlations, and a flat direction is found by degrees.
        """
        promised = self.trace.distances[before:]
        if not promised or not self._metric().is_restricted:
            return False
        return promised[-1] > max(RISING * min(promised), TRIAL_PART * self.settings.tolerance)

    def _trial_steps(self) -> int:
        # A parameter may cross a plateau, of which its gradient says nothing.
        if self.engine.parameters.has_ordinary:
            return PLATEAU_STEPS
        return RESTRICTED_STEPS if self._metric().is_restricted else TRIAL_STEPS

    def _trial_end(self) -> float:
        """What a trial leaves, in nats; along a flat direction that it has not met, far more."""
        part = RESTRICTED_PART if self._metric().is_restricted else TRIAL_PART
        return part * self.settings.tolerance

    def _probe(self, widely: bool = False) -> float:
        """Look at the curvature along the parameters of the model's own.

        :param widely: at the length of a first step at least, where that is finite: steps may have
            become so short that they tell nothing, because the Gaussians' were.
        :return: what it promises, in nats.
        """
        self.probed = math.inf
        if not self.engine.parameters.has_ordinary:
            return 0.0
        found = self._metric().probes(self.measured, self.draws, widely)
        # They cost as much as the steps in between, at most.
        self.probed = len(self.trace) + max(2 * len(found) - CHECK_EVERY, 0) if found else math.inf
        if not found or not np.isfinite(np.concatenate([fall for _, fall in found])).all():
            return 0.0
        self._forget()
        self.pairs.extend(found)
        direction, gain, _ = self._metric().corrected(self.measured.mean)
        self._metric().allow(direction)
        return gain

    # -- one stage --------------------------------------------------------------------

    def _stage(self, tolerance: float, max_steps: float = math.inf) -> Reason | None:
        """Maximise the bound over the present draws.

        :return: None at its optimum, else why it stopped before.
        """
        self.radius, refused = max(self.radius, INITIAL_RADIUS), 0
        values = [self.measured.value]
        while True:
            if len(values) > max_steps:
                return Reason.TRIED
            if len(self.trace) - self.probed >= CHECK_EVERY:
                self._probe()
            step = self._propose(tolerance)
            if not isinstance(step, Step):
                return step
            if len(values) > STALLED and values[-1] - values[-1 - STALLED] < 0.5 * tolerance:
                return Reason.STALLED
            measured = self.engine.evaluator.measure(step.place, self.draws)
            ends = self._slope_at_the_end(step, measured)
            if ends is None:
                refused += 1
                self._refuse(step, refused)
                if refused >= MAX_REFUSED or not self.radius > 0:
                    return Reason.STUCK
                continue
            refused = 0
            gained = measured.value - values[max(-len(values), -CHECK_EVERY)]
            self._accept(step, ends, measured)
            values.append(measured.value)
            if len(self.trace) % CHECK_EVERY == 0:
                if self._is_too_wide():
                    return Reason.UNBOUNDED
                if self._is_overfitted(gained):
                    return Reason.OVERFITTED

    def _propose(self, tolerance: float) -> Step | Reason | None:
        """The next step, or why there is none: None at the optimum of these draws."""
        direction = self._direction()
        if self.gain <= tolerance:
            return None
        if self._is_hopeless():
            return Reason.STUCK
        if self.used + len(self.trace) >= self.settings.max_steps:
            return Reason.MAX_STEPS
        # Where the last step was a small one, the search for the size begins there.
        longest = min(1.0, LONGER * self.rho)
        step = self._metric().step(direction, longest, self.radius)
        if step is None:
            return Reason.STUCK
        self.rho = step.rho
        self._record(step.rho)
        return step

    def _direction(self) -> Direction:
        """The corrected natural gradient, and what it promises."""
        direction, gain, fisher = self._metric().corrected(self.measured.mean)
        if not gain > 0 and self.pairs:
            self._forget()
            direction, gain, fisher = self._metric().corrected(self.measured.mean)
        self.gain = max(gain, fisher)
        return direction

    def _slope_at_the_end(self, step: Step, measured: Measured) -> float | None:
        """The bound's derivative along the step, at its end; None if the step is refused."""
        value, new = self.measured.value, measured.value
        with np.errstate(all="ignore"):
            ends = float(measured.mean.covector @ step.change)
        if not (math.isfinite(new) and math.isfinite(ends)):
            return None
        turned = ends < -step.slope and new < value
        slack = min(SLACK_PART * abs(step.slope), MAX_SLACK)
        slack += ROUNDING * rounding(self.engine, value)
        return None if turned or new < value - slack else ends

    def _refuse(self, step: Step, refused: int) -> None:
        """Try shorter steps, and soon without the memory.

        :param refused: steps in a row.
        """
        self.radius = SHRINKAGE * step.length
        self._metric().refused()
        if refused > 1:
            self._forget()

    def _accept(self, step: Step, ends: float, measured: Measured) -> None:
        """Take the step, and learn from it.

        :param ends: the slope of the bound at its end.
        """
        if ends > 0:
            self.radius = max(self.radius, GROWTH * step.length)
        elif ends < -TURN * step.slope:
            # The divergence of a step of no length is rounding, and may be negative.
            least = ROUNDING * self.engine.parameters.dim * self.engine.parameters.eps
            self.radius = max(0.5 * step.length, least)
        length = max(step.length, step.backward)
        if self._metric().is_restricted and ends < step.slope:
            # Half the fall of the slope is the length that the step has for the bound itself.
            length = min(length, 0.5 * (step.slope - ends))
        is_short = length <= self._longest_pair(step)
        self._metric().accepted(step, self.measured.mean, measured.mean, is_short)
        if not is_short:
            self.pairs.clear()
        # Of long steps only one with other parameters is a pair: along a ridge of them and the
        # Gaussians no metric says where to go.
        if is_short or self.engine.parameters.has_ordinary:
            fall = self.measured.mean.vector - measured.mean.vector
            self.pairs.append((step.change, fall))
            del self.pairs[: -max(self._metric().max_pairs, 1)]
        self.place, self.measured, self._geometry = step.place, measured, None

    def _longest_pair(self, step: Step) -> float:
        """How long a step may be, in nats, over which the metric is about the same."""
        is_alike = max(step.length, step.backward) < ALIKE * min(step.length, step.backward)
        dim = self.engine.parameters.dim
        return MAX_PAIR_LENGTH * max(dim / OF_LATENTS, 1.0) if is_alike else MAX_PAIR_LENGTH

    def _metric(self) -> Geometry:
        if self._geometry is None:
            self._geometry = self.engine.geometry(self.place, self.pairs)
            self.flattest = min(self.flattest, self._geometry.flattest)
        return self._geometry

    def _forget(self) -> None:
        """Let the metric be all that is known of the bound's curvature."""
        self.pairs.clear()
        self._geometry = None

    def _is_hopeless(self) -> bool:
        """Whether the last steps led nowhere, and there is far to go."""
        if self.gain < HOPELESS or len(self.trace) < STALL:
            return False
        value = self.measured.value
        gained = value + self.trace.losses[-STALL]
        return gained < STALL_PART * min(self.gain, abs(value))

    def _is_overfitted(self, gained: float) -> bool:
        """Whether the bound rises over the draws of the stage alone.

        :param gained: in nats, since the last time.
        """
        if not self.judge:
            return False
        value = self.engine.evaluator.measure(self.place, self.judge).value
        if not self.judged or value >= max(self.judged):
            self.best = self.place
        self.judged.append(value)
        if len(self.judged) < 2 or gained < MIN_GAIN:
            return False
        learnt = (self.judged[-1] - self.judged[-2]) / gained
        self.unlearnt = 0 if learnt > LEARNT_PART else self.unlearnt + 1
        return not learnt > -LEARNT_PART or self.unlearnt > 1

    def _is_too_wide(self) -> bool:
        """Whether a standard deviation is one that few posteriors have, and none stops it."""
        stddevs = self.engine.parameters.stddevs(self.place)
        if not any(np.max(values) > TOO_WIDE for values in stddevs.values()):
            return False
        return is_improper(self.engine, self.place, self.rng)

    # -- draws ------------------------------------------------------------------------

    def _learn_from(self, count: int) -> None:
        """So many fresh groups, and as many to judge by; what is integrated needs none."""
        self._use(self.engine.evaluator.draws(self.rng, count))
        judge = self.engine.evaluator.draws(self.rng, count)
        self.judge = [] if self.engine.evaluator.is_exact else judge
        self.judged, self.unlearnt = [], 0

    def _use(self, draws: list[Draws]) -> None:
        self.draws = draws
        self.measured = self.engine.evaluator.measure(self.place, draws)

    def _noise(self) -> float:
        """By how much, in nats, the optimum over other draws would be lower; from the groups."""
        count = len(self.draws)
        gains = self._metric().gains(self.measured.vectors - self.measured.mean.vector)
        return float(gains.sum()) / (count * max(count - 1, 1))

    def _confirm(self) -> tuple[Reason | None, Measured]:
        """Ask as many draws again; if they disagree, they join the next stage's.

        :return: why the search is over, or None, and what the fresh draws found.
        """
        tolerance, count = self.settings.tolerance, len(self.draws)
        draws = self.engine.evaluator.draws(self.rng, count)
        measured = self.engine.evaluator.measure(self.place, draws)
        promised = math.inf
        if np.isfinite(measured.values).all():
            promised = max(self._metric().corrected(measured.mean)[1:])
        is_confirmed = promised <= 2 * tolerance
        if self.noise <= NOISE_PART * tolerance and is_confirmed:
            return Reason.CONVERGED, measured
        if count >= MAX_GROUPS:
            is_close = self.gain + self.noise <= tolerance and is_confirmed
            return Reason.CONVERGED if is_close else Reason.NOISE, measured
        wanted = min(MAX_GROUPS, math.ceil(count * self.noise / (NOISE_PART * tolerance)))
        if wanted >= 4 * count:
            self._use(self.engine.evaluator.draws(self.rng, wanted))
        else:
            self.draws = self.draws + draws
            self.measured = self.measured.joined(measured)
        return None, measured

    # -- bookkeeping ------------------------------------------------------------------

    def _record(self, rho: float) -> None:
        loss = self.trace.add(self.measured, self.draws, rho, self.gain)
        self.progress.update(self.used + len(self.trace), loss, rho, self.gain)
        self.settings.after_step(self.used + len(self.trace), loss, self.gain)

    def _outcome(self, reason: Reason, fresh: Measured | None = None) -> Outcome:
        if fresh is not None:  # over the stage's own draws the bound looks too good
            self.measured = fresh
        if not self.trace.losses or reason in _ENDS:
            self._record(0.0)
        return Outcome(self.place, reason, self.gain + self.noise, self.trace)
