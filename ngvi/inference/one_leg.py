"""One leg of a fit, from a start to its end, and how the ends of some compare.

A *leg* is a search over fixed draws, and one with fresh draws at every step where fixed ones are
no good. Legs are compared where they are equally rough, at the ends of their first stages: there
they go on, or not.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ngvi.inference.audit import HARDLY_KNOWN, audit, jumps
from ngvi.inference.by_values import by_values, tried
from ngvi.inference.climbs import Climbed, beside_the_most, has_more, has_more_as_high, heights
from ngvi.inference.engine import Engine, Place
from ngvi.inference.joint import joint
from ngvi.inference.outcome import ANOTHER, BEYOND_PRECISION, THE_SAME, Ended, Outcome, Reason
from ngvi.inference.precision import rounding
from ngvi.inference.progress import Progress
from ngvi.inference.search import MIN_POINTS, Search
from ngvi.inference.settings import Settings
from ngvi.inference.start import Start
from ngvi.inference.stochastic import StochasticSearch
from ngvi.inference.trace import Trace

#: Ends of a search over fixed draws, after which fresh ones go on.
NO_WAY = (Reason.STUCK, Reason.STALLED, Reason.OVERFITTED, Reason.NOISE, Reason.RIDGE)
#: A leg takes so many steps with fresh draws at most, or a quarter of all.
MIN_SHARE = 100
#: Draws of a Gaussian beside which jumps are looked for.
AT_DRAWS = 8
#: Where other optima are looked for, fresh draws of a leg may have so many times the gradients that
#: led to the one that is known, and so many at least.
LOOKING, LEAST = 3, 20_000
#: A point is outside of a Gaussian whose squared distance is so many of its standard deviations
#: above that of a draw.
OUTSIDE = 6.0
#: Another leg goes on if its rough end is so near that of the best, in nats.
ROUGH_GAP = 2.0
#: Ends so near to their optima, in nats, tell which start is the best.
ROUGH_END = 0.5
#: The name of a start at the end of a climb, and that of one where a Gaussian misses mass.
ANOTHER_POINT, MISSED_POINT = OF_LATENTS = "another point", "a missed point"
#: Of legs that rounding hides so many are enough whose bounds differ by less than this part.
NUM_ALIKE, ALIKE = 3, 1e-2
#: The standard error of a bound, in nats, of a leg from which fresh draws take hundreds of steps
#: to anywhere: other points tell of other optima sooner.
LOST = 1e6
#: An end from which slopes promise so many times the bound, and no step gains anything, is none.
ABSURD = 1e6
#: Bounds within this and two standard errors are the same optimum, in nats.
SAME = 0.1


@dataclasses.dataclass(eq=False)
class Begun:
    """A leg that waits at the end of its first stage, which ended so."""

    search: Search
    status: Reason | None
    outcome: Outcome
    name: str


class Runner:
    """Runs legs, and ranks where they ended."""

    def __init__(
        self,
        engine: Engine,
        rng: np.random.Generator,
        settings: Settings,
        progress: Progress,
        used: int = 0,
    ) -> None:
        self.engine, self.rng, self.settings, self.progress = engine, rng, settings, progress
        self.is_noisy = engine.evaluator.is_subsampled
        self.num_groups = math.ceil(MIN_POINTS / (2 * engine.parameters.dim + 1))
        self.ended: list[tuple[Outcome, str]] = []
        self.begun: list[Begun] = []
        self.seen = 0  #: other starts that led to the best optimum
        self.seen_own = 0  #: of these, with other parameters of the model's own
        self.tops: list[Climbed] = []  #: where climbs ended
        self.waiting: list[Climbed] = []  #: of these, others that no leg has begun at
        #: The gradients that led to an optimum, once others are looked for.
        self.spent = math.inf
        self.climbed_by = 0  #: gradients of climbs
        self.only_tops = False  #: whether of climbs those alone are followed that end at a maximum
        self.are_enough = False  #: whether more climbs are made only as they are cheap
        self.is_cut = False  #: whether a higher top was not followed, for want of steps
        self.spike = math.inf  #: tops above this log density, as a funnel's, have hardly any mass
        self.least = -math.inf  #: tops above this one are as high as that of the best Gaussian
        self.spikes: list[Begun] = []  #: legs from such tops that led nowhere
        self._levels: dict[int, tuple[Place, float]] = {}  #: log densities at means, by place
        self._one: Search | StochasticSearch | None = None
        self._reached: tuple[Outcome, str] | None = None  #: where a leg was that goes on otherwise
        self._used = used
        self._share = max(MIN_SHARE, settings.max_steps // 4)

    def _begin(self, start: Start, max_steps: float = math.inf, *stage: float) -> Begun:
        """A leg at the end of its first stage."""
        self._audit_begun()  # so that nothing is lost if this one is interrupted
        search = self._new_search()
        status = search.begin(start.place, max_steps, *stage)
        self._used += len(search.trace)
        begun = Begun(search, status, self._rough(search, status), start.name)
        self.begun.append(begun)
        self._one = None
        return begun

    def _ranked(self) -> list[Begun]:
        """Legs that have begun, the best first."""
        if len(self.begun) > 1 or self.ended:  # the only one needs no rank
            self._audit_begun()
        return sorted(self.begun, key=lambda one: -bound_of(one.outcome))

    def _audit_begun(self) -> None:
        for one in self.begun:
            if one.outcome.audit is None:
                one.outcome = self._audited(one.outcome)

    def _next_best(self, best: Outcome, gap: float = 0.0) -> Begun | None:
        """The best of those that have begun, unless the best end was better when as rough.

        :param gap: in nats, by which it may have been.
        """
        ranked = self._ranked()
        return ranked[0] if ranked and self._may_be_better(ranked[0], best, gap) else None

    def _may_be_better(self, begun: Begun, best: Outcome, gap: float = 0.0) -> bool:
        """Whether a rough end is about as high as the best end was when as rough.

        :param gap: in nats, by which it may be lower.
        """
        self._audit_begun()
        level, outcome = bound_of(best), begun.outcome
        if best.rough is not None:
            level = min(level, audit(self.engine, best.rough, self.rng).bound)
        error = outcome.audit.error if outcome.audit else math.nan
        is_worse = level - bound_of(outcome) > gap + ROUGH_GAP + 2 * error
        return math.isfinite(bound_of(outcome)) and not is_worse

    def _finish(self, begun: Begun) -> Outcome:
        """The rest of a leg."""
        self.begun.remove(begun)
        self._one = search = begun.search
        search.used = self._used - len(search.trace)
        return self._end(search, search.finish(begun.status), begun.name)

    def _rough(self, search: Search, status: Reason | None) -> Outcome:
        """The end of a first stage."""
        rough = {"trace": search.trace, "rough": search.rough}
        return Outcome(search.place, status or Reason.TRIED, search.gain, **rough)

    def _new_search(self) -> Search:
        options = self.rng, self.settings, self.progress
        self._one = search = Search(joint(self.engine), *options, used=self._used)
        return search

    def _new_stochastic(self) -> StochasticSearch:
        options = self.rng, self.settings, self.progress
        self._one = search = StochasticSearch(self.engine, *options, used=self._used)
        return search

    def _leg(self, start: Start) -> Outcome:
        search = self._new_stochastic() if self.is_noisy else self._new_search()
        return self._end(search, search.run(start.place), start.name)

    def _end(self, search: Search | StochasticSearch, outcome: Outcome, name: str) -> Outcome:
        """Go on with fresh draws if fixed ones are no good, and ask ordinary ones at the end."""
        self._used = search.used + len(search.trace)
        rough = search.rough if isinstance(search, Search) else None
        outcome = self._audited(dataclasses.replace(outcome, rough=rough))
        if self._are_rounded_alike(outcome) or self._is_lost(outcome):
            self._note(outcome, name)
            return outcome
        self._reached = outcome, name  # not lost, if what follows is interrupted
        if isinstance(search, Search) and outcome.reason in NO_WAY and not self._jumps(outcome):
            other = self._freshly(search, search.best, self._share)
            if other.reason is Reason.STUCK:  # what it estimated before is no estimate
                other = dataclasses.replace(
                    other, remaining=max(other.remaining, outcome.remaining)
                )
            if other.converged or bound_of(other) >= bound_of(outcome):
                outcome = dataclasses.replace(other, rough=rough)
        contradiction = 0.0 if outcome.audit is None else outcome.audit.contradiction
        is_jump = contradiction > self.settings.tolerance or outcome.reason is Reason.RARE
        if outcome.reason is Reason.MAX_STEPS:  # on a slope, which gradients see as well
            is_jump = self._jumps(outcome)
        if is_jump and outcome.reason is not Reason.UNBOUNDED:
            outcome = self._by_values(outcome)
        self._note(outcome, name)
        return outcome

    def _freshly(self, search: Search, place: Place, max_steps: float = math.inf) -> Outcome:
        """Go on from a search with fresh draws at every step, which it verifies if they claim.

        While other starts wait, the way ends where it is known which of them is better.
        """
        fresh, tolerance = self._new_stochastic(), self.settings.tolerance
        fresh.trace, fresh.used = search.trace, search.used
        fresh.limit = len(search.trace) + max_steps
        # They might take a hundred times what has led to an optimum, where others are looked for.
        fresh.budget = self.engine.evaluator.num_gradients + max(LOOKING * self.spent, LEAST)
        if self.begun and math.isfinite(max_steps):
            tolerance = max(tolerance, ROUGH_END)
            fresh.settings = dataclasses.replace(self.settings, tolerance=tolerance)
        outcome = fresh.run(place)
        if self.engine.evaluator.num_gradients >= fresh.budget and self._is_highest(outcome):
            fresh.budget = math.inf  # it is no look for others, but the way to the best
            outcome = fresh.run(outcome.place)
        if outcome.converged and tolerance > self.settings.tolerance:
            outcome = dataclasses.replace(outcome, reason=Reason.TRIED)
        elif outcome.converged:
            outcome = search.verified(outcome)
        self._used = fresh.used + len(fresh.trace)
        return self._audited(outcome)

    def _is_highest(self, outcome: Outcome) -> bool:
        """Whether the end of a leg that goes on is above all that have ended."""
        if outcome.reason is not Reason.MAX_STEPS or not self.ended:
            return False
        found = audit(self.engine, outcome.place, self.rng)
        return found.bound - 2 * found.error > bound_of(self._best_ended()) + SAME

    def _jumps(self, outcome: Outcome) -> bool:
        """Whether values promise far more than fresh gradients, which then lead nowhere."""
        promised = 0.0 if outcome.audit is None else outcome.audit.contradiction
        if promised <= self.settings.tolerance:
            return False
        draws = self.engine.evaluator.draws(self.rng, 4 * self.num_groups)
        measured = self.engine.evaluator.measure(outcome.place, draws)
        known = self.engine.geometry(outcome.place, []).corrected(measured.mean).fisher
        return promised > self.settings.tolerance + 2 * known

    def _by_values(self, outcome: Outcome) -> Outcome:
        """Go on without gradients, which the values contradict."""
        other = self._only_by_values(outcome.place, outcome.trace)
        is_better = surely(other) >= surely(outcome)
        return other if is_better else outcome

    def _only_by_values(self, place: Place, trace: Trace) -> Outcome:
        """A leg without gradients.

        :param trace: what led to its first place.
        """
        fresh = StochasticSearch(
            by_values(self.engine), self.rng, self.settings, self.progress, used=self._used
        )
        fresh.limit = len(trace) + self._share
        fresh.trace, fresh.used = trace, self._used - len(trace)
        self._one = fresh
        other = fresh.run(place)
        if other.converged:
            other = tried(fresh, other)
        self._used = fresh.used + len(fresh.trace)
        return dataclasses.replace(self._audited(other), has_jump=self._has_jump(other.place))

    def _has_jump(self, place: Place) -> bool:
        """Whether the log density jumps beside some of a Gaussian's draws.

        If not, it was rounding that had contradicted the gradients of a leg.
        """
        noise = self.rng.standard_normal((AT_DRAWS, self.engine.parameters.dim))
        draws, _ = self.engine.parameters.draws(place, noise)
        return any(jumps(self.engine, place, self.rng, point) for point in draws)

    def _are_rounded_alike(self, *others: Outcome) -> bool:
        """Whether the best legs have ended alike, where rounding hides what any bound is.

        So it is of data far beyond the scale of their likelihood: no start is better than others.

        :param others: ends beside those that are noted.
        """
        self._audit_begun()
        known = [*others, *(one for one, _ in self.ended), *(one.outcome for one in self.begun)]
        bounds = sorted((bound_of(one) for one in known if not one.converged), reverse=True)
        if len(bounds) < NUM_ALIKE or not math.isfinite(bounds[NUM_ALIKE - 1]):
            return False
        best, last = bounds[0], bounds[NUM_ALIKE - 1]
        is_hidden = rounding(self.engine, best) > BEYOND_PRECISION * self.settings.tolerance
        return is_hidden and best - last < ALIKE * abs(best)

    def _is_lost(self, outcome: Outcome) -> bool:
        """Whether a leg beside an optimum has ended with draws so far down that it is nowhere."""
        is_far = outcome.audit is not None and outcome.audit.error > LOST
        return is_far and any(one.converged for one, _ in self.ended)

    def _note(self, outcome: Outcome, name: str) -> None:
        self.ended.append((outcome, name))
        self._one = self._reached = None

    def _audited(self, outcome: Outcome) -> Outcome:
        if self.engine.evaluator.is_subsampled:
            return outcome
        found = audit(self.engine, outcome.place, self.rng)
        reason, remaining = outcome.reason, outcome.remaining
        if outcome.converged and not math.isfinite(found.bound):
            reason, remaining = Reason.EDGE, math.inf
        elif outcome.converged and found.rounded_up:
            reason, remaining = Reason.ROUNDED, abs(found.rounded_up)
        elif outcome.converged and found.contradiction > self.settings.tolerance:
            reason, remaining = Reason.JUMP, found.contradiction
        elif outcome.converged and found.is_hardly_known:
            reason, remaining = Reason.RARE, found.error
        elif outcome.converged and remaining > 2 * self.settings.tolerance:
            reason = Reason.NOISE
        return dataclasses.replace(outcome, reason=reason, remaining=remaining, audit=found)

    def _allow(self, count: int) -> None:
        """So many more steps: those of a race are not the winner's."""
        count += self.settings.max_steps
        self.settings = dataclasses.replace(self.settings, max_steps=count)
        for one in self.begun:
            one.search.settings = self.settings

    def _best_ended(self) -> Outcome:
        """The end with the highest bound."""
        return max((outcome for outcome, _ in self.ended), key=level_of)

    def _best(self) -> Outcome:
        """The end with the highest bound, begun legs included, and what is known of the others."""
        known = self.ended + [(one.outcome, one.name) for one in self.begun]
        known += [self._reached] if self._reached else []
        ranked = sorted(known, key=lambda pair: level_of(pair[0]), reverse=True)
        best = ranked[0][0]
        starts = tuple(
            Ended(
                name,
                one.audit.bound if one.audit else math.nan,
                one.audit.error if one.audit else math.nan,
                len(one.trace),
                "kept" if one is best else compared(best, one),
            )
            for one, name in ranked
        )
        inside, outside = self._parted(best)
        num_tops = len(heights(outside)) + (inside > 0)
        if ranked[0][1] == ANOTHER_POINT:  # the climb that it began with is no other
            inside = max(inside - 1, 0)
        return dataclasses.replace(
            best,
            starts=starts,
            seen=self.seen + inside,
            seen_own=self.seen_own,
            num_tops=num_tops,
            has_more=has_more(outside, inside, self.least),
            has_more_as_high=not self._has_jumps(best)
            and has_more_as_high(outside, inside, self.least),
            has_ordinary=self.engine.parameters.has_ordinary,
        )

    def _has_jumps(self, best: Outcome) -> bool:
        """Whether the log density jumps where a leg by values alone has ended beside the best.

        Climbs end wherever they meet a jump, which tells of no other optima.
        """
        level = bound_of(best) - ROUGH_GAP
        return any(one.has_jump and bound_of(one) > level for one, _ in self.ended)

    def _parted(self, best: Outcome) -> tuple[int, list[Climbed]]:
        """How many climbs ended in the best Gaussian, and the others; spikes are neither.

        Of tops in the Gaussian it has one. Where there are more, as in one that is as broad as the
        prior, where the data tell nothing, those of other heights are others.
        """
        inside: list[Climbed] = []
        outside: list[Climbed] = []
        for climb in self.tops:
            if climb.height < self.spike:
                is_inside = self._is_inside(best.place, climb.mean)
                (inside if is_inside else outside).append(climb)
        others = beside_the_most(inside)
        return len(inside) - len(others), outside + others

    def _is_inside(self, place: Place, point: np.ndarray) -> bool:
        """Whether a point is where a Gaussian's draws are."""
        dim = self.engine.parameters.dim
        distance = self.engine.parameters.square_distance(place, point)
        return distance < dim + OUTSIDE * math.sqrt(2 * dim) + OUTSIDE


