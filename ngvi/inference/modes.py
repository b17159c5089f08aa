"""Other optima than the best one that the starts of a fit have led to.

From an optimum other points of high density are climbed (:mod:`ngvi.inference.following`). The draw
of the highest weight is a start as well where it tells of mass that the Gaussian misses, as along a
ridge. There the best optimum of a Gaussian that leaves out correlations may be far from the only
top: points from which nothing climbs are starts as well. Where the log density jumps there, legs
begin by values alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np

from ngvi.inference.audit import MAX_DRAWS, jumps, missed, sharpened
from ngvi.inference.by_values import TRIAL_DRAWS
from ngvi.inference.climbs import high_points
from ngvi.inference.engine import Place
from ngvi.inference.following import ENOUGH, Follower
from ngvi.inference.one_leg import MISSED_POINT, SAME, Begun, compared
from ngvi.inference.outcome import THE_SAME, Outcome
from ngvi.inference.prior import Prior
from ngvi.inference.start import start_at
from ngvi.inference.trace import Trace

#: A weight so many nats above the average tells of mass that a Gaussian misses, from which a leg
#: takes so many steps over fixed draws.
MISSED, MISSED_STEPS = 3.0, 40
#: Of a density that jumps so many legs at most begin at such points.
NUM_BY_VALUES = 3
#: So many more begin at the highest of draws that are so many times as wide.
BESIDE = (2.0, 4.0, 8.0)
#: Of so many latents at most these tell of a jump as well.
MAX_BESIDE = 10
#: Points from which nothing climbs, where Gaussians leave out correlations; one is the highest.
NUM_UNCLIMBED = 3
#: Draws at most that tell optima apart; of models of few gradients, half of these.
MOST_DRAWS = 10 * MAX_DRAWS


class Modes(Follower):
    """Looks for other modes of a posterior."""

    def _look_for_modes(self, prior: Prior | None) -> None:
        """Finish what has begun as well, then climb, and begin where that leads elsewhere.

        What has begun with other parameters of the model's own has been compared by then.
        """
        legs, limit = 0, self._begin_to_look()
        enough = 0 if self.engine.parameters.has_ordinary else ENOUGH
        while self._may_look(legs, limit) and self.seen < enough:
            found = self._next_best(self._best_ended())
            if found is None:
                break
            legs += 1
            self._compare(found)
        place = self._best_ended().place
        point = missed(self.engine, place, self.rng, MISSED)
        if self._is_beside_a_jump(place, point):
            self._begin_by_values(place, point)
        elif point is not None and self._may_look(legs, limit) and self.seen < ENOUGH:
            start = start_at(self._here(), self.rng, self.num_groups, point, MISSED_POINT)
            if start is not None:
                self._compare_if_good(self._begin(start, MISSED_STEPS))
            if self.engine.geometry(self._best_ended().place, []).is_restricted:
                self._begin_unclimbed(prior, limit)
        self._climb(prior, limit)  # whatever the starts say: all may pass over what a climb meets

    def _climb_from_others(self, prior: Prior | None) -> None:
        """Climb alone, where values at many draws are dear."""
        self._climb(prior, self._begin_to_look())

    def _is_beside_a_jump(self, place: Place, point: np.ndarray | None) -> bool:
        """Whether the log density jumps where a Gaussian misses mass.

        :param point: at which its own draws tell of mass; of few latents wider ones may where these
            do not. Of many they meet nothing but a funnel's neck, whose walls are taken for jumps.
        """
        widths = BESIDE if self.engine.parameters.dim <= MAX_BESIDE else ()
        wider = (missed(self.engine, place, self.rng, MISSED, None, wide) for wide in widths)
        points = itertools.chain([point], wider)
        return any(one is not None and jumps(self.engine, place, self.rng, one) for one in points)

    def _begin_by_values(self, place: Place, point: np.ndarray | None) -> None:
        """Begin where a Gaussian misses mass of a log density that jumps there.

        Gradients see nothing of the jumps that hold a narrow Gaussian, and widen it until it is
        worse, and no climb crosses them: the age at which a regression jumps was claimed to be
        anything, 7 nats low.

        :param place: of that Gaussian.
        :param point: a first such point.
        """
        for found in itertools.chain(self._missed_points(place, point), self._beside()):
            if self._used >= self.settings.max_steps:
                return
            start = start_at(self._here(), self.rng, self.num_groups, found, MISSED_POINT)
            if start is not None:
                best = self._best_ended()
                outcome = self._only_by_values(start.place, Trace())
                self._note(outcome, MISSED_POINT)
                self._count(best, outcome)

    def _missed_points(self, place: Place, point: np.ndarray | None) -> Iterator[np.ndarray]:
        for _ in range(NUM_BY_VALUES):
            if point is None:
                return
            yield point
            point = missed(self.engine, place, self.rng, MISSED, TRIAL_DRAWS)

    def _beside(self) -> Iterator[np.ndarray]:
        """High points beside the best Gaussian, which its own draws hardly ever meet."""
        for wide in BESIDE:
            place = self._best_ended().place
            point = missed(self.engine, place, self.rng, MISSED, TRIAL_DRAWS, wide)
            if point is not None:
                yield point

    def _begin_unclimbed(self, prior: Prior | None, limit: int) -> None:
        """Begin at points that have climbed to no top; then follow what leads elsewhere."""
        begun: list[Begun] = []  # all of them, as the end of one may cost as much as all before it
        for point in high_points(self.engine, self.rng, prior, 1, NUM_UNCLIMBED):
            start = start_at(self.engine, self.rng, self.num_groups, point, "a draw")
            if start is not None and self._may_look(len(begun), limit):
                begun.append(self._begin(start, MISSED_STEPS))
        for found in (one for one in self._ranked() if one in begun):
            self._weigh(found, self._best_ended().place)

    def _tell_apart(self) -> None:
        """Of optima with the same bound but for noise, more draws tell which is the best, and which
        are as good.
        """
        best = self._best_ended()
        if not best.converged or best.audit is None:
            return
        as_good = [i for i, (outcome, _) in enumerate(self.ended) if _is_as_good(best, outcome)]
        some = [self.ended[index][0] for index in as_good]
        means = (self.engine.parameters.mean(outcome.place) for outcome in some)
        are_one = all(self._is_inside(best.place, mean) for mean in means)
        known = [(one.place, one.audit) for one in some if one.audit is not None]  # all of them
        error = SAME / (2 * math.sqrt(2))  # of each, for a difference known to within that
        if are_one or all(found.error < error for _, found in known):
            return
        most = self.engine.evaluator.num_gradients // (2 * len(known))
        most = int(np.clip(most, 2 * MAX_DRAWS, MOST_DRAWS))
        told = sharpened(self.engine, known, self.rng, error, most)
        for index, found in zip(as_good, told, strict=True):
            outcome, name = self.ended[index]
            self.ended[index] = dataclasses.replace(outcome, audit=found), name
        now = self._best_ended()
        still = sum(_is_as_good(now, self.ended[index][0]) for index in as_good)
        lost = len(as_good) - still
        self.seen = max(self.seen - lost, 0) if now.place is best.place else still - 1


def _is_as_good(best: Outcome, other: Outcome) -> bool:
    """Whether another optimum has the same bound, but for noise."""
    is_optimum = other.converged and other.audit is not None
    return is_optimum and compared(best, other) == THE_SAME
