"""The components of a mixture: at the optima that a fit has found, and at other modes.

A mixture begins where the search for one Gaussian ends, at the optima that it has found. Each mode
that is outside of all Gaussians so far gets one of its own, by a search as any other. Two modes of
the same height are two components, though their optima are one to the search for the best.
Components that are apart have weights in proportion to ``exp(bound)``.

Others are looked for where importance weights ``p / q`` are largest. There ``q`` is the sum of all
Gaussians so far, each with the mass that its bound says (Arenz, Dahlinger, Ye, Volpp and Neumann,
2022, *A unified perspective on natural gradient variational inference with Gaussian mixture
models*, TMLR). In the basin of a mode that has been met the weight is about one, wherever the point
is; in that of another it is larger by as many nats as it is nearer to that. So hundreds of values
choose a few ascents, and a round of them that comes to no other mode is the last.

More components than modes are placed at the largest weights of draws of ``q``. A component that
adds next to nothing is left out: its weight vanishes, or it is where another is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from ngvi.inference.estimate import State
from ngvi.inference.exploration import ascents_beside, degenerate
from ngvi.inference.map_ascent import Ascent
from ngvi.inference.mixture_options import MixtureOptions
from ngvi.inference.multistart import MultiStart
from ngvi.inference.optima import Optimum
from ngvi.inference.options import LEVELS
from ngvi.inference.problem import Problem
from ngvi.inference.starts import MODE
from ngvi.inference.validation import Validation

LogDensity = Callable[[np.ndarray], np.ndarray]


class Component(NamedTuple):
    """A Gaussian at a mode."""

    state: State
    validation: Validation


class Modes:
    """The modes of a posterior, each with its Gaussian.

    :param search: that has ended at the best optimum.
    :param most: components that are wanted.
    :ivar found: the Gaussians.
    :ivar num_points: at which importance weights have been looked at.
    :ivar is_over: whether the last of these led to no other mode, and enough of them to each.
    """

    def __init__(self, search: MultiStart, most: int) -> None:
        self.search, self.runs, self.most = search, search.runs, most
        self.options = search.options.mixture
        self.found: list[Component] = []
        self.num_points, self.is_over, self.least_share = 0, False, 1.0
        self._negligible: list[Ascent] = []  # to modes that have hardly any mass

    def look(self) -> None:
        """Find them."""
        best = self.runs.best
        self._add(best.state, best.validation)
        others = [one for one in self.runs.optima if one is not best]
        for one in sorted(others, key=lambda one: -one.validation.lower):
            if one.is_certified and not self._is_negligible(one.validation):
                self._add(one.state, one.validation)
        log_density = partial(self.runs.problem.objective.log_density, best.state)
        points, values = self.search.starts.pool
        if len(far := self._far_points()):
            points, values = np.vstack([points, far]), np.append(values, log_density(far))
        while len(self.found) < self.most and not self.is_over:
            self.is_over = not self._look_at(points, values) and len(points) > 0
            if len(self.found) > 1 and self.num_points < self.options.num_points:
                self.is_over = False  # these were for one that is alone
            points = self._points()
            if not self.is_over:
                values = log_density(points)
        # Where some that are known are hardly met, others are not met at all.
        self.is_over = self.is_over and self.least_share >= self.options.least_share

    def _look_at(self, points: np.ndarray, values: np.ndarray) -> bool:
        """Ascend from the points with the largest importance weights; whether to another mode."""
        space, options = self.runs.problem.space, self.runs.options
        before = len(self.found)
        parts = [one.validation.bound + space.log_q(one.state, points) for one in self.found]
        gaps = np.where(np.isfinite(values), values - np.logaddexp.reduce(parts, 0), -math.inf)
        order = np.argsort(-gaps)[: options.multi_start.num_starts]
        chosen = points[order[gaps[order] > LEVELS.worth]]
        nearest = np.bincount(np.argmax(parts, 0), minlength=len(parts))
        self.least_share = float(nearest.min() / max(len(points), 1))
        self.num_points += len(points)
        self._ascend(chosen)
        return len(self.found) > before

    def _ascend(self, points: np.ndarray) -> None:
        """Ascend from points, a few at a time; of one mode as long as it is cheap."""
        problem, first, size = self.runs.problem, self.found[0], self.options.ascents_at_once
        best, cost, spent = Optimum(first.state, first.validation), problem.objective.cost, 0.0
        # Small models can afford eight starts of forty gradients.
        starts = self.runs.options.multi_start
        least = starts.num_starts * starts.first_steps
        limit = max(self.options.part_of_search * cost.total, least)
        for start in range(0, len(points), size):
            some, before = points[start : start + size], cost.total
            ends = ascents_beside(problem, best, some, self.runs.options)
            spent += cost.total - before
            self._meet(ends)
            each = spent / (start + len(some))
            if len(self.found) == 1 and each * (start + len(some) + size) > limit:
                return

    def _points(self) -> np.ndarray:
        """Of the prior's width, and of that of the modes so far."""
        space, rng, prior = self.runs.problem.space, self.runs.rng, self.search.starts.prior
        means = np.stack([space.mean(one.state) for one in self.found])
        sds = [np.concatenate(list(space.stddevs(one.state).values())) for one in self.found]
        wide = self.options.spread * np.sqrt(means.var(0) + np.square(sds).mean(0))
        noise = rng.standard_normal((self.options.num_points, space.dim))
        half = len(noise) // 2 if prior is not None else len(noise)
        near, far = means.mean(0) + wide * noise[:half], noise[half:]
        if prior is None:
            return near
        return np.concatenate([near, prior.mean + prior.sd * far, self._far_points()])

    def _far_points(self) -> np.ndarray:
        """As far from the prior's mean as the modes so far, and where these have least density.

        A narrow mode has a larger density than a wide one only where it is much the nearer. In many
        dimensions draws of the prior are as near to one as to the other, and a point on the other
        side of the wide one is nearer to whatever else there is. Each point is a step further away
        from the component that is the largest at the one before.
        """
        space, prior = self.runs.problem.space, self.search.starts.prior
        if prior is None:
            return np.empty((0, space.dim))
        means = np.stack([space.mean(one.state) for one in self.found])
        offsets = (means - prior.mean) / prior.sd
        radius = math.sqrt(np.square(offsets).sum(1).mean())
        points, away = [], np.zeros(space.dim)
        which, count = 0, self.options.max_components if len(means) > 1 else 1
        for _ in range(count):
            away = away - offsets[which]
            direction = away / max(float(np.linalg.norm(away)), 1e-300)
            points.append(prior.mean + prior.sd * radius * direction)
            last = points[-1][None]
            parts = [one.validation.bound + space.log_q(one.state, last) for one in self.found]
            which = int(np.argmax(parts))
        return np.array(points)

    def log_weights(self) -> np.ndarray:
        """Of components that are apart."""
        bounds = np.array([one.validation.bound for one in self.found])
        return bounds - np.logaddexp.reduce(bounds)

    def _meet(self, ends: Sequence[Ascent]) -> None:
        """Add the modes that ascents are the first to come to."""
        for end in ends:
            if not math.isfinite(end.height):
                continue
            is_known = any(self.runs.is_inside(one.state, end.mean) for one in self.found)
            if (
                not is_known
                and not self._is_of_one_height(end)
                and end.is_mode
                and len(self.found) < self.most
            ):
                self._at_mode(end)

    def _at_mode(self, end: Ascent) -> None:
        """Add the component that a search from a mode leads to, unless it hardly has any mass."""
        runs = self.runs
        if end.height > runs.level(runs.best) + degenerate(runs):
            return  # so high that it has hardly any mass, as a funnel's
        start = self.search.starts.at(end.mean, MODE, runs.best.state)
        if start is None:
            return
        run = runs.coarse(start, 2 * runs.options.multi_start.first_steps)
        run.validation = runs.validated(run.search.state, coarsely=True)
        if not self._is_negligible(run.validation):
            runs.current = run
            run.search.advance()
            runs.current, run.validation = None, runs.validated(run.search.state)
        if self._is_negligible(run.validation):
            self._negligible.append(end)
        else:
            self._add(run.search.state, run.validation)

    def _is_of_one_height(self, end: Ascent) -> bool:
        """Whether a mode may be one of those with hardly any mass, or its mirror image."""
        same = LEVELS.same + end.rounding
        return any(abs(one.height - end.height) <= same for one in self._negligible)

    def _add(self, state: State, validation: Validation) -> None:
        """A component, unless it is there already."""
        mean = self.runs.problem.space.mean(state)
        for one in self.found:
            its_mean = self.runs.problem.space.mean(one.state)
            if self.runs.is_inside(one.state, mean) and self.runs.is_inside(state, its_mean):
                return
        self.found.append(Component(state, validation))

    def _is_negligible(self, validation: Validation) -> bool:
        """Whether a bound is so far below the best that its weight adds nothing."""
        least = self.runs.best.validation.bound + math.log(self.options.least_gain)
        return not validation.bound + 2 * validation.error > least


