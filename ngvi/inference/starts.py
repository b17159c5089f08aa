"""Starts of runs: broad, because narrow starts lead to poor optima, and adapted to the model.

- The guide's own start is ``N(m, I)`` on the unconstrained scale, with the mean ``m`` of its
  ``init_loc_fn``; narrower ones, if the bound or its gradient overflows there.
- The prior's start is ``N(prior mean, prior sd^2)``, if that differs. If data are in thousands, the
  latents are far from zero, and scales would collapse from the guide's start.
- Draws of the prior, points of a box, and the modes reached by ascents from them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ngvi.inference.estimate import Sample, State
from ngvi.inference.options import LEVELS, FitOptions
from ngvi.inference.problem import Problem

#: Quartiles of a normal distribution are so many standard deviations apart.
QUARTILES, APART = (0.25, 0.75), 1.349

GUIDE, PRIOR, MODE, DRAW = "the guide's start", "the prior", "a mode", "a draw"
OTHER_PARAMETERS = "other parameters"


class Start(NamedTuple):
    """A state where the bound is finite."""

    state: State
    name: str  #: Name in words.
    value: float = -math.inf  #: Value of the bound over a few draws, in nats.


@dataclasses.dataclass(frozen=True)
class Prior:
    """Prior of a model's latents, on the unconstrained scale.

    :ivar mean: the median of each latent, shape ``(d,)``.
    :ivar sd: the standard deviation by the quartiles of each, shape ``(d,)``.
    :ivar draws: shape ``(N, d)``.
    """

    mean: np.ndarray
    sd: np.ndarray
    draws: np.ndarray

    @classmethod
    def of(cls, draws: np.ndarray | None) -> Prior | None:
        """Return the prior of such draws; None where there are none, or most are not finite."""
        if draws is None:
            return None
        count, draws = len(draws), draws[np.isfinite(draws).all(1)]
        if len(draws) < count // 2:
            return None
        low, high = np.quantile(draws, QUARTILES, 0)
        sd = (high - low) / APART
        return cls(np.median(draws, 0), np.where(sd > 0, sd, 1.0), draws)


class Starts:
    """Makes starts of a problem.

    :param num_groups: of draws, over which a bound must be finite.
    """

    def __init__(
        self, problem: Problem, rng: np.random.Generator, options: FitOptions, num_groups: int
    ) -> None:
        self.problem, self.rng, self.options = problem, rng, options
        self.num_groups = num_groups
        self._others: list[np.ndarray] | None = None
        self.outside: dict[str, float] = {}  #: See ``Objective.prior``.

    @functools.cached_property
    def prior(self) -> Prior | None:
        """The model's, or None if it cannot be sampled."""
        count = self.options.starts.num_points
        draws, self.outside = self.problem.objective.prior(self.rng, count)
        return None if self.problem.objective.is_subsampled else Prior.of(draws)

    # -- one start --------------------------------------------------------------------

    def own(self) -> Start | None:
        """Return the guide's start, a narrower one, or one at a point of high density."""
        space, scales, sample = self.problem.space, self.options.starts.scales, self._sample()
        return (
            self.usable(space.initial, GUIDE, sample)
            or next(self._at_scales(None, 1.0, scales[1:], GUIDE, sample), None)
            or next(filter(None, (self.at(point, DRAW) for point in self.highest(5))), None)
        )

    def of_prior(self) -> Start | None:
        """Return the prior's, or a narrower one; None where it is about the guide's."""
        prior, mean = self.prior, self.problem.space.mean(self.problem.space.initial)
        if prior is None or not (np.abs(prior.mean - mean) > LEVELS.certain).any():
            return None
        scales = self.options.starts.scales
        return next(self._at_scales(prior.mean, prior.sd, scales, PRIOR, self._sample()), None)

    def at(self, mean: np.ndarray, name: str, near: State | None = None) -> Start | None:
        """About a mean, with the scale whose bound is best.

        :param near: a Gaussian whose standard deviations say how wide another may be.
        """
        sd, scales = np.ones(1), self.options.starts.scales[near is None :]
        if near is not None:
            sd = np.concatenate(list(self.problem.space.stddevs(near).values()))
        return self._highest(self._at_scales(mean, sd, scales, name, self._sample()))

    def broad(self, mean: np.ndarray) -> Start | None:
        """About a mean, as broad as the prior or narrower, with the highest bound."""
        sd = 1.0 if self.prior is None else self.prior.sd
        options = self.options.starts
        return self._highest(self._at_scales(mean, sd, options.scales, DRAW, self._sample()))

    def other_parameters(self, start: Start) -> Start | None:
        """Draw other values of the model's own parameters.

        They are as far from the given ones as these are from zero, and at least as far as a factor
        of a scale is.
        """
        steps = []
        for value in self.problem.space.model_parameters(start.state).values():
            sd = max(float(np.sqrt(np.mean(np.square(value)))), 1.0 if value.size == 1 else 0.1)
            steps.append((sd * self.rng.standard_normal(value.shape)).astype(value.dtype))
        sample, space = self._sample(), self.problem.space
        narrower = (space.at(None, scale) for scale in self.options.starts.scales[1:])
        for state in (start.state, *narrower):
            found = self.usable(space.moved(state, steps), OTHER_PARAMETERS, sample)
            if found is not None:
                return found
        return None

    def usable(self, state: State, name: str, sample: Sample | None = None) -> Start | None:
        """Return a state as a start, if the bound and its natural gradient are finite there."""
        problem = self.problem
        estimate = problem.objective.bound(state, sample or self._sample())
        if not estimate.is_finite:
            return None
        metric = problem.metric(state, [])
        # The slope along the direction itself is NaN if any of its numbers is.
        if not math.isfinite(metric.corrected(estimate.mean).gain):
            return None
        if metric.step(estimate.mean, 1.0, LEVELS.notable) is None:
            return None
        return Start(state, name, estimate.value)

    # -- points -----------------------------------------------------------------------

    def points(self, count: int) -> np.ndarray:
        """Return the next of the prior's draws and of a box that have a density, drawn alike.

        :return: shape ``(n, d)``; fewer than asked for where there are no more.
        """
        if self._others is None:
            points, values = self.pool
            finite = np.flatnonzero(np.isfinite(values))
            self._others = list(points[self.rng.permutation(finite)])
        found, self._others = self._others[:count], self._others[count:]
        return np.reshape(found, (-1, self.problem.space.dim))

    def highest(self, count: int) -> np.ndarray:
        """Return the points of the highest density, the highest first; shape ``(n, d)``."""
        points, values = self.pool
        order = np.argsort(-np.where(np.isfinite(values), values, -np.inf))[:count]
        return points[order[np.isfinite(values[order])]]

    @functools.cached_property
    def pool(self) -> tuple[np.ndarray, np.ndarray]:
        """Points and their log densities."""
        options, space = self.options.starts, self.problem.space
        points = self.rng.uniform(-options.box, options.box, (options.num_points, space.dim))
        if self.prior is not None:
            points = np.concatenate([self.prior.draws, points])
        return points, self.problem.objective.log_density(space.initial, points)

    def cut_off(self, has_time: bool = True) -> str:
        """Say at which part of the prior a distribution is not defined; or nothing.

        :param has_time: to draw the prior, which effort="quick" and minibatches have not done.
        """
        if has_time:
            _ = self.prior
        what = max(self.outside, key=self.outside.__getitem__, default="")
        if not what or self.outside[what] <= 1 - LEVELS.confidence:
            return ""
        return (
            f"at {self.outside[what]:.0%} of the prior's draws {what}, where the distribution is "
            "not defined: the posterior is cut off. Give the latents behind it priors on the right "
            "domain (HalfNormal, Gamma, Beta, Dirichlet, say), or transform them by exp, softplus, "
            "sigmoid or softmax"
        )

    # -- scales -----------------------------------------------------------------------

    def _sample(self) -> Sample:
        return self.problem.objective.sample(self.rng, self.num_groups)

    def _at_scales(
        self,
        mean: np.ndarray | None,
        sd: float | np.ndarray,
        scales: Iterable[float],
        name: str,
        sample: Sample,
    ) -> Iterator[Start]:
        """Return the usable starts at one mean."""
        for scale in scales:
            start = self.usable(self.problem.space.at(mean, scale * sd), name, sample)
            if start is not None:
                yield start

    @staticmethod
    def _highest(starts: Iterable[Start]) -> Start | None:
        """Return the last of these up to which the bound rises, the broadest first."""
        best = None
        for start in starts:
            if best is not None and start.value <= best.value:
                break
            best = start
        return best
