"""A fit from several starts: which ones, and what comes of them.

A *leg* is the way from one start to its end: a search over fixed draws, and one with fresh draws
at every step where fixed ones are no good. A fit has as many legs as it takes to see the same
optimum twice:

- Where the prior is elsewhere than the guide's start, both begin, and the better goes on.
- An end that is no optimum is followed by other starts, a few; the best end is kept.
- From an optimum other points of high density are climbed. One that leads out of the Gaussian
  found, and as high, is a start of its own, for it may be another mode.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ngvi.fit.audit import audit
from ngvi.fit.by_values import by_values
from ngvi.fit.engine import Engine, Place
from ngvi.fit.joint import joint
from ngvi.fit.outcome import Ended, Outcome, Reason
from ngvi.fit.progress import Progress
from ngvi.fit.search import MIN_POINTS, Search
from ngvi.fit.settings import Settings
from ngvi.fit.start import (
    Prior,
    Start,
    climbed,
    find_other_start,
    find_prior_start,
    find_start,
    high_points,
    start_at,
)
from ngvi.fit.stochastic import StochasticSearch

#: Ends of a search over fixed draws, after which fresh ones go on.
NO_WAY = (Reason.STUCK, Reason.STALLED, Reason.OVERFITTED, Reason.NOISE, Reason.RIDGE)
#: Ends that other starts would not change.
ENDS = (Reason.CONVERGED, Reason.UNBOUNDED)
#: Starts after an end that is no optimum, and points to climb from one that is.
MAX_OTHERS, NUM_CLIMBS = 3, 3
#: A leg takes so many steps with fresh draws at most, or a quarter of all.
MIN_SHARE = 100
#: Steps of a climb.
MAX_CLIMB = 25
#: A point is outside of a Gaussian whose squared distance is so many of its standard deviations
#: above that of a draw; a density is as high that is less than so many nats, and half a nat a
#: latent, below that at the mean.
OUTSIDE, AS_HIGH = 6.0, 10.0
#: Points that lead to the same optimum are enough; another leg goes on if its rough end is so
#: near the best, in nats.
ENOUGH, ROUGH_GAP = 2, 2.0
#: Bounds within this and two standard errors are the same optimum, in nats.
SAME = 0.25


class Legs:
    """The legs of one fit; see the module."""

    def __init__(
        self, engine: Engine, rng: np.random.Generator, settings: Settings, progress: Progress
    ) -> None:
        self.engine, self.rng, self.settings, self.progress = engine, rng, settings, progress
        self.is_noisy = engine.evaluator.is_subsampled
        self.num_groups = math.ceil(MIN_POINTS / (2 * engine.parameters.dim + 1))
        self.ended: list[tuple[Outcome, str]] = []
        self.seen = 0  #: times that another point led to the best optimum
        self._one: Search | StochasticSearch | None = None
        self._used = 0
        self._share = max(MIN_SHARE, settings.max_steps // 4)

    def run(self, place: Place | None) -> Outcome:
        """All legs, and the best end.

        :param place: the only start; None leaves the choice to the fit.
        """
        start = find_start(self.engine, self.rng, self.num_groups, place)
        if start is None:
            return Outcome(self.engine.parameters.initial, Reason.NOT_FINITE)
        if place is not None or self.settings.deterministic or self.engine.evaluator.is_subsampled:
            self._leg(start)
            return self._final()
        prior = Prior.of(self.engine, self.rng)
        self._first_legs(start, prior)
        if not self.ended[0][0].converged:
            self._others(prior)
            is_over = self._used >= self.settings.max_steps
            if not is_over and self._best().reason not in ENDS:
                self._go_on()
        is_cheap = not self.engine.parameters.has_ordinary and self.engine.evaluator.rows is None
        if self._best().converged and is_cheap:
            self._look_for_modes(prior)
        return self._final()

    def interrupted(self) -> Outcome:
        """What there is, before the end."""
        one, best = self._one, self._best() if self.ended else None
        if best is not None and (one is None or _bound(best) >= -one.trace.last_loss):
            return dataclasses.replace(best, reason=Reason.INTERRUPTED)
        if one is None:
            return Outcome(self.engine.parameters.initial, Reason.INTERRUPTED)
        remaining = (one.trace.distances or [math.inf])[-1]
        return Outcome(one.place, Reason.INTERRUPTED, remaining, one.trace)

    # -- which starts -----------------------------------------------------------------

    def _first_legs(self, start: Start, prior: Prior | None) -> None:
        """From the guide's start, or from the prior, if that is elsewhere and better."""
        mean = self.engine.parameters.mean(self.engine.parameters.initial)
        other = None
        if prior is not None and not self.is_noisy and prior.is_elsewhere(mean):
            other = find_prior_start(self.engine, self.rng, self.num_groups, prior)
        if other is None:
            self._leg(start)
            return
        begun = []
        for one in (start, other):
            search = self._new_search()
            status = search.begin(one.place)
            self._used += len(search.trace)
            draws = self.engine.evaluator.draws(self.rng, 2 * self.num_groups)
            value = self.engine.evaluator.measure(search.place, draws).value
            begun.append((value if math.isfinite(value) else -math.inf, search, status, one.name))
        _, search, status, name = max(begun, key=lambda found: found[0])
        search.used = self._used - len(search.trace)
        self._one = search
        self._end(search, search.finish(status), name)

    def _others(self, prior: Prior | None) -> None:
        """Legs from other starts, until one converges."""
        start = find_other_start(self.engine, self.rng, self.num_groups, prior)
        starts = [] if start is None else [start]
        if prior is not None and not self.is_noisy:
            means = high_points(self.engine, self.rng, prior, MAX_OTHERS - 1)
            starts += [
                found
                for mean in means
                if (found := start_at(self.engine, self.rng, self.num_groups, mean, "a draw"))
            ]
        for start in starts:
            if self._used >= self.settings.max_steps:
                return
            best = self._best()
            outcome = self._leg(start)
            # The same end twice: noise or a ridge, which no other start is without.
            if outcome.reason in ENDS or _compared(best, outcome) == "the same bound":
                return

    def _go_on(self) -> None:
        """Use the steps that are left on the best end so far."""
        best = self._best()
        fresh = self._new_stochastic()
        outcome = fresh.run(best.place)
        self._used = fresh.used + len(fresh.trace)
        outcome = self._audited(dataclasses.replace(outcome, trace=best.trace.then(fresh.trace)))
        self._note(outcome, best.starts[0].name)

    def _look_for_modes(self, prior: Prior | None) -> None:
        """Climb from other points, and begin again where that leads elsewhere."""
        dim = self.engine.parameters.dim
        self.seen = tries = 0
        for point in high_points(self.engine, self.rng, prior, NUM_CLIMBS):
            if self.seen + tries >= ENOUGH or self._used >= self.settings.max_steps:
                return
            top = climbed(self.engine, point, MAX_CLIMB)
            if top is None:
                continue
            best = self._best()
            if self._is_inside(best.place, top):
                self.seen += 1
                continue
            mean = self.engine.parameters.mean(best.place)
            level, value = self.engine.evaluator.values(best.place, np.stack([mean, top]))
            if not value > level - AS_HIGH - 0.5 * dim:
                continue
            start = start_at(self.engine, self.rng, self.num_groups, top, "another point")
            if start is not None:
                tries += 1
                if self._compared_leg(start) == "the same bound":
                    self.seen += 1

    def _is_inside(self, place: Place, point: np.ndarray) -> bool:
        """Whether a point is where a Gaussian's draws are."""
        dim = self.engine.parameters.dim
        distance = self.engine.parameters.square_distance(place, point)
        return distance < dim + OUTSIDE * math.sqrt(2 * dim) + OUTSIDE

    def _compared_leg(self, start: Start) -> str:
        """A leg that ends early where it comes to nothing; what it found, in words."""
        best = self._best()
        search = self._new_search()
        status = search.begin(start.place)
        self._used = search.used + len(search.trace)
        outcome = Outcome(search.place, status or Reason.TRIED, search.gain, search.trace)
        outcome = self._audited(outcome)
        gap = _bound(best) - _bound(outcome)
        error = outcome.audit.error if outcome.audit else math.nan
        if status is None and gap < ROUGH_GAP + 2 * error:
            is_inside = self._is_inside(best.place, self.engine.parameters.mean(search.place))
            if not is_inside or gap < -SAME:
                return _compared(best, self._end(search, search.finish(None), start.name))
        self._note(outcome, start.name)
        return "the same bound" if status is None and gap < ROUGH_GAP else "no optimum"

    # -- one leg ----------------------------------------------------------------------

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
        outcome = self._audited(outcome)
        if isinstance(search, Search) and outcome.reason in NO_WAY:
            fresh = self._new_stochastic()
            fresh.trace, fresh.used = search.trace, search.used
            fresh.limit = len(search.trace) + self._share
            other = fresh.run(search.best)
            if other.converged:
                other = search.verified(other)
            other = self._audited(other)
            self._used = fresh.used + len(fresh.trace)
            if other.converged or _bound(other) >= _bound(outcome):
                outcome = other
        contradiction = 0.0 if outcome.audit is None else outcome.audit.contradiction
        if contradiction > self.settings.tolerance and outcome.reason is not Reason.UNBOUNDED:
            outcome = self._by_values(outcome)
        self._note(outcome, name)
        return outcome

    def _by_values(self, outcome: Outcome) -> Outcome:
        """Go on without gradients, which the values contradict."""
        fresh = StochasticSearch(
            by_values(self.engine), self.rng, self.settings, self.progress, used=self._used
        )
        fresh.ordinary_moves, fresh.limit = False, len(outcome.trace) + self._share
        fresh.trace, fresh.used = outcome.trace, self._used - len(outcome.trace)
        self._one = fresh
        other = self._audited(fresh.run(outcome.place))
        self._used = fresh.used + len(fresh.trace)
        is_better = _bound(other) >= _bound(outcome)
        return other if is_better else outcome

    def _note(self, outcome: Outcome, name: str) -> None:
        self.ended.append((outcome, name))
        self._one = None

    def _audited(self, outcome: Outcome) -> Outcome:
        if self.engine.evaluator.is_subsampled:
            return outcome
        found = audit(self.engine, outcome.place, self.rng)
        reason, remaining = outcome.reason, outcome.remaining
        if outcome.converged and not math.isfinite(found.bound):
            reason, remaining = Reason.EDGE, math.inf
        elif outcome.converged and found.contradiction > self.settings.tolerance:
            reason, remaining = Reason.JUMP, found.contradiction
        elif outcome.converged and remaining > 2 * self.settings.tolerance:
            reason = Reason.NOISE
        return dataclasses.replace(outcome, reason=reason, remaining=remaining, audit=found)

    # -- the end ----------------------------------------------------------------------

    def _best(self) -> Outcome:
        """The end with the highest bound, and what is known of the others."""

        def level(pair: tuple[Outcome, str]) -> tuple[bool, float]:
            bound = _bound(pair[0])
            return math.isfinite(bound), bound + SAME * pair[0].converged

        ranked = sorted(self.ended, key=level, reverse=True)
        best = ranked[0][0]
        starts = tuple(
            Ended(
                name,
                one.audit.bound if one.audit else math.nan,
                one.audit.error if one.audit else math.nan,
                len(one.trace),
                "kept" if one is best else _compared(best, one),
            )
            for one, name in ranked
        )
        has_ordinary = self.engine.parameters.has_ordinary
        return dataclasses.replace(best, starts=starts, seen=self.seen, has_ordinary=has_ordinary)

    def _final(self) -> Outcome:
        """The best end, with the bound by new draws where those that chose it flatter it."""
        best = self._best()
        if len(self.ended) < 2 or best.audit is None:
            return best
        found = audit(self.engine, best.place, self.rng)
        return dataclasses.replace(best, audit=found) if math.isfinite(found.bound) else best


def _bound(outcome: Outcome) -> float:
    """By independent draws, if any were asked."""
    return -math.inf if outcome.audit is None else outcome.audit.bound


def _compared(best: Outcome, other: Outcome) -> str:
    if best.audit is None or other.audit is None:
        return "not compared"
    gap = best.audit.bound - other.audit.bound
    if abs(gap) < SAME + 2 * math.hypot(best.audit.error, other.audit.error):
        return "the same bound"
    if other.converged:
        return f"another optimum, {gap:.2f} nats below"
    return f"no optimum, {gap:.3g} nats below"
