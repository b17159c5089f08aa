"""A fit from several starts: which ones, and what comes of them.

A *leg* is the way from one start to its end: a search over fixed draws, and one with fresh draws
at every step where fixed ones are no good. A fit has as many legs as it takes to see the same
optimum twice:

- Where the prior is elsewhere than the guide's start, both begin, and the better goes on. Where
  neither comes to the end of its first stage, as with a network, others race with them.
- At an optimum, the draw of the highest weight is a start of its own where it tells of mass that
  the Gaussian misses, as along a ridge.
- An end that is no optimum is followed by other starts, a few; the best end is kept.
- Where the model has many parameters of its own, a network's weights say, other values of these
  race: about those that were given, as far as these are from zero. The given ones are never lost,
  and an end is known to be the best only if some others led to it.
- From an optimum other points of high density are climbed, whatever the other starts say: broad
  ones may all pass over a narrow mode. A climb that leads out of the Gaussian found, and as high,
  is a start of its own. Where there are several modes, so many points follow until the best
  optimum has been led to again; if nothing leads there, it is not known to be the best. Where
  climbs end at tops that no other has met, as with an unknown frequency, there are more of them,
  and more climbs.

Legs are compared where they are equally rough, at the ends of their first stages: there they go
on, or not.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ngvi.fit.audit import MAX_DRAWS, audit, difference, missed
from ngvi.fit.by_values import by_values, tried
from ngvi.fit.climbs import Climbed, climbed, has_more, heights, high_points
from ngvi.fit.engine import Engine, Place
from ngvi.fit.joint import joint
from ngvi.fit.outcome import ANOTHER, THE_SAME, Ended, Outcome, Reason
from ngvi.fit.prior import Prior
from ngvi.fit.progress import Progress
from ngvi.fit.search import MIN_POINTS, Search
from ngvi.fit.settings import Settings
from ngvi.fit.start import (
    Start,
    find_other_start,
    find_prior_start,
    find_start,
    start_at,
    start_beside,
)
from ngvi.fit.stochastic import StochasticSearch

#: Ends of a search over fixed draws, after which fresh ones go on.
NO_WAY = (Reason.STUCK, Reason.STALLED, Reason.OVERFITTED, Reason.NOISE, Reason.RIDGE)
#: Ends that other starts would not change.
ENDS = (Reason.CONVERGED, Reason.UNBOUNDED)
#: Starts after an end that is no optimum, and points to climb from one that is.
MAX_OTHERS, NUM_CLIMBS = 3, 7
#: Starts of a race, few at first, and the steps of each over fixed draws.
MAX_RACERS, FEW_RACERS, RACE_STEPS = 24, 8, 40
#: Parameters of the model's own that may be a network: so many numbers. Others of these race with
#: so many steps each, the best few with as many again; so many are followed to their ends.
NETWORK, OWN_RACERS, OWN_STEPS, OWN_FEW, OWN_ENDS = range(11, 5_001), 8, 80, 3, 2
#: If so many lead to the same optimum as the given ones, that is enough, and fewer are not.
OWN_SAME = 3
#: The first stages of this race end so near to their optima, in nats, and have so many points: over
#: a plateau of a network's weights their curvature promises nothing, where tens of nats are left.
OWN_STAGE = 0.01, 40
#: Steps with fresh draws of each racer; of the best half twice as many, and so on to three or two.
FRESH_STEPS, FRESH_PART = 40, 2
#: Of the points the highest, which may all lead to the same place; the others are any.
NUM_HIGH = 2
#: Where a climb has led elsewhere: points, legs, and how many times as many gradients as before.
MAX_CLIMBS, MAX_LEGS, LOOKING = 14, 6, 3
#: Points at most, where many climbs end at tops that no other has met, and how many have to lead
#: to the best optimum there.
MOST_CLIMBS, SEEN_OF_MANY = 28, 2
#: A leg takes so many steps with fresh draws at most, or a quarter of all.
MIN_SHARE = 100
#: Steps of a climb, and more of one that is on its way up elsewhere.
MAX_CLIMB, MAX_CLIMB_ON = 25, 75
#: The most latents of a climb in whitened coordinates.
MAX_WHITENED = 500
#: A point is outside of a Gaussian whose squared distance is so many of its standard deviations
#: above that of a draw; a density is as high that is less than so many nats, and half a nat a
#: latent, below that at the mean.
OUTSIDE, AS_HIGH = 6.0, 10.0
#: Points that lead to the same optimum are enough; another leg goes on if its rough end is so
#: near that of the best, in nats.
ENOUGH, ROUGH_GAP = 5, 2.0
#: Ends so near to their optima, in nats, tell which start is the best.
ROUGH_END = 0.5
#: A weight so many nats above the average tells of mass that a Gaussian misses.
MISSED = 3.0
#: The name of a start at the end of a climb.
ANOTHER_POINT = "another point"
#: Bounds within this and two standard errors are the same optimum, in nats.
SAME = 0.1


@dataclasses.dataclass(eq=False)
class _Begun:
    """A leg that waits at the end of its first stage, which ended so."""

    search: Search
    status: Reason | None
    outcome: Outcome
    name: str


class Legs:
    """The legs of one fit; see the module."""

    def __init__(
        self, engine: Engine, rng: np.random.Generator, settings: Settings, progress: Progress
    ) -> None:
        self.engine, self.rng, self.settings, self.progress = engine, rng, settings, progress
        self.is_noisy = engine.evaluator.is_subsampled
        self.num_groups = math.ceil(MIN_POINTS / (2 * engine.parameters.dim + 1))
        self.ended: list[tuple[Outcome, str]] = []
        self.begun: list[_Begun] = []
        self.has_network = self._has_network()
        self.is_rugged = False  #: whether no start came to the end of its first stage
        self.num_followed = FEW_RACERS  #: legs after the first one, then
        self.seen = 0  #: other starts that led to the best optimum
        self.tops: list[Climbed] = []  #: where climbs ended
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
        outcome = self._first_leg(start, prior)
        if self.has_network:
            self._race_parameters(start)
        elif not outcome.converged:
            self._others(prior)
            if self.is_rugged:
                self._allow(max(self._used + self._share - self.settings.max_steps, 0))
            is_over = self._used >= self.settings.max_steps
            if not is_over and self._best().reason not in ENDS:
                self._go_on()
        is_cheap = not self.engine.parameters.has_ordinary and self.engine.evaluator.rows is None
        if self._best().converged and is_cheap:
            self._look_for_modes(prior)
        return self._final()

    def interrupted(self, answers: bool = True) -> Outcome:
        """What there is, before the end.

        :param answers: whether the model does: the draws that a search learns from flatter it.
        """
        one, best = self._one, self._best() if self.ended or self.begun else None
        if best is not None:
            best = dataclasses.replace(best, reason=Reason.INTERRUPTED)
        if one is None:
            return best or Outcome(self.engine.parameters.initial, Reason.INTERRUPTED)
        remaining = (one.trace.distances or [math.inf])[-1]
        last = Outcome(one.place, Reason.INTERRUPTED, remaining, one.trace)
        if answers:
            last = self._audited(last)
        level = -one.trace.last_loss if last.audit is None else _bound(last)
        return last if best is None or level > _bound(best) + SAME else best

    # -- which starts -----------------------------------------------------------------

    def _first_leg(self, start: Start, prior: Prior | None) -> Outcome:
        """From the guide's start, or from the prior, if that is elsewhere and better.

        Where none comes to the end of its first stage, others race with them.
        """
        mean = self.engine.parameters.mean(self.engine.parameters.initial)
        self._begin(start)
        if prior is not None and not self.is_noisy and prior.is_elsewhere(mean):
            other = find_prior_start(self.engine, self.rng, self.num_groups, prior)
            if other is not None:
                self._begin(other)
        if all(one.status in NO_WAY for one in self.begun):
            before = self._used
            self._audit_begun()
            jumps = self._jumps(self._ranked()[0].outcome)  # gradients tell nothing then
            self._race(prior, FEW_RACERS)
            self.is_rugged = len(self.begun) > MAX_OTHERS
            if self.is_rugged and not jumps and self._ranked()[0].status is not None:
                self._begin_at(prior, 0, MAX_RACERS - FEW_RACERS)
                self._halve()
                self.num_followed = MAX_OTHERS - 1
            self._allow(self._used - before)
        return self._finish(self._ranked()[0])

    def _allow(self, count: int) -> None:
        """So many more steps: those of a race are not the winner's."""
        count += self.settings.max_steps
        self.settings = dataclasses.replace(self.settings, max_steps=count)
        for one in self.begun:
            one.search.settings = self.settings

    def _race(self, prior: Prior | None, count: int) -> None:
        """Begin from other points, narrow starts in which are cheap."""
        start = find_other_start(self.engine, self.rng, self.num_groups, prior)
        if start is not None and self._used < self.settings.max_steps:
            self._begin(start)
        if prior is None or self.is_noisy:
            return
        self._begin_at(prior, (count - 1) // 2, count - 1)

    def _begin_at(self, prior: Prior | None, num_high: int, count: int) -> None:
        """Begin at the highest points and any others."""
        for point in high_points(self.engine, self.rng, prior, num_high, count):
            start = start_at(self.engine, self.rng, self.num_groups, point, "a draw")
            if start is not None and self._used < self.settings.max_steps:
                self._begin(start, RACE_STEPS)

    def _halve(self) -> None:
        """Some steps with fresh draws for each, more for the best half, and so on.

        Where fixed draws are overfitted, the ends of first stages do not tell which start is good.
        """
        count, steps = len(self.begun), FRESH_STEPS
        while count > MAX_OTHERS:
            for begun in self._ranked()[:count]:
                search, before = begun.search, len(begun.search.trace)
                outcome = self._a_few(search, steps)
                search.place = search.best = search.rough = outcome.place
                self._used += len(search.trace) - before
                begun.status, begun.outcome = Reason.OVERFITTED, self._rough(search, outcome.reason)
            count, steps = count // FRESH_PART, 2 * steps

    def _a_few(self, search: Search, max_steps: int) -> Outcome:
        """So many steps with few fresh draws from the end of a first stage."""
        fresh = self._new_stochastic()
        fresh.trace, fresh.used = search.trace, self._used - len(search.trace)
        fresh.limit, fresh.most_groups = len(search.trace) + max_steps, fresh.num_groups
        fresh.settings = dataclasses.replace(
            self.settings, max_steps=self._used + max_steps, tolerance=ROUGH_END
        )
        return fresh.run(search.best)

    def _has_network(self) -> bool:
        """Whether the model has so many parameters of its own that they may be a network."""
        parameters = self.engine.parameters
        if not parameters.has_ordinary or self.engine.evaluator.rows is not None:
            return False
        return sum(map(np.size, parameters.own(parameters.initial))) in NETWORK

    def _race_parameters(self, start: Start) -> None:
        """Begin with other parameters, and follow the best to their ends.

        Takes three times the steps of a leg at most.
        """
        most = self.settings.max_steps
        steps = min(OWN_STEPS, most // OWN_RACERS)
        self._allow(self._used + most - self.settings.max_steps)
        for _ in range(OWN_RACERS - 1):
            other = start_beside(self.engine, self.rng, self.num_groups, start)
            if other is not None:
                begun = self._begin(other, steps, *OWN_STAGE)
                self.seen += self._leads_to_the_best(begun)
            if self.seen == OWN_SAME:
                return
        for begun in self._ranked()[:OWN_FEW]:
            if begun.status is Reason.TRIED:
                self._go_on_with(begun, steps)
        for begun in self._ranked()[:OWN_ENDS]:
            self._allow(self._used + most - self.settings.max_steps)
            self._finish(begun)
        self.seen = sum(start.kept == THE_SAME for start in self._best().starts)

    def _leads_to_the_best(self, begun: _Begun) -> bool:
        """Whether a first stage has ended where the best leg has."""
        best = self._best_ended()
        if begun.status is not None or not best.converged:
            return False
        self._audit_begun()
        return _compared(best, begun.outcome) == THE_SAME

    def _go_on_with(self, begun: _Begun, max_steps: int) -> None:
        """Some more steps of a first stage."""
        self._one = search = begun.search
        before = len(search.trace)
        search.used = self._used - before
        begun.status = search.go_on(max_steps, OWN_STAGE[0])
        self._used += len(search.trace) - before
        begun.outcome = self._rough(begun.search, begun.status)
        self._one = None

    def _rough(self, search: Search, status: Reason | None) -> Outcome:
        """The end of a first stage."""
        rough = {"trace": search.trace, "rough": search.rough}
        return Outcome(search.place, status or Reason.TRIED, search.gain, **rough)

    def _others(self, prior: Prior | None) -> None:
        """Legs from other starts, until one converges."""
        if len(self.begun) < MAX_OTHERS:
            self._race(prior, MAX_OTHERS)
        count, gap, last = MAX_OTHERS, 0.0, self.settings.max_steps
        if self.is_rugged:  # many ends, and rough ones say little; the best shall have the rest
            count, gap, last = self.num_followed, math.inf, last - self._share
        for _ in range(count):
            best = self._best_ended()
            found = self._next_best(best, gap)
            if found is None or self._used >= last:
                return
            outcome = self._finish(found)
            # The same end twice: noise or a ridge, which no other start is without.
            is_same = _compared(best, outcome) == THE_SAME
            if outcome.reason in ENDS or (is_same and not self.is_rugged):
                return

    def _go_on(self) -> None:
        """Use the steps that are left on the best end so far."""
        best = self._best()
        outcome = self._freshly(self._new_search(), best.place)
        outcome = dataclasses.replace(outcome, trace=best.trace.then(outcome.trace))
        self._note(outcome, best.starts[0].name)

    def _freshly(self, search: Search, place: Place, max_steps: float = math.inf) -> Outcome:
        """Go on from a search with fresh draws at every step, which it verifies if they claim.

        While other starts wait, the way ends where it is known which of them is better.
        """
        fresh, tolerance = self._new_stochastic(), self.settings.tolerance
        fresh.trace, fresh.used = search.trace, search.used
        fresh.limit = len(search.trace) + max_steps
        if self.begun and math.isfinite(max_steps):
            tolerance = max(tolerance, ROUGH_END)
            fresh.settings = dataclasses.replace(self.settings, tolerance=tolerance)
        outcome = fresh.run(place)
        if outcome.converged and tolerance > self.settings.tolerance:
            outcome = dataclasses.replace(outcome, reason=Reason.TRIED)
        elif outcome.converged:
            outcome = search.verified(outcome)
        self._used = fresh.used + len(fresh.trace)
        return self._audited(outcome)

    def _look_for_modes(self, prior: Prior | None) -> None:
        """Finish what has begun as well, then climb, and begin where that leads elsewhere."""
        self.seen = legs = 0
        limit = (1 + LOOKING) * self.engine.evaluator.num_gradients

        while self._may_look(legs, limit) and self.seen < ENOUGH:
            found = self._next_best(self._best_ended())
            if found is None:
                break
            legs += 1
            self._compare(found)
        point = missed(self.engine, self._best_ended().place, self.rng, MISSED)
        if point is not None and self._may_look(legs, limit) and self.seen < ENOUGH:
            start = start_at(self.engine, self.rng, self.num_groups, point, "a missed point")
            if start is not None:
                self._compare_if_good(self._begin(start, RACE_STEPS))
        self._climb(prior, limit)  # whatever the starts say: all may pass over what a climb meets

    def _may_look(self, legs: int, limit: int) -> bool:
        """Whether to begin another leg after so many that look for other optima."""
        is_dear = legs > 0 and self.engine.evaluator.num_gradients > limit
        return not is_dear and legs < MAX_LEGS and self._used < self.settings.max_steps

    def _climb(self, prior: Prior | None, limit: int) -> None:
        """Climb from other points, and begin where that leads elsewhere, the highest first."""
        waiting: list[Climbed] = []
        legs = 0
        points = high_points(self.engine, self.rng, prior, NUM_HIGH, MOST_CLIMBS)
        for number, point in enumerate(points):
            if number >= NUM_CLIMBS or self._parted(self._best_ended())[0] >= ENOUGH:
                legs += self._follow(waiting, legs, limit)
                inside, outside = self._parted(self._best_ended())
                is_last = inside >= ENOUGH or number >= (MAX_CLIMBS if legs else NUM_CLIMBS)
                is_dear = number >= NUM_CLIMBS and self.engine.evaluator.num_gradients > limit
                if is_dear or (is_last and not has_more(outside, inside)):
                    return
            place = self._best_ended().place
            factor = self._factor(place)
            climb = climbed(self.engine, point, MAX_CLIMB, factor)
            if climb is not None and not (climb.is_top or self._is_inside(place, climb.mean)):
                climb = climbed(self.engine, climb.mean, MAX_CLIMB_ON, factor)
            if climb is not None:
                self.tops.append(climb)
                waiting.append(climb)
        self._follow(waiting, legs, limit)

    def _factor(self, place: Place) -> np.ndarray | None:
        """Of the covariance of a place, which scales a climb; None if it is large."""
        dim = self.engine.parameters.dim
        if dim > MAX_WHITENED:
            return None
        draws, _ = self.engine.parameters.draws(place, np.eye(dim))
        return (draws - self.engine.parameters.mean(place)).T

    def _parted(self, best: Outcome) -> tuple[int, list[Climbed]]:
        """How many climbs ended in the best Gaussian, and the others."""
        outside = [climb for climb in self.tops if not self._is_inside(best.place, climb.mean)]
        return len(self.tops) - len(outside), outside

    def _follow(self, waiting: list[Climbed], legs: int, limit: int) -> int:
        """Begin at the ends of climbs that lie elsewhere; return the number of legs.

        :param waiting: empty afterwards.
        """
        before = legs
        for climb in sorted(waiting, key=lambda climb: -climb.height):
            place = self._best_ended().place
            level = self._level_elsewhere(place, climb)
            lower = AS_HIGH + 0.5 * self.engine.parameters.dim if self._may_look(legs, limit) else 0
            if not climb.height > level - lower or self._used >= self.settings.max_steps:
                continue
            options = self.engine, self.rng, self.num_groups
            start = start_at(*options, climb.mean, ANOTHER_POINT)
            if start is None:
                continue
            legs += 1
            found = self._begin(start)
            if self._is_inside(place, self.engine.parameters.mean(found.search.place)):
                self.seen += 1
            else:
                self._compare_if_good(found)
        waiting.clear()
        return legs - before

    def _level_elsewhere(self, place: Place, climb: Climbed) -> float:
        """The log density at the mean; infinite if a climb ended in a Gaussian that is known."""
        known = [outcome for outcome, _ in self.ended]
        known += [one.outcome for one in self.begun if one.status is None]
        known = [outcome.place for outcome in known if math.isfinite(_bound(outcome))]
        if any(self._is_inside(one, climb.mean) for one in (place, *known)):
            return math.inf
        points = np.stack([self.engine.parameters.mean(place), climb.mean])
        return self.engine.evaluator.values(place, points)[0]

    def _compare_if_good(self, begun: _Begun) -> None:
        if self._next_best(self._best_ended()) is begun:
            self._compare(begun)

    def _compare(self, begun: _Begun) -> None:
        """Finish a leg, and count if it leads to the best optimum, or to one as good."""
        best = self._best_ended()
        outcome = self._finish(begun)
        if _compared(best, outcome) == THE_SAME:
            self.seen += 1
        elif self._best_ended().place is not best.place:
            self.seen = 0

    def _is_inside(self, place: Place, point: np.ndarray) -> bool:
        """Whether a point is where a Gaussian's draws are."""
        dim = self.engine.parameters.dim
        distance = self.engine.parameters.square_distance(place, point)
        return distance < dim + OUTSIDE * math.sqrt(2 * dim) + OUTSIDE

    # -- one leg ----------------------------------------------------------------------

    def _begin(self, start: Start, max_steps: float = math.inf, *stage: float) -> _Begun:
        """A leg at the end of its first stage."""
        self._audit_begun()  # so that nothing is lost if this one is interrupted
        search = self._new_search()
        status = search.begin(start.place, max_steps, *stage)
        self._used += len(search.trace)
        begun = _Begun(search, status, self._rough(search, status), start.name)
        self.begun.append(begun)
        self._one = None
        return begun

    def _ranked(self) -> list[_Begun]:
        """Legs that have begun, the best first."""
        if len(self.begun) > 1 or self.ended:  # the only one needs no rank
            self._audit_begun()
        return sorted(self.begun, key=lambda one: -_bound(one.outcome))

    def _audit_begun(self) -> None:
        for one in self.begun:
            if one.outcome.audit is None:
                one.outcome = self._audited(one.outcome)

    def _next_best(self, best: Outcome, gap: float = 0.0) -> _Begun | None:
        """The best of those that have begun, unless the best end was better when as rough.

        :param gap: in nats, by which it may have been.
        """
        ranked = self._ranked()
        if not ranked:
            return None
        level, outcome = _bound(best), ranked[0].outcome
        if best.rough is not None:
            level = min(level, audit(self.engine, best.rough, self.rng).bound)
        error = outcome.audit.error if outcome.audit else math.nan
        is_worse = level - _bound(outcome) > gap + ROUGH_GAP + 2 * error
        return None if is_worse or not math.isfinite(_bound(outcome)) else ranked[0]

    def _finish(self, begun: _Begun) -> Outcome:
        """The rest of a leg."""
        self.begun.remove(begun)
        self._one = search = begun.search
        search.used = self._used - len(search.trace)
        return self._end(search, search.finish(begun.status), begun.name)

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
        if isinstance(search, Search) and outcome.reason in NO_WAY and not self._jumps(outcome):
            other = self._freshly(search, search.best, self._share)
            if other.reason is Reason.STUCK:  # what it estimated before is no estimate
                other = dataclasses.replace(
                    other, remaining=max(other.remaining, outcome.remaining)
                )
            if other.converged or _bound(other) >= _bound(outcome):
                outcome = dataclasses.replace(other, rough=rough)
        contradiction = 0.0 if outcome.audit is None else outcome.audit.contradiction
        if contradiction > self.settings.tolerance and outcome.reason is not Reason.UNBOUNDED:
            outcome = self._by_values(outcome)
        self._note(outcome, name)
        return outcome

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
        fresh = StochasticSearch(
            by_values(self.engine), self.rng, self.settings, self.progress, used=self._used
        )
        fresh.ordinary_moves, fresh.limit = False, len(outcome.trace) + self._share
        fresh.trace, fresh.used = outcome.trace, self._used - len(outcome.trace)
        self._one = fresh
        other = fresh.run(outcome.place)
        if other.converged:
            other = tried(fresh, other)
        other = self._audited(other)
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

    def _best_ended(self) -> Outcome:
        """The end with the highest bound."""
        return max((outcome for outcome, _ in self.ended), key=_level)

    def _best(self) -> Outcome:
        """The end with the highest bound, begun legs included, and what is known of the others."""
        known = self.ended + [(one.outcome, one.name) for one in self.begun]
        ranked = sorted(known, key=lambda pair: _level(pair[0]), reverse=True)
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
        inside, outside = self._parted(best)
        num_tops = len(heights(outside)) + (inside > 0)
        if ranked[0][1] == ANOTHER_POINT:  # the climb that it began with is no other
            inside = max(inside - 1, 0)
        return dataclasses.replace(
            best,
            starts=starts,
            seen=self.seen + inside,
            num_tops=num_tops,
            has_more=has_more(outside, inside),
            has_ordinary=self.engine.parameters.has_ordinary,
        )

    def _tell_apart(self) -> None:
        """Of optima with the same bound but for noise, the same draws tell which is the best."""
        best = self._best_ended()
        if len(self.ended) < 2 or not best.converged or best.audit is None:
            return
        for index, (outcome, name) in enumerate(self.ended):
            mean = self.engine.parameters.mean(outcome.place)
            is_other = outcome.converged and not self._is_inside(best.place, mean)
            if not is_other or outcome.audit is None or _compared(best, outcome) != THE_SAME:
                continue
            places = best.place, outcome.place
            gain, error = difference(self.engine, *places, self.rng, 2 * MAX_DRAWS)
            if gain > 2 * error:
                bound = best.audit.bound + gain
                told = outcome.audit._replace(
                    bound=bound, error=math.hypot(best.audit.error, error)
                )
                self.ended[index] = dataclasses.replace(outcome, audit=told), name

    def _final(self) -> Outcome:
        """The best end, with the bound by new draws where those that chose it flatter it."""
        self._tell_apart()
        best = self._best()
        if best.converged and (_is_one_of_many(best) or _is_alone(best, self.has_network)):
            best = dataclasses.replace(best, reason=Reason.MODES)
        if len(self.ended) < 2 or best.audit is None:
            return best
        found = audit(self.engine, best.place, self.rng)
        return dataclasses.replace(best, audit=found) if math.isfinite(found.bound) else best


def _level(outcome: Outcome) -> tuple[bool, float]:
    """What makes one end better than another: a little noise is no reason to give up an optimum."""
    bound = _bound(outcome)
    return math.isfinite(bound), bound + SAME * outcome.converged


def _bound(outcome: Outcome) -> float:
    """By independent draws, if any were asked."""
    return -math.inf if outcome.audit is None else outcome.audit.bound


def _is_alone(best: Outcome, has_network: bool = False) -> bool:
    """Whether there are other optima, and nothing else has led to this one.

    :param has_network: whether there surely are, and one more that led here may be chance.
    """
    if has_network:
        return best.seen < OWN_SAME
    kept = [start.kept for start in best.starts]
    is_one_of_some = any(words.startswith(ANOTHER) for words in kept)
    return is_one_of_some and not best.seen and THE_SAME not in kept


def _is_one_of_many(best: Outcome) -> bool:
    """Whether there are maxima that nothing has met, and hardly anything else has led to this."""
    return best.has_more and best.seen < SEEN_OF_MANY


def _compared(best: Outcome, other: Outcome) -> str:
    if best.audit is None or other.audit is None:
        return "not compared"
    gap = best.audit.bound - other.audit.bound
    if abs(gap) < SAME + 2 * math.hypot(best.audit.error, other.audit.error):
        return THE_SAME
    if other.converged:
        return f"{ANOTHER}, {gap:.2f} nats below"
    return f"no optimum, {gap:.3g} nats below"
