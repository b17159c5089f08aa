"""Search for an optimum if the bound has no noise of its own: the model sees all its data.

A *stage* maximises the bound over a fixed sample of draws, an ordinary function whose gain can be
measured. Each stage starts where the previous one ended, with more draws if necessary: this is
retrospective approximation (Chen and Schmeiser, 2001).

- The first stage has few draws and a broad start. Its steps are natural gradients within a trust
  region in ``KL(q_new || q_old)``. The radius grows tenfold if the bound still rises at the end of
  a step, and shrinks to a quarter of the step's length if the bound fell.
- Once steps are small, pairs of steps and changes of the natural gradient correct the Fisher metric
  (:mod:`~ngvi.inference.metric`), because the bound may be much flatter than the metric says.
- A stage ends when the gain left to a quadratic bound is a fraction of the tolerance. Fresh draws
  then measure the gap (:mod:`~ngvi.inference.verdict.certificate`), or join the next stage.
- Held-out draws show whether the search overfits its own. The bound over few draws of a density
  with kinks, or far from quadratic, may rise while the bound itself falls. If so, the first stage
  begins anew with more draws.
"""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np

from ngvi.inference.estimate import Direction, Estimate, Pairs, Sample, State, Step
from ngvi.inference.metric import Corrected, Metric
from ngvi.inference.model_parameters import with_model_parameters
from ngvi.inference.options import LEVELS, LocalSearchOptions
from ngvi.inference.problem import Problem
from ngvi.inference.search import Search, Status, Steps
from ngvi.inference.verdict.certificate import Certificate, quadratic, stepped
from ngvi.inference.verdict.runaway import widens_without_limit
from ngvi.inference.verdict.validation import validate


class HeldOut:
    """Draws that a stage does not learn from.

    :ivar sample: these draws; none where the stage's cannot be overfitted.
    :ivar best: of the states that they have seen, the one that they like best.
    """

    def __init__(self, problem: Problem, start: State) -> None:
        self.problem, self.best = problem, start
        self.begin()

    def begin(self) -> None:
        """Begin a stage, without draws."""
        self.sample: Sample = []
        self._values: list[float] = []
        self._unlearnt = 0  # times in a row that they have gained too little

    def is_overfitted(self, state: State, gained: float) -> bool:
        """Return whether the bound rises over the draws of the stage alone.

        :param gained: over those, in nats, since the last time.
        """
        if not self.sample:
            return False
        values = self._values
        value = self.problem.objective.bound(state, self.sample).value
        if not values or value >= max(values):
            self.best = state
        values.append(value)
        if len(values) < 2 or gained < LEVELS.notable:
            return False
        learnt = (values[-1] - values[-2]) / gained
        self._unlearnt = 0 if learnt > LEVELS.negligible else self._unlearnt + 1
        return not learnt > -LEVELS.negligible or self._unlearnt > 1


#: Over no draws.
NO_ESTIMATE = Estimate(np.empty(0), np.empty((0, 0)), Direction(np.empty(0), np.empty(0)))


