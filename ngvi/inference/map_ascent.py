"""Modes of the log density: ascents by L-BFGS from several points, which share the runs of a
model.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np

from ngvi.inference.options import StartOptions
from ngvi.inference.problem import Problem, State
from ngvi.optim.two_loop import Pairs, two_loop

#: Armijo's condition, and what one halving of a step may be at least (Nocedal and Wright, 2006).
ARMIJO, SHORTEST, LONGEST = 1e-4, 0.1, 0.5
#: Pairs of the memory, attempts at a step.
NUM_PAIRS, MAX_ATTEMPTS = 10, 20
#: Heights of one mode, in nats, differ by so much, or by so many units of rounding.
SAME_HEIGHT, UNITS = 0.1, 4.0
#: A Gaussian's Newton step that leads so near to a mode has met it, in standard deviations.
NEAR = 0.3
#: Newton steps to a Gaussian's own mode at most, and what another would gain, in nats.
MAX_NEWTON, NO_GAIN = 4, 1e-2


class Ascent(NamedTuple):
    """Where an ascent has ended."""

    mean: np.ndarray  #: all latents, shape ``(d,)``
    height: float  #: its log density, in nats; minus infinity if it had none where it began
    is_mode: bool  #: whether it is a local maximum, and not only on the way to one
    rounding: float = 0.0  #: what heights of the same mode may differ by, in nats


class KnownMode:
    """The mode inside a Gaussian, at which ascents may end early.

    Where a posterior is near to a Gaussian, they need not be followed to the end.

    :param factor: of the covariance, shape ``(d, d)``.
    """

    def __init__(self, mode: Ascent, factor: np.ndarray) -> None:
        self.mode, self.factor = mode, factor
        self._whiten = np.linalg.pinv(factor)

    @classmethod
    def of(cls, problem: Problem, state: State, factor: np.ndarray) -> KnownMode | None:
        """Where a few steps of Newton's lead, if the density is as a Gaussian says."""
        theta = problem.space.mean(state)
        for _ in range(MAX_NEWTON):
            values, gradients = problem.objective.gradient(state, theta[None])
            step = factor.T @ gradients[0]
            if not (math.isfinite(values[0]) and np.isfinite(step).all()):
                return None
            if 0.5 * step @ step < NO_GAIN:
                return cls(Ascent(theta, float(values[0]), True), factor)
            theta = theta + factor @ step
        return None

    def is_met(self, theta: np.ndarray, value: float, gradient: np.ndarray) -> bool:
        """Whether a point's gradient points to the mode, and promises its height."""
        step = self.factor.T @ gradient
        with np.errstate(over="ignore", invalid="ignore"):  # far down
            promised = value + 0.5 * step @ step
            if not abs(promised - self.mode.height) <= SAME_HEIGHT:
                return False
        off = self._whiten @ (theta - self.mode.mean) + step
        return float(np.linalg.norm(off)) < NEAR


def map_ascents(
    problem: Problem,
    state: State,
    points: np.ndarray,
    options: StartOptions,
    factor: np.ndarray | None = None,
    known: KnownMode | None = None,
) -> list[Ascent]:
    """Uphill from several points.

    :param state: which has the model's own parameters.
    :param points: shape ``(N, d)``.
    :param factor: of a covariance, shape ``(d, d)``, in whose whitened coordinates to ascend.
    :param known: a mode at which an ascent ends early.
    """
    runs = [_ascent(point, options, factor, known) for point in points]
    ends: list[Ascent | None] = [None] * len(runs)
    asked = {index: next(run) for index, run in enumerate(runs)}
    while asked:
        values, gradients = problem.objective.gradient(state, np.stack(list(asked.values())))
        answers = zip(list(asked), values, gradients, strict=True)
        asked = {}
        for index, value, gradient in answers:
            try:
                asked[index] = runs[index].send((float(value), gradient))
            except StopIteration as end:
                ends[index] = end.value
    return [
        end._replace(rounding=UNITS * problem.rounding(end.height))
        for end in ends
        if end is not None
    ]


Answer = tuple[float, np.ndarray]


def _ascent(
    point: np.ndarray,
    options: StartOptions,
    factor: np.ndarray | None,
    known: KnownMode | None,
) -> Generator[np.ndarray, Answer, Ascent]:
    """One ascent, which yields a point and is sent its value and gradient."""
    theta, pairs = point, _Memory(is_whitened=factor is not None)
    value, gradient = yield theta
    if not (math.isfinite(value) and np.isfinite(gradient).all()):
        return Ascent(point, -math.inf, False)
    slope_of = (lambda g: g) if factor is None else (lambda g: factor.T @ g)
    change_of = (lambda z: z) if factor is None else (lambda z: factor @ z)
    for _ in range(options.ascent_steps):
        if known is not None and known.is_met(theta, value, gradient):
            return known.mode
        slope = slope_of(gradient)
        direction = pairs.direction(slope)
        rise = float(slope @ direction)
        if pairs.is_scaled and 0.5 * rise < options.ascent_gap:
            return Ascent(theta, value, True)
        size = 1.0 if pairs.is_scaled else min(1.0, 1.0 / max(float(np.linalg.norm(slope)), 1e-300))
        for _ in range(MAX_ATTEMPTS):
            new = theta + change_of(size * direction)
            higher, new_gradient = yield new
            is_finite = math.isfinite(higher) and bool(np.isfinite(new_gradient).all())
            if is_finite and higher >= value + ARMIJO * size * rise:
                break
            fall = value + size * rise - higher if is_finite else math.inf
            size *= float(np.clip(0.5 * size * rise / fall if fall > 0 else 0.0, SHORTEST, LONGEST))
        else:
            return Ascent(theta, value, False)
        pairs.add(size * direction, slope - slope_of(new_gradient))
        theta, value, gradient = new, higher, new_gradient
    return Ascent(theta, value, False)


class _Memory:
    """Pairs of L-BFGS for a maximum."""

    def __init__(self, is_whitened: bool) -> None:
        self._pairs: list[tuple[np.ndarray, np.ndarray]] = []
        self._scale, self.is_scaled = 1.0, is_whitened

    def add(self, step: np.ndarray, fall: np.ndarray) -> None:
        product = float(step @ fall)
        if not product > np.finfo(float).eps * float(fall @ fall):
            return
        self._pairs = [*self._pairs[1 - NUM_PAIRS :], (step, fall)]
        self._scale, self.is_scaled = product / float(fall @ fall), True

    def direction(self, slope: np.ndarray) -> np.ndarray:
        if not self._pairs:
            return slope
        steps, falls = (np.stack(part) for part in zip(*self._pairs, strict=True))
        weights = 1.0 / np.einsum("ij,ij->i", steps, falls)
        pairs = Pairs(steps, falls, steps, falls, weights)
        return two_loop(pairs, slope, lambda rest: self._scale * rest)


def by_height(modes: Sequence[Ascent]) -> list[list[Ascent]]:
    """Modes of the same height together, the highest first: they may be mirror images of one."""
    parts: list[list[Ascent]] = []
    for mode in sorted(modes, key=lambda one: -one.height):
        if not parts or parts[-1][-1].height - mode.height > SAME_HEIGHT + mode.rounding:
            parts.append([])
        parts[-1].append(mode)
    return parts