def level_of(outcome: Outcome) -> tuple[bool, bool, float]:
    """What makes one end better than another: a little noise is no reason to give up an optimum."""
    bound = surely(outcome)
    return math.isfinite(bound), not is_all_rounding(outcome), bound + SAME * outcome.converged


def is_all_rounding(outcome: Outcome) -> bool:
    """Whether slopes promise a million times what the bound is, and no step gains anything.

    Far out, where large numbers cancel, a density may be thousands of nats too high in double
    precision, as a negative binomial's with a concentration of 1e124.
    """
    is_stuck = outcome.reason in (Reason.STUCK, Reason.STALLED)
    return is_stuck and ABSURD * (1 + abs(bound_of(outcome))) < outcome.remaining < math.inf


def surely(outcome: Outcome) -> float:
    """The bound, or where it is hardly known, what it is at least: rounding may make a density
    enormous at some draws.
    """
    bound = bound_of(outcome)
    if outcome.audit is not None and outcome.audit.error > HARDLY_KNOWN:
        bound -= 2 * outcome.audit.error
    return bound


def bound_of(outcome: Outcome) -> float:
    """By independent draws, if any were asked."""
    return -math.inf if outcome.audit is None else outcome.audit.bound


def compared(best: Outcome, other: Outcome) -> str:
    """What another end says of the best, in words."""
    if best.audit is None or other.audit is None:
        return "not compared"
    if is_all_rounding(other):
        return "not compared, as slopes contradict values there: all is rounding"
    if best.audit.is_hardly_known or other.audit.is_hardly_known:
        return "not compared, as a few draws make up the bound"
    gap = best.audit.bound - other.audit.bound
    if abs(gap) < SAME + 2 * math.hypot(best.audit.error, other.audit.error):
        return THE_SAME
    if other.converged:
        return f"{ANOTHER}, {gap:.2f} nats below"
    return f"no optimum, {gap:.3g} nats below"