class LocalSearch(Search):
    """A search over fixed draws; see the module.

    :ivar coarse_state: the end of the first stage, once it is there.
    """

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.problem = with_model_parameters(self.problem)
        self.sample: Sample = []
        self.estimate = NO_ESTIMATE  #: Estimate at the state, over the sample.
        self.pairs: Pairs = []
        self.radius, self.step_size = LEVELS.notable, 1.0
        self.damping = 1.0  #: Factor of a step after a step that has led too far.
        self.coarse_state: State = None
        self.flattest = 1.0  #: The least curvature that was seen, of the metric's.
        self._stops_when_coarse = False
        self._held_out = HeldOut(self.problem, self.state)
        self._metric_here: Metric | None = None

    def coarsen(self, max_cost: float = math.inf, max_steps: float = math.inf) -> None:
        """Advance to the end of the first stage."""
        self._stops_when_coarse = True
        self.advance(max_cost, max_steps)
        self._stops_when_coarse = False

    def refine(self, tolerance: float, max_cost: float = math.inf) -> None:
        """Go on from an optimum to a smaller tolerance."""
        self.tolerance, self.status = tolerance, None
        self._steps = self._last_stages()
        self.advance(max_cost)

    def release(self) -> None:
        """Let go of the draws, of which a search that has ended has no more use."""
        self.sample = self._held_out.sample = []
        self._forget()

    def _is_at_a_rest(self) -> bool:
        return self._stops_when_coarse and self.coarse_state is not None

    # -- the stages -------------------------------------------------------------------

    def _run(self) -> Steps:
        options = self.options.local
        count = math.ceil(options.min_points / (2 * self.problem.space.dim + 1))
        gap = options.coarse_gap
        if self.problem.space.has_model_parameters:  # along these no metric says what is left
            gap = options.stage_part * self.tolerance
        while True:
            self._use(self._fresh(count))
            is_exact = self.problem.objective.is_exact  # what is integrated has no draws
            if self.options.held_out_draws and not is_exact:
                self._held_out.sample = self._fresh(count)
            status = yield from self._stage(gap)
            count = LEVELS.more_draws * len(self.sample)
            if status is not Status.OVERFITTED:
                break
            self.state = self._held_out.best
            self._forget()
            if count > options.max_groups:
                break
        self.coarse_state = self.state
        if status is not None:
            return status
        yield
        self._use(self._fresh(max(2, len(self.sample))))
        return (yield from self._last_stages())

    def _last_stages(self) -> Steps:
        """Stages until fresh draws say that little is left."""
        options = self.options.local
        for index in range(self.options.certificate.max_rounds):
            status = None
            if self.sample:  # the search may have been released
                status = yield from self._stage(options.stage_part * self.tolerance)
            # Near the optimum rounding may end a stage: fresh draws say whether it is one.
            is_near = status is Status.STUCK and self.gap <= self.tolerance
            if status is not None and not is_near:
                return status
            # More where the bound may be flatter than the metric.
            points = self.options.certificate.min_points if self._may_be_flat() else 1
            least = math.ceil(points / self.problem.objective.groups.cost.num_gradients)
            fresh = self._fresh(max(len(self.sample), least, 2))
            test, estimate = yield from self._test(fresh)
            self.certificate, self.gap = test, test.upper
            if test.is_met(self.tolerance):
                self._record(estimate, fresh, 0.0)
                return Status.OPTIMUM
            # Gradients that values contradict are followed no further.
            if not index and self.options.checks:
                draws = self.options.validation.coarse()
                found = validate(self.problem, self.state, self.rng, draws)
                if found.mismatch > max(test.upper, self.tolerance):
                    return Status.CONTRADICTED
            if not self._has_more(test, fresh, estimate):
                self._record(estimate, fresh, 0.0)
                return Status.NOISE
        return Status.RISING

    def _test(self, fresh: Sample) -> Generator[None, None, tuple[Certificate, Estimate]]:
        """Return what is left to the optimum, by draws that have not been learnt from."""
        options, confidence = self.options.certificate, LEVELS.confidence
        before = self.problem.objective.bound(self.state, fresh)
        test = quadratic(self._metric(), before, confidence)
        if not (test.is_met(self.tolerance) and self._may_be_flat()):
            return test, before
        old = self.state, self.sample, self.estimate
        self.sample, self.estimate = fresh, before
        is_flat = self._is_flat_family()
        # Where a direction may be far flatter than the metric says, that foretells no end.
        left = 0.0 if is_flat else LEVELS.tiny * self.tolerance
        yield from self._stage(left, options.max_rounds if is_flat else options.num_steps)
        test = stepped(before, self.estimate, self._corrected().predicted, test.noise, confidence)
        if test.is_met(self.tolerance):
            self.state, self.sample, self.estimate = old
            self._metric_here = None
        return test, before

    def _may_be_flat(self) -> bool:
        options = self.options.certificate
        if not self.options.certificate_steps:
            return False
        is_known = self.flattest >= options.flat and not self._is_flat_family()
        return not is_known or self.problem.space.dim <= options.few_latents

    def _is_flat_family(self) -> bool:
        space = self.problem.space
        return self._metric().leaves_out_correlations or space.has_model_parameters

    def _has_more(self, test: Certificate, fresh: Sample, estimate: Estimate) -> bool:
        """Take more draws for the next stage, or the fresh ones; whether there are more."""
        count, most = len(fresh), self.options.local.max_groups
        allowed = self.options.certificate.noise_part * self.tolerance
        is_noisy, has_moved = not test.noise <= allowed, self.sample is fresh
        if is_noisy and count >= most:
            return False
        wanted = most
        if math.isfinite(test.noise):
            growth = min(test.noise / allowed, LEVELS.more_draws)
            wanted = min(most, math.ceil(count * max(growth, 1.0)))
        if (has_moved and is_noisy) or not self.sample:
            self._use(self._fresh(min(most, max(wanted, 2 * count))))
        elif wanted >= 4 * count or len(self.sample) + count > most:
            self._use(self._fresh(wanted))
        elif not has_moved:
            self.sample = self.sample + fresh
            self.estimate = self.estimate.joined(estimate)
        return True

    # -- one stage --------------------------------------------------------------------

    def _stage(self, gap: float, max_steps: float = math.inf) -> Steps:
        """Maximise the bound over the present draws.

        :param gap: to be left, in nats.
        :return: None at the optimum, or after so many steps; else why it stopped before.
        """
        options = self.options.local
        self.radius, refused, most = max(self.radius, LEVELS.notable), 0, 2 * options.check_every
        values = [self.estimate.value]
        while len(values) <= max_steps:
            found = self._corrected()
            self.gap = found.predicted
            if self.gap <= gap:
                return None
            if len(self.trace) >= self.monitor.max_steps:
                return Status.MAX_STEPS
            if _is_stalled(values, gap, self.gap, options):
                return Status.STUCK
            step = self._metric().step(found.direction, self.damping, self.radius)
            if step is None:
                return Status.STUCK
            self.step_size = step.step_size
            self._record(self.estimate, self.sample, step.step_size)
            estimate = self.problem.objective.bound(step.state, self.sample)
            ends = self._slope_at_the_end(step, estimate)
            if ends is None:
                refused += 1
                self._refuse(step, refused)
                if refused >= most or not self.radius > 0:
                    return Status.STUCK
                yield
                continue
            refused = 0
            gained = estimate.value - values[max(-len(values), -options.check_every)]
            self._accept(step, ends, estimate)
            values.append(estimate.value)
            if len(self.trace) % options.check_every == 0:
                if self._is_too_wide():
                    return Status.UNBOUNDED
                if self._held_out.is_overfitted(self.state, gained):
                    return Status.OVERFITTED
            yield
        return None

    def _corrected(self) -> Corrected:
        """Return the corrected natural gradient, and the gain that it predicts."""
        found = self._metric().corrected(self.estimate.mean)
        if not found.gain > 0 and self.pairs:
            self._forget()
            found = self._metric().corrected(self.estimate.mean)
        return found

    def _slope_at_the_end(self, step: Step, estimate: Estimate) -> float | None:
        """Return the bound's derivative along the step, at its end; None if the step is refused."""
        options = self.options.local
        value, new = self.estimate.value, estimate.value
        with np.errstate(all="ignore"):
            ends = float(estimate.mean.gradient @ step.change)
        if not (math.isfinite(new) and math.isfinite(ends)):
            return None
        turned = ends < -step.slope and new < value
        slack = min(options.slack * abs(step.slope), options.coarse_gap)
        slack += LEVELS.rounding_units * self.problem.rounding(value)
        return None if turned or new < value - slack else ends

    def _refuse(self, step: Step, refused: int) -> None:
        """Try shorter steps, and soon without the memory.

        :param refused: steps in a row.
        """
        self.radius = LEVELS.shrinkage * step.length
        self._metric().refused()
        if refused > 1:
            self._forget()

    def _accept(self, step: Step, ends: float, estimate: Estimate) -> None:
        """Take the step, and learn from it.

        :param ends: the slope of the bound at its end.
        """
        if ends > 0:
            self.radius = max(self.radius, LEVELS.growth * step.length)
        elif ends < -(1.0 - LEVELS.negligible) * step.slope:
            self.radius = max(0.5 * step.length, self._rounding)
        is_short, space = self._is_short(step, ends), self.problem.space
        # An integrated bound has exact slopes, whose secant says how far the step should have led.
        is_exact = self.problem.objective.is_exact and not space.has_model_parameters
        is_too_long = is_exact and ends < 0 and not is_short
        self.damping = step.slope / (step.slope - ends) if is_too_long else 1.0
        self._metric().accepted(step, self.estimate.mean, estimate.mean, is_short)
        if not is_short:
            self.pairs.clear()
        # Of long steps only one with other parameters is a pair: along a ridge of them and the
        # Gaussians no metric says where to go.
        if self.options.quasi_newton and (is_short or space.has_model_parameters):
            y = self.estimate.mean.natural - estimate.mean.natural
            self.pairs.append((step.change, y))
            del self.pairs[: -max(self._metric().max_pairs, 1)]
        self.state, self.estimate, self._metric_here = step.state, estimate, None

    def _is_short(self, step: Step, ends: float) -> bool:
        """Return whether the metric is about the same at both ends of a step."""
        options = self.options.local
        low, length = sorted([step.length, step.backward])
        is_alike = length < options.pair_ratio * low
        if self._metric().leaves_out_correlations and ends < step.slope:
            # Half the fall of the slope is the length that the step has for the bound itself.
            length = min(length, 0.5 * (step.slope - ends))
        dim = self.problem.space.dim
        several = max(dim / options.pair_latents, 1.0) if is_alike else 1.0
        return length <= options.pair_length * several

    def _is_too_wide(self) -> bool:
        """Return whether a standard deviation is one that few posteriors have, and none stops."""
        space = self.problem.space
        widest = max(float(np.max(sd)) for sd in space.stddevs(self.state).values())
        # Beside larger ones no square of one is seen.
        if not self.options.checks or not widest > space.eps**-0.5:
            return False
        return widens_without_limit(self.problem, self.state)

    # -- draws and the metric ---------------------------------------------------------

    def _fresh(self, num_groups: int) -> Sample:
        return self.problem.objective.sample(self.rng, num_groups)

    def _use(self, sample: Sample) -> None:
        self.sample = sample
        self.estimate = self.problem.objective.bound(self.state, sample)
        self._held_out.begin()

    def _metric(self) -> Metric:
        if self._metric_here is None:
            self._metric_here = self.problem.metric(self.state, self.pairs)
            self.flattest = min(self.flattest, self._metric_here.flattest)
        return self._metric_here

    def _forget(self) -> None:
        """Let the metric be all that is known of the bound's curvature."""
        self.pairs.clear()
        self._metric_here = None


def _is_stalled(values: list[float], gap: float, left: float, options: LocalSearchOptions) -> bool:
    """Return whether the last steps have gained next to nothing.

    :param values: of the bound, in nats.
    :param gap: that is to be left.
    :param left: what is.
    """
    count = 2 * options.check_every
    if len(values) <= count:
        return False
    gained = values[-1] - values[-1 - count]
    return gained < max(0.5 * gap, LEVELS.tiny * min(left, abs(values[-1])))