class Contributions:
    """Draws of each of some Gaussians, which say what each of them adds to the bound of all.

    :param log_density: of the model, at vectors ``(N, d)``.
    """

    def __init__(
        self,
        problem: Problem,
        states: Sequence[State],
        log_density: LogDensity,
        rng: np.random.Generator,
        options: MixtureOptions,
    ) -> None:
        space, self.options = problem.space, options
        self.draws = [
            space.draw(state, rng.standard_normal((options.num_draws, space.dim)))[0]
            for state in states
        ]
        self.values = np.stack([log_density(theta) for theta in self.draws])
        #: ``log q_j`` at the draws of ``k``, by ``j`` and ``k``.
        self.log_q = np.stack(
            [[space.log_q(state, theta) for theta in self.draws] for state in states]
        )

    def bound(self, kept: list[int], log_weights: np.ndarray) -> tuple[float, np.ndarray]:
        """The bound of the mixture of some of them, and its best weights.

        :param log_weights: to begin with, of those that are kept.
        """
        values, log_q = self.values[kept], self.log_q[np.ix_(kept, kept)]
        best = -math.inf, log_weights
        for _ in range(self.options.num_rounds):
            log_weights = log_weights - np.logaddexp.reduce(log_weights)
            gaps = values - np.logaddexp.reduce(log_weights[:, None, None] + log_q, 0)
            heights = gaps.mean(1)
            bound = float(np.exp(log_weights) @ heights)
            if not bound > best[0]:
                break
            best = bound, log_weights
            log_weights = log_weights + heights
        return best

    def pruned(self, log_weights: np.ndarray) -> tuple[list[int], np.ndarray]:
        """Those without which the bound would be lower, and their best weights."""
        kept = list(range(len(self.values)))
        bound, log_weights = self.bound(kept, log_weights)
        while len(kept) > 1:
            fewer = [
                (self.bound(np.delete(kept, i).tolist(), np.delete(log_weights, i)), i)
                for i in range(len(kept))
            ]
            (without, weights), index = max(fewer, key=lambda one: one[0][0])
            if not without > bound - self.options.least_gain:
                break
            kept.pop(index)
            log_weights = weights
        return kept, log_weights


