"""Climbs from points of high density, and legs that begin where these lead elsewhere.

Whatever the starts of a fit say, other points are climbed from: broad starts may all pass over a
narrow mode. As many as are cheap beside what led to the optimum, four at least; more where there
are several modes, until the best optimum has been led to again, and where climbs end at tops that
no other has met, as with an unknown frequency, as long as hardly any has led to the best optimum.
A climb that leads out of the Gaussian found, and as high, is a start of its own, and so is one to a
narrow top far above a Gaussian that covers it, as broad as the prior. Tops far above the best
Gaussian's, as where a scale goes to zero, are starts too, until some of them have led to the same
low bound.

Few parameters of the model's own, a noise say, do not change that: climbs and their starts have
those of the best end.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from ngvi.inference.climbs import Climbed, climbed, has_more, high_points, known_top
from ngvi.inference.engine import Around, Engine, Parameters, Place
from ngvi.inference.one_leg import (
    ANOTHER_POINT,
    LOOKING,
    ROUGH_GAP,
    Begun,
    Runner,
    bound_of,
    compared,
)
from ngvi.inference.outcome import THE_SAME, Outcome
from ngvi.inference.precision import excess
from ngvi.inference.prior import Prior
from ngvi.inference.start import start_at

#: Points to climb from, of which so many are the highest, which may all lead to the same place;
#: the others are any.
NUM_CLIMBS, NUM_HIGH = 7, 2
#: So few, where they have all led to the best, and more would cost more than this part of what did.
FEW_CLIMBS, CHEAP = 4, 0.5
#: Where a climb has led elsewhere: points, and legs.
MAX_CLIMBS, MAX_LEGS = 14, 6
#: Points at most, where many climbs end at tops that no other has met.
MOST_CLIMBS = 28
#: And more, as long as they are cheap.
MOST_IF_CHEAP = 112
#: And more, as long as the next may end at a top that none has met, or that keeps the best from
#: being claimed, and climbs cost less than it did.
MOST_OF_MANY = 448
#: After so many climbs it is asked whether there shall be more.
STAGES = (FEW_CLIMBS, NUM_CLIMBS, MAX_CLIMBS, MOST_CLIMBS, 2 * MOST_CLIMBS)
#: Where there are maxima that nothing has met, so many others have to lead to the best optimum.
SEEN_OF_MANY = 2
#: Steps of a climb, and more of one that is on its way up elsewhere.
MAX_CLIMB, MAX_CLIMB_ON = 25, 75
#: The most latents of a climb in whitened coordinates.
MAX_WHITENED = 500
#: A top is as high whose log density is less than so many nats, and half a nat a latent, below that
#: at the best mean; one that is above by as much, and leads nowhere, is a spike.
AS_HIGH = 10.0
#: A top is in a Gaussian that covers it if it is no more nats, and so many for each latent, above
#: the log density at the mean.
NOT_ABOVE, NOT_ABOVE_EACH = 2.0, 0.25
#: Where looking has become dear, no more spikes are followed after so many that ended alike.
NUM_SPIKES = 3
#: After so many that led nowhere, wherever they ended, one that is not followed is no loss.
MANY_SPIKES = 6
#: Points that lead to the same optimum are enough.
ENOUGH = 5


class Follower(Runner):
    """Climbs, and follows what leads elsewhere."""

    def _climb(self, prior: Prior | None, limit: int) -> None:
        """Climb from other points, and begin where that leads elsewhere, the highest first."""
        legs = num_climbs = 0
        points = list(high_points(self._here(), self.rng, prior, NUM_HIGH, MOST_IF_CHEAP))
        for last, following in itertools.pairwise(STAGES):
            legs += self._climb_and_follow(points, last - num_climbs, legs, limit)
            num_climbs = last
            if self.climbed_by > limit:
                return
            inside, outside = self._parted(self._best_ended())
            is_last = inside >= ENOUGH or last >= (MAX_CLIMBS if legs else NUM_CLIMBS)
            is_last |= inside == FEW_CLIMBS and not outside
            self.are_enough |= is_last and not has_more(outside, inside, self.least)
            # Whatever is known, few climbs lead to a narrow mode.
            if self.are_enough and not self._are_cheap(following / last):
                return
        while self.climbed_by < self.spent and num_climbs < MOST_OF_MANY:
            is_cheap = num_climbs < MOST_IF_CHEAP and self._are_cheap(2)
            best = self._best()
            if not (is_cheap or best.has_more or is_one_of_many(best)):
                return
            if not points:
                prior = None if prior is None else Prior.of(self.engine, self.rng)
                points = list(high_points(self._here(), self.rng, prior, 0, num_climbs))
                if not points:
                    return
            self._climb_and_follow(points, num_climbs, MAX_LEGS, limit)
            num_climbs *= 2

    def _climb_above(self, prior: Prior | None) -> None:
        """Look for tops above an end that is no optimum, as long as climbs are cheap.

        Noise may hide where the optimum is that a wave of no height has, far below another.
        """
        limit, num_climbs = self._begin_to_look(), 0
        points = list(high_points(self._here(), self.rng, prior, NUM_HIGH, MOST_IF_CHEAP))
        self.only_tops = True
        for last in (*STAGES, MOST_IF_CHEAP):
            self._climb_and_follow(points, last - num_climbs, MAX_LEGS, limit)
            if self._best_ended().converged or not self._are_cheap(2):
                break
            num_climbs = last
        self.only_tops = False

    def _are_cheap(self, factor: float) -> bool:
        """Whether so many times the climbs would be, beside what led to the optimum."""
        return factor * self.climbed_by < CHEAP * self.spent

    def _climb_and_follow(self, points: list[np.ndarray], count: int, legs: int, limit: int) -> int:
        """Climb from points, and return how many legs began where that led elsewhere.

        :param points: to climb from, of which those that were taken are removed.
        :param count: of climbs. A point that has a density but no slope, as where a likelihood
            overflows, is none to climb from, and the next one takes its place.
        :param legs: so many have begun; after the last one only higher tops are followed.
        """
        before = self.engine.evaluator.num_gradients
        tops: list[Climbed] = []
        while count and points:
            some, points[:count] = points[:count], []
            found, count = self._tops(np.array(some))
            tops += found
        self.climbed_by += self.engine.evaluator.num_gradients - before
        self.tops += tops
        begun = self._follow(self.waiting + tops, legs, limit)
        level, reach = self._level(self._best_ended().place), self._reach()
        self.least, self.spike = level - reach, level + reach
        return begun

    def _here(self) -> Engine:
        """The engine, with the best end's parameters of the model's own as the initial ones."""
        if not self.engine.parameters.has_ordinary:
            return self.engine
        return self.engine._replace(
            parameters=_Parameters(self.engine.parameters, self._best_ended().place)
        )

    def _tops(self, points: np.ndarray) -> tuple[list[Climbed], int]:
        """Where climbs end, and how many have not begun.

        Those that are on their way up elsewhere go on for longer.
        """
        place = self._best_ended().place
        engine, factor = self._here(), self._factor(place)
        mean = self.engine.parameters.mean(place)
        known = None if factor is None else known_top(engine, mean, factor)
        ends = climbed(engine, points, MAX_CLIMB, factor, known)
        tops = [climb for climb in ends if _has_begun(climb)]
        num_failed = len(ends) - len(tops)
        on_the_way = [
            index
            for index, climb in enumerate(tops)
            if not climb.is_top and not self._is_inside(place, climb.mean)
        ]
        further = np.array([tops[index].mean for index in on_the_way])
        for index, climb in zip(
            on_the_way, climbed(engine, further, MAX_CLIMB_ON, factor, known), strict=True
        ):
            tops[index] = climb
        tops = [climb for climb in tops if _has_begun(climb)]
        points = np.array([climb.mean for climb in tops])
        wrong = excess(self.engine, place, points, np.array([climb.height for climb in tops]))
        return [climb for climb, nats in zip(tops, wrong, strict=True) if not nats], num_failed

    def _factor(self, place: Place) -> np.ndarray | None:
        """Of the covariance of a place, which scales a climb; None if it is large."""
        dim = self.engine.parameters.dim
        if dim > MAX_WHITENED:
            return None
        draws, _ = self.engine.parameters.draws(place, np.eye(dim))
        return (draws - self.engine.parameters.mean(place)).T

    def _follow(self, tops: list[Climbed], legs: int, limit: int) -> int:
        """Begin at the ends of climbs that lie elsewhere; return the number of legs.

        Those that are left alone wait: beside another best they may be no spikes, say.
        """
        before, self.waiting = legs, []
        for climb in sorted(tops, key=lambda climb: -climb.height):
            place = self._best_ended().place
            if self._is_known(climb):
                continue
            may_look = self._may_look(legs, limit)
            above = climb.height - self._level(place)
            is_spike = above > self._reach()
            is_left = not above > (-self._reach() if may_look else 0.0)
            is_left |= is_spike and not may_look and self._lead_nowhere()
            is_left |= not climb.is_top and (self.only_tops or (is_spike and self.are_enough))
            is_cut = self._used >= self.settings.max_steps
            if is_left or is_cut:
                self.waiting.append(climb)
                is_loss = is_cut and not is_left
                self.is_cut |= is_loss and not (is_spike and len(self.spikes) >= MANY_SPIKES)
                continue
            options = self._here(), self.rng, self.num_groups
            start = start_at(*options, climb.mean, ANOTHER_POINT, climb.is_top)
            if start is None:
                continue
            legs += 1
            begun = self._begin(start)
            self._weigh(begun, place)
            if is_spike and begun in self.begun:  # it has led nowhere
                self.spikes.append(begun)
        return legs - before

    def _weigh(self, found: Begun, place: Place) -> None:
        """Count a leg that has led into the best Gaussian, and finish one that led elsewhere.

        It leads elsewhere as well where it is narrow, and better already than a broad Gaussian.
        """
        is_inside = self._is_inside(place, self.engine.parameters.mean(found.search.place))
        if is_inside and not self._is_better(found):
            self.seen += 1
        else:
            self._compare_if_good(found)

    def _may_look(self, legs: int, limit: int) -> bool:
        """Whether to begin another leg after so many that look for other optima."""
        is_dear = legs > 0 and self.engine.evaluator.num_gradients > limit
        return not is_dear and legs < MAX_LEGS and self._used < self.settings.max_steps

    def _begin_to_look(self) -> int:
        """Note what has led to the optimum, and return after how many gradients more is dear."""
        self.spent = self.engine.evaluator.num_gradients
        return (1 + LOOKING) * self.spent

    def _lead_nowhere(self) -> bool:
        """Whether the last legs from spikes ended at the same low bound, but for noise."""
        audits = [one.outcome.audit for one in self.spikes[-NUM_SPIKES:]]
        known = [found for found in audits if found is not None and math.isfinite(found.bound)]
        if len(known) < NUM_SPIKES:
            return False
        bounds = [found.bound for found in known]
        noise = 2 * max(found.error for found in known)
        return max(bounds) - min(bounds) < ROUGH_GAP + noise

    def _level(self, place: Place) -> float:
        """The log density at the mean."""
        known, level = self._levels.get(id(place), (None, math.nan))
        if known is not place:
            mean = self.engine.parameters.mean(place)
            level = float(self.engine.evaluator.values(place, mean[None])[0])
            self._levels[id(place)] = place, level
        return level

    def _reach(self) -> float:
        """Nats about a Gaussian's level within which a top is as high as its own."""
        return AS_HIGH + 0.5 * self.engine.parameters.dim

    def _is_known(self, climb: Climbed) -> bool:
        """Whether a climb ended in a Gaussian that has come to its end, and not far above it.

        One as broad as the prior covers every narrow mode, and is the end of none. Of a point on
        its way up, as into a funnel, that says nothing.
        """
        known = [outcome for outcome, _ in self.ended]
        known += [one.outcome for one in self.begun if one.status is None]
        places = [outcome.place for outcome in known if math.isfinite(bound_of(outcome))]
        least = climb.height - NOT_ABOVE - NOT_ABOVE_EACH * self.engine.parameters.dim
        return any(
            self._is_inside(place, climb.mean) and not (climb.is_top and self._level(place) < least)
            for place in places
        )

    def _is_better(self, begun: Begun) -> bool:
        """Whether the rough end of a leg is above the best, whatever the noise."""
        self._audit_begun()
        audit = begun.outcome.audit
        gap = bound_of(begun.outcome) - bound_of(self._best_ended())
        return audit is not None and gap > ROUGH_GAP + 2 * audit.error

    def _compare_if_good(self, begun: Begun) -> None:
        if self._may_be_better(begun, self._best_ended()):
            self._compare(begun)

    def _compare(self, begun: Begun) -> None:
        """Finish a leg, and count if it leads to the best optimum, or to one as good."""
        best = self._best_ended()
        self._count(best, self._finish(begun))

    def _count(self, best: Outcome, outcome: Outcome) -> None:
        """:param best: before that one."""
        if compared(best, outcome) == THE_SAME:
            self.seen += 1
        elif self._best_ended().place is not best.place:
            self.seen = self.seen_own = 0


class _Parameters(Around):
    """Parameters whose initial place has those of the model's own that another place has."""

    def __init__(self, inner: Parameters, place: Place) -> None:
        super().__init__(inner)
        self._own = inner.own(place)
        self.initial = self._moved(inner.initial)

    def at(self, mean: np.ndarray | None, scale: float | np.ndarray) -> Place:
        return self._moved(self._inner.at(mean, scale))

    def _moved(self, place: Place) -> Place:
        pairs = zip(self._own, self._inner.own(place), strict=True)
        return self._inner.moved(place, [new - old for new, old in pairs])


def _has_begun(climb: Climbed) -> bool:
    return math.isfinite(climb.height)


def is_one_of_many(best: Outcome) -> bool:
    """Whether there are maxima that nothing has met, and hardly anything else has led to this, or
    some of them are as high: of a wave's frequency a Gaussian was claimed 45 nats low that seven of
    28 climbs had led to, and none to the narrow best.
    """
    return best.has_more_as_high or (best.has_more and best.seen < SEEN_OF_MANY)
