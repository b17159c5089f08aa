"""Modes of the log density: ascents by L-BFGS from several points, which share the runs of a
model.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from ngvi.inference.estimate import State
from ngvi.inference.lockstep import Ask, in_lockstep
from ngvi.inference.options import StartOptions
from ngvi.inference.problem import Problem

#: What a line search comes back from.
OUTSIDE = 1e300


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

    def __init__(self, mode: Ascent, factor: np.ndarray, options: StartOptions) -> None:
        self.mode, self.factor, self.options = mode, factor, options
        self._whiten = np.linalg.pinv(factor)

    @classmethod
    def of(
        cls,
        problem: Problem,
        state: State,
        factor: np.ndarray,
        options: StartOptions = StartOptions(),  # noqa: B008  frozen
    ) -> KnownMode | None:
        """Where a few steps of Newton's lead, if the density is as a Gaussian says."""
        theta = problem.space.mean(state)
        for _ in range(options.max_newton_steps):
            values, gradients = problem.objective.gradient(state, theta[None])
            step = factor.T @ gradients[0]
            if not (math.isfinite(values[0]) and np.isfinite(step).all()):
                return None
            if 0.5 * step @ step < options.least_newton_gain:
                return cls(Ascent(theta, float(values[0]), True), factor, options)
            theta = theta + factor @ step
        return None

    def is_met(self, theta: np.ndarray, value: float, gradient: np.ndarray) -> bool:
        """Whether a point's gradient points to the mode, and predicts its height."""
        step = self.factor.T @ gradient
        with np.errstate(over="ignore", invalid="ignore"):  # far down
            predicted = value + 0.5 * step @ step
            if not abs(predicted - self.mode.height) <= self.options.same_height:
                return False
        off = self._whiten @ (theta - self.mode.mean) + step
        return float(np.linalg.norm(off)) < self.options.near


def map_ascents(
    problem: Problem,
    state: State,
    points: np.ndarray,
    options: StartOptions,
    factor: np.ndarray | None = None,
    known: KnownMode | None = None,
) -> list[Ascent]:
    """Uphill by L-BFGS from several points.

    :param state: which has the model's own parameters.
    :param points: shape ``(N, d)``.
    :param factor: of a covariance, shape ``(d, d)``, in whose whitened coordinates to ascend.
    :param known: a mode at which an ascent ends early.
    """
    highest = [Ascent(point, -math.inf, False) for point in points]

    def ascend(index: int, ask: Ask) -> None:
        def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
            theta = points[index] + (z if factor is None else factor @ z)
            value, gradient = ask(theta)
            if not (math.isfinite(value) and np.isfinite(gradient).all()):
                return OUTSIDE, np.zeros_like(z)
            if value > highest[index].height:
                highest[index] = Ascent(theta, value, False)
            if known is not None and known.is_met(theta, value, gradient):
                highest[index] = known.mode
                raise _MetError
            return -value, -(gradient if factor is None else factor.T @ gradient)

        limits: dict[str, float] = {"maxiter": options.ascent_steps}
        if factor is not None:
            limits["gtol"] = options.ascent_gradient
        try:
            end = minimize(
                loss, np.zeros_like(points[index]), jac=True, method="L-BFGS-B", options=limits
            )
        except _MetError:
            return
        # Where values are equal by rounding it ends as well, on a slope that leads far up.
        with np.errstate(over="ignore", invalid="ignore"):  # beside an overflow of the density
            left = 0.5 * float(end.jac @ (end.hess_inv @ end.jac))
        is_finite = math.isfinite(highest[index].height)
        is_mode = is_finite and bool(end.success) and left < options.same_height
        highest[index] = highest[index]._replace(is_mode=is_mode)

    tasks = [partial(ascend, index) for index in range(len(points))]
    in_lockstep(tasks, partial(problem.objective.gradient, state))
    units = options.rounding_units
    return [one._replace(rounding=units * problem.rounding(one.height)) for one in highest]


class _MetError(Exception):
    """An ascent has come to a known mode."""
