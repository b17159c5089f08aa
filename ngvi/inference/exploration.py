"""The search for other optima, for a share of what led to the best.

Points that are drawn alike, from the prior and a box, ascend to modes of the log density. One that
ends inside a known optimum's Gaussian has led to it; from another a run begins, and says to which
optimum it leads. That ends when it is unlikely that as many starts again find a better one
(:mod:`~ngvi.inference.verdict.optima`).
"""

from __future__ import annotations

import math

import numpy as np

from ngvi.inference.map_ascent import Ascent, map_ascents
from ngvi.inference.options import LEVELS
from ngvi.inference.runs import FAR, Run, Runs, same_bound
from ngvi.inference.search import Status
from ngvi.inference.starts import GUIDE, MODE, Start, Starts
from ngvi.inference.verdict.optima import Exploration, Optimum, better_elsewhere


class Explorer:
    """Looks for other optima than the best.

    :param runs: of the fit, whose best is certified.
    :param share: cost of this search, per cost of the way to the best.
    :ivar report: what has come of it.
    :ivar spent: the cost of the way to the best, once that is there; of what a fit by modes has
        taken before, nothing.
    :ivar reached: the cost of all that led to the best of now.
    """

    def __init__(self, runs: Runs, starts: Starts, share: float) -> None:
        self.runs, self.starts, self.share = runs, starts, share
        self.options, self.report = runs.options.multi_start, Exploration()
        self.spent = self.reached = math.inf
        self._cost = runs.problem.objective.cost
        self._begun = self._cost.total
        self._ends: list[tuple[Ascent, Optimum]] = []
        self._images: list[tuple[Ascent, Optimum]] = []  # of these, at other places
        self._has_followed_image = False
        self.led: list[tuple[np.ndarray, Ascent]] = []  # points whose ascents are known already
        self._lost: list[float] = []  # heights of modes that led to no optimum

    def explore(self) -> None:
        """Look until a better optimum is unlikely, or the share is spent."""
        if self.spent == math.inf:
            self.spent = self.reached = self._cost.total - self._begun
            for run in self.runs.ranked():
                if self._may_go_on():
                    self.runs.waiting.remove(run)
                    self._lead(run)
        while self._may_go_on():
            best = self.runs.best
            if not self._round() or self.is_unlikely():
                break
            if self.runs.best is not best:  # what led to a better one counts as well
                self.reached = self._cost.total - self._begun
        for end, optimum in self._images:
            self._follow_image(end, optimum)
        self.report.is_over = self.is_unlikely()

    @property
    def limit(self) -> float:
        """Largest cost of all, in gradients."""
        most = min(self.options.exploration_floor, self.options.num_starts * self.spent)
        first = self.spent + max(self.share * self.spent, most)
        return self._begun + max(first, (1.0 + self.share) * self.reached)

    def _may_go_on(self) -> bool:
        return self._cost.total < self.limit

    def _left(self) -> float:
        """Return what may still be spent."""
        return self.limit - self._cost.total

    def is_unlikely(self) -> bool:
        """Return whether as many starts again would hardly find a better optimum.

        Starts without an optimum say nothing, unless their modes are higher than the best
        Gaussian's own: each of these may have a better optimum. A round of starts must say
        something, or most of fewer, if the budget is spent before.
        """
        counts = [one.count for one in self.runs.optima if one.count]
        most = self._highest_own(self.runs.best) if self._lost else math.inf
        lost = [round(height / LEVELS.worth) for height in self._lost if height > most]
        found = better_elsewhere(sum(counts) + len(lost), len(counts), len({*lost}))
        self.report.probability, self.report.has_lost = found, bool(lost)
        is_most = sum(counts) >= self.report.num_without_optimum and not self._may_go_on()
        self.report.has_few = sum(counts) < self.options.num_starts and not is_most
        is_unlikely = found <= self.options.unseen and self.runs.best.count > 0
        return is_unlikely and not self.report.has_few

    def _round(self) -> bool:
        """Follow some starts, drawn alike; return whether there were any."""
        if self.runs.problem.space.has_model_parameters:
            return self._round_of_parameters()
        led, self.led = self.led or self._ascended(), []
        for point, end in led:
            if math.isfinite(end.height) and (self._may_go_on() or self._known(end)):
                self._count(known := self._led_by(point, end))
                if known is None and end.is_mode:
                    self._lost.append(end.height)
        return len(led) > 0

    def _ascended(self) -> list[tuple[np.ndarray, Ascent]]:
        """Return further points, and where ascents from them have led."""
        points = self.starts.points(self.options.num_starts)
        state, options = self.runs.best.state, self.runs.options.starts
        most = self._highest_own(self.runs.best)

        def is_known(place: np.ndarray, value: float) -> bool:
            return value < most and self.runs.is_inside(state, place)

        ends = map_ascents(self.runs.problem, state, points, options, is_known)
        return list(zip(points, ends, strict=True))

    def _round_of_parameters(self) -> bool:
        own = Start(self.runs.best.state, GUIDE)
        for _ in range(self.options.num_starts):
            if not self._may_go_on():
                break
            start = self.starts.other_parameters(own)
            if start is not None:
                self._count(self._follow(start))
        return True

    def _led_by(self, point: np.ndarray, end: Ascent) -> Optimum | None:
        """Return the optimum to which a point leads.

        A run begins at the mode. If there is none, or it is so high that it has hardly any mass,
        as in the neck of a funnel, it begins at the point, as broad as the bound likes best. A
        narrow mode that has the mass of a better optimum shows it by the bound about it.
        """
        known = self._known(end)
        if known is not None or not self._may_go_on() or not math.isfinite(end.height):
            return known
        start = self.starts.at(end.mean, MODE, self.runs.best.state) if end.is_mode else None
        above = end.height - self.runs.level(self.runs.best)
        if start is None or above > degenerate(self.runs):
            least = self.runs.best.validation.bound - LEVELS.worth
            if start is None or start.value < least:
                start = self.starts.broad(point)
        known = None if start is None else self._follow(start)
        if known is not None:
            self._ends.append((end, known))
        return known

    def _follow(self, start: Start) -> Optimum | None:
        """Return the optimum to which a start leads, if a few steps tell."""
        return self._lead(self.runs.coarse(start, math.inf, self._left()))

    def _count(self, known: Optimum | None) -> None:
        """Count a start that has led to an optimum, or nowhere."""
        self.report.num_starts += 1
        if known is None:
            self.report.num_without_optimum += 1
        else:
            known.count += 1

    def _known(self, end: Ascent) -> Optimum | None:
        """Return the optimum to which an ascent has led, if that is plain.

        A Gaussian has the first mode that is found inside of it. Others there, of another height,
        may have optima of their own: one as broad as the prior covers every narrow mode. Ascents
        that end at one place lead to one optimum, even if they were cut off before a mode.
        """
        same, space = LEVELS.same + end.rounding, self.runs.problem.space
        for index, (known, optimum) in enumerate(self._ends):
            if abs(known.height - end.height) > same:
                continue
            if not (end.is_mode and known.is_mode):
                place = space.mean(optimum.state) + end.mean - known.mean
                if space.square_distance(optimum.state, place) < LEVELS.same:
                    return optimum
                continue
            others = [one for one, of in self._ends[index:] if of is optimum]
            places = [space.mean(optimum.state) + end.mean - one.mean for one in others]
            if all(space.square_distance(optimum.state, place) > FAR for place in places):
                self._ends.append((end, optimum))
                self._images.append((end, optimum))
            return optimum
        for optimum in sorted(self.runs.optima, key=lambda one: -one.validation.lower):
            if not (optimum.is_certified and self.runs.is_inside(optimum.state, end.mean)):
                continue
            if not end.is_mode:
                return optimum
            has_mode = any(one is optimum for known, one in self._ends if known.is_mode)
            if not has_mode and end.height < self._highest_own(optimum):
                self._ends.append((end, optimum))
                return optimum
        return None

    def _highest_own(self, optimum: Optimum) -> float:
        """Return how high a mode may be that is a Gaussian's own, not a narrow one inside of it."""
        above = LEVELS.worth + self.options.inside * self.runs.problem.space.dim
        return self.runs.level(optimum) + above

    def _follow_image(self, end: Ascent, optimum: Optimum) -> None:
        """Find the Gaussian at a mode as high as another optimum's.

        One of them is enough to say that there are others; more of them if the budget allows.
        """
        above = self.runs.best.validation.bound - optimum.validation.bound
        places = [one.state for one in (optimum, *optimum.images)]
        is_known = any(self.runs.is_inside(state, end.mean) for state in places)
        is_enough = self._has_followed_image and not self._may_go_on()
        if is_known or above > LEVELS.certain or is_enough:
            return
        start = self.starts.at(end.mean, MODE, optimum.state)
        if start is not None:
            run = self.runs.coarse(start, 2 * self.options.first_steps)
            most = max(self.spent, self._left())
            self._followed(run, most, max(self.runs.tolerance, LEVELS.same))
            self._has_followed_image = True

    def _lead(self, run: Run) -> Optimum | None:
        """Return the optimum to which a run leads, as far as it can be followed."""
        best, allowed = self.runs.best, LEVELS.worth
        if run.validation is None:
            run.validation = self.runs.validated(run.search.state, coarsely=True)
        if not (math.isfinite(run.level) and run.validation.error < allowed):
            return None
        gap = best.validation.bound - run.level
        noise = 2 * math.hypot(best.validation.error, run.validation.error)
        if gap > allowed + noise:
            return self._lower(run, gap)
        if self._is_at_the_best(run):
            return best
        return self._followed(run, self._left(), max(self.runs.tolerance, LEVELS.same))

    def _is_at_the_best(self, run: Run) -> bool:
        """Return whether a run is inside the best Gaussian, at a bound that is hardly another."""
        best, known = self.runs.best, run.known
        noise = 2 * math.hypot(best.validation.error, known.error)
        gap = best.validation.bound - run.level
        if not -noise - LEVELS.same < gap <= LEVELS.worth + noise:
            return False
        return self.runs.is_inside(best.state, self.runs.problem.space.mean(run.search.state))

    def _followed(self, run: Run, max_cost: float, tolerance: float) -> Optimum | None:
        """Return the optimum at the end of a run."""
        self.runs.current, best, same = run, self.runs.best, LEVELS.same
        run.search.tolerance = tolerance
        run.search.advance(max_cost)
        run.validation = self.runs.validated(run.search.state)
        self.runs.current = None
        if run.search.status is not Status.OPTIMUM:
            is_near = run.is_coarse or run.search.status is Status.NOISE
            return best if is_near and self._is_at_the_best(run) else None
        noise = math.hypot(best.validation.error, run.validation.error)
        is_higher = run.level > best.validation.bound + noise
        if same_bound(best.validation, run.validation, same) and not is_higher:
            return self.runs.joined(best, self.runs.optimum(run))
        needs_more = is_higher and tolerance > self.runs.tolerance
        found = self.runs.refine(run, self._left()) if needs_more else self.runs.end(run)
        return found if found.is_certified else None

    def _lower(self, run: Run, gap: float) -> Optimum | None:
        """Return the optimum of a run far below the best: a known one of its bound, or its own.

        :param gap: what it is below the best, in nats.
        """
        if not run.is_coarse:
            return None  # it was on its way
        new = self.runs.optimum(run)
        slack = max(self.runs.options.local.coarse_gap, LEVELS.negligible * gap)
        for one in self.runs.optima:
            if same_bound(one.validation, new.validation, slack):
                return one
        self.runs.optima.append(new)
        return new


def degenerate(runs: Runs) -> float:
    """Return by how many nats a mode is above the best mean that has hardly any mass."""
    return (
        LEVELS.certain * LEVELS.worth + 2 * runs.options.multi_start.inside * runs.problem.space.dim
    )
