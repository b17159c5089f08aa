"""Modes of the log density: ascents by L-BFGS from several points, which share the runs of a model.

Each ascent is a generator that asks for the value and the gradient at its next point, and the
points of all are evaluated together. Directions are those of the two-loop recursion
(:mod:`~ngvi.optim.two_loop`), from a given Gaussian's covariance where an ascent is as near to its
mode as draws are: there a step is then one of Newton's method, whatever the latents' units. The
line search is a bisection for the weak Wolfe conditions (Nocedal and Wright, 2006, section 3.1),
whose constants are theirs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

from ngvi.inference.draws.coordinates import Coordinates
from ngvi.inference.estimate import State
from ngvi.inference.options import LEVELS, StartOptions
from ngvi.inference.problem import Problem
from ngvi.optim.two_loop import Pairs, two_loop

#: Parts of the first slope that a step has to gain, and that may be left at its end.
GAINED, LEFT = 1e-4, 0.9
#: Nats of a negligible step: what it gains, and what the next step is to gain.
ENOUGH = LEVELS.tiny * LEVELS.same
#: Pairs, as many as SciPy's L-BFGS-B has.
MEMORY = 10


class Ascent(NamedTuple):
    """End of an ascent."""

    mean: np.ndarray  #: All latents, shape ``(d,)``.
    height: float  #: Log density, in nats; minus infinity without a density at the start.
    is_mode: bool  #: True for a local maximum, False for a point on the way.
    rounding: float  #: What heights of the same mode may differ by, in nats.


#: The log density and its gradient at a point.
Answer = tuple[float, np.ndarray]


def map_ascents(
    problem: Problem,
    state: State,
    points: np.ndarray,
    options: StartOptions,
    is_known: Callable[[np.ndarray, float], bool] = lambda place, value: False,
) -> list[Ascent]:
    """Go uphill by L-BFGS from several points.

    A call of the model may take as long at one point as at all of them. So the last quarter of the
    ascents is cut off after as many calls as the others took, or a quarter of the most steps.

    :param state: the Gaussian, and the model's own parameters.
    :param points: shape ``(N, d)``.
    :param is_known: whether a place, with this log density, belongs to a known optimum. There a
        negligible step ends an ascent. Elsewhere such steps may lead along a plain to a mode.
    """
    try:
        own = Coordinates.of_fit(problem, state)
    except ValueError:  # of a singular covariance
        own = Coordinates.of_stddevs(problem, state)
    climbs = [_Climb(problem, own, point, options, is_known) for point in points]
    ascents = [climb.run() for climb in climbs]
    asked, found = {index: next(one) for index, one in enumerate(ascents)}, {}
    calls, most = 0, math.inf
    while asked and calls < most:
        answers = problem.objective.gradient(state, np.stack(list(asked.values())))
        for index, value, gradient in zip(list(asked), *answers, strict=True):
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # beside an overflow
                    asked[index] = ascents[index].send((float(value), gradient))
            except StopIteration as end:
                found[index] = end.value
                del asked[index]
        calls += 1
        if calls == 1:
            few = len(asked) // 4  # of those with a density at their start
        if most == math.inf and len(asked) <= few:
            most = max(2 * calls, LEVELS.shrinkage * options.max_steps)
    return [found.get(index) or climb.end(False) for index, climb in enumerate(climbs)]


class _Climb:
    """Ascent from one point."""

    def __init__(
        self,
        problem: Problem,
        own: Coordinates,
        start: np.ndarray,
        options: StartOptions,
        is_known: Callable,
    ) -> None:
        self.problem, self.own, self.options = problem, own, options
        self.place, self.is_known = start, is_known
        self.value, self.slope = -math.inf, np.zeros(len(start))
        self.pairs: list[tuple[np.ndarray, np.ndarray]] = []

    def run(self) -> Generator[np.ndarray, Answer, Ascent]:
        """Ascend to a mode, or as far as the steps lead."""
        self.value, self.slope, is_finite = yield from self._asked(self.place)
        if not is_finite:
            return Ascent(self.place, -math.inf, False, 0.0)
        gained, is_mode = math.inf, False
        for _ in range(self.options.max_steps):
            direction, before = self._direction(), self.value
            left = 0.5 * float(direction @ self.slope)
            if gained <= self._rounding():
                # A slope on which steps gain nothing may still lead far up.
                is_mode = left < LEVELS.same
                break
            if max(gained, left) < ENOUGH and self.is_known(self.place, self.value):
                break
            if not (yield from self._step(direction)):
                break
            gained = self.value - before
        return self.end(is_mode)

    def end(self, is_mode: bool) -> Ascent:
        """Return the end of the ascent at its present place."""
        return Ascent(self.place, self.value, is_mode, self._rounding())

    def _rounding(self) -> float:
        """Return what values may be off by, in nats."""
        return LEVELS.rounding_units * self.problem.rounding(self.value)

    def _step(self, direction: np.ndarray) -> Generator[np.ndarray, Answer, bool]:
        """Take a step that satisfies the weak Wolfe conditions; whether there is one."""
        rise, low, high = float(direction @ self.slope), 0.0, math.inf
        # Without pairs nothing is known of the scale: the first step is of length one at most.
        size = 1.0 if self.pairs else 1.0 / max(1.0, float(np.linalg.norm(direction)))
        for _ in range(self.options.max_steps):
            place = self.place + size * direction
            value, slope, is_finite = yield from self._asked(place)
            ends = float(slope @ direction) if is_finite else -math.inf
            if not is_finite or value < self.value + GAINED * size * rise - self._rounding():
                high = size
            elif ends > LEFT * rise:
                low = size
            else:
                break
            # Where the slope at its end would be zero, if slopes are linear along the step.
            part = rise / (rise - ends) if ends < rise else math.inf
            if high == math.inf:
                size *= min(max(part, 2.0), 4.0)
            else:
                size = low + min(max(part, 0.1), 0.5) * (high - low)
            if not size * float(np.abs(direction).max()) > self.problem.space.eps:
                return False
        else:
            return False
        self.pairs.append((place - self.place, self.slope - slope))
        del self.pairs[:-MEMORY]
        self.place, self.value, self.slope = place, value, slope
        return True

    def _asked(self, place: np.ndarray) -> Generator[np.ndarray, Answer, Any]:
        """Ask for value and slope at a place, and whether they are finite."""
        value, gradient = yield place
        return value, gradient, math.isfinite(value) and bool(np.isfinite(gradient).all())

    def _direction(self) -> np.ndarray:
        """Return the quasi-Newton direction uphill."""
        if not self.pairs:
            return self.slope
        steps, ys = (np.stack(part) for part in zip(*self.pairs, strict=True))
        curvature = np.einsum("ij,ij->i", steps, ys)
        used = curvature > 0
        weights = np.where(used, 1.0 / np.where(used, curvature, 1.0), 0.0)
        natural = self.own.natural
        is_near = self.slope @ natural(self.slope) <= len(self.slope)
        metric = natural if is_near else np.asarray
        scale = curvature[-1] / float(ys[-1] @ metric(ys[-1])) if used[-1] else 1.0
        pairs = Pairs(steps, ys, steps, ys, weights)
        return two_loop(pairs, self.slope, lambda rest: scale * metric(rest))