def places(
    problem: Problem,
    states: Sequence[State],
    log_weights: np.ndarray,
    count: int,
    rng: np.random.Generator,
    options: MixtureOptions,
) -> list[State]:
    """More components, one after another where the importance weight of a draw is largest."""
    space = problem.space
    which = rng.choice(len(states), options.num_points, p=np.exp(log_weights))
    noise = rng.standard_normal((options.num_points, space.dim))
    theta = np.empty_like(noise)
    for index, state in enumerate(states):
        theta[which == index] = space.draw(state, noise[which == index])[0]
    values = problem.objective.log_density(states[0], theta)
    parts = [w + space.log_q(s, theta) for w, s in zip(log_weights, states, strict=True)]
    log_q = np.logaddexp.reduce(parts, 0)
    new: list[State] = []
    for _ in range(count):
        gaps = np.where(np.isfinite(values), values - log_q, -math.inf)
        index = int(np.argmax(gaps))
        sd = np.concatenate(list(space.stddevs(states[which[index]]).values()))
        new.append(space.at(theta[index], options.width * sd))
        share = math.log(1.0 / (len(states) + len(new)))
        log_q = np.logaddexp(log_q, share + space.log_q(new[-1], theta))
    return new


def switched(means: Sequence[np.ndarray], stddevs: Sequence[np.ndarray], slack: float) -> bool:
    """Whether two means have the same numbers in another order, as where labels are switched."""
    for i, one in enumerate(means):
        for j, other in enumerate(means[:i]):
            allowed = slack * np.maximum(np.sort(stddevs[i]), np.sort(stddevs[j]))
            is_same = (np.abs(np.sort(one) - np.sort(other)) < allowed).all()
            if is_same and not (np.abs(one - other) < slack * stddevs[i]).all():
                return True
    return False
