"""Gaussians and the model's own parameters as one vector, for a search that sees all data.

A parameter of the model (the weights of a network, a noise) has no Fisher information. Its metric
is one number, ``1 / gamma``, the curvature along its last short step, as in the first matrix of
L-BFGS (Nocedal and Wright, 2006, equation 7.20). Each parameter has its own, because an intercept
of thousands and the logarithm of a scale differ in size. The quasi-Newton memory also sees how
parameters and Gaussians depend on each other, which alternating steps do not. A parameter's step is
limited in its own units, to a length that grows while the gradient keeps its direction.

Estimates hold plain gradients of parameters. Only the metric knows ``gamma``, and scales them.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ngvi.inference.estimate import Direction, Estimate, Pairs, Sample, State, Step
from ngvi.inference.metric import Metric
from ngvi.inference.options import FLAT_METRIC, LEVELS
from ngvi.inference.problem import Forwarding, Objective, Problem

#: Root mean square of a parameter's first step, in its own units.
FIRST_STEP = 0.1
#: Factor of the limit of steps, and of the metric, after a step that was too short.
GROWTH = 2.0


def with_model_parameters(problem: Problem) -> Problem:
    """Return a problem whose directions have the model's own parameters at their end."""
    if not problem.space.has_model_parameters:
        return problem
    memory = _Scales()

    def metric(state: State, pairs: Pairs) -> Metric:
        return _JointMetric(state, pairs, problem, memory)

    return problem.replace(objective=_JointObjective(problem.objective, memory), metric=metric)


@dataclasses.dataclass
class _Scales:
    """Scales of the model's own parameters.

    :ivar owner: the number of the parameter that each element of all of them belongs to.
    :ivar limits: of the steps, by parameter: the root of their mean square.
    :ivar gamma: by parameter.
    """

    owner: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, int))
    limits: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))
    gamma: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sum over the elements of each parameter."""
        return np.bincount(self.owner, values)

    def rms(self, values: np.ndarray) -> np.ndarray:
        """Return the root mean square of each parameter."""
        return np.sqrt(self.sums(np.square(values, dtype=float)) / np.bincount(self.owner))

    def begin(self, gradient: np.ndarray) -> None:
        """Begin with nothing but the gradient of the parameters."""
        norms = self.rms(gradient)
        self.gamma = FIRST_STEP / np.where((norms > 0) & np.isfinite(norms), norms, 1.0)
        self.limits = np.full(len(norms), FIRST_STEP)


class _JointObjective(Forwarding):
    """An objective whose directions hold the parameters' gradients."""

    def __init__(self, inner: Objective, scales: _Scales) -> None:
        super().__init__(inner)
        self._scales = scales

    def bound(self, state: State, sample: Sample) -> Estimate:
        values, naturals, mean = self.inner.bound(state, sample)
        own = np.concatenate([np.ravel(part) for part in mean.parameters])
        sizes = [np.size(part) for part in mean.parameters]
        self._scales.owner = np.repeat(np.arange(len(sizes)), sizes)
        own = own.astype(naturals.dtype)
        rows = np.broadcast_to(own, (len(naturals), len(own)))
        joint = Direction(
            np.concatenate([mean.natural, own]),
            np.concatenate([mean.gradient, own]),
            mean.parameters,
        )
        return Estimate(values, np.concatenate([naturals, rows], 1), joint)


class _JointMetric(Metric):
    """The metric of a state's Gaussians and parameters."""

    def __init__(self, state: State, pairs: Pairs, problem: Problem, scales: _Scales) -> None:
        self._inner, self._moved = problem.metric(state, []), problem.space.moved
        self._num_gaussian, self._scales = self._inner.size, scales
        scaled = [(change, self.scaled(y)) for change, y in pairs]
        super().__init__(
            state, self._num_gaussian, scaled, self._inner.leaves_out_correlations, FLAT_METRIC
        )

    def scaled(self, natural: np.ndarray) -> np.ndarray:
        scales, own = self._scales, natural[..., self._num_gaussian :]
        if not len(scales.gamma):
            scales.begin(own.reshape(-1, own.shape[-1])[0])
        scaled = natural.copy()
        scaled[..., self._num_gaussian :] *= scales.gamma[scales.owner]
        return scaled

    def accepted(self, step: Step, before: Direction, after: Direction, is_short: bool) -> None:
        # In single precision a ``y`` of 2e19 has an infinite square, and no curvature of its own.
        change, old, new = (
            vector[self._num_gaussian :].astype(float)
            for vector in (step.change, before.natural, after.natural)
        )
        scales, enough = self._scales, LEVELS.shrinkage
        slope = scales.sums(old * change)
        left = np.where(slope > 0, scales.sums(new * change) / np.where(slope > 0, slope, 1.0), 0.0)
        # What moves together, along a ridge say, gains together.
        have_gained = after.gradient @ step.change > enough * step.slope
        goes_on = have_gained if self._pairs else left > enough
        scales.limits[goes_on & (scales.rms(change) > 0.5 * scales.limits)] *= GROWTH
        if not is_short:
            scales.gamma[left > enough] *= GROWTH
            scales.gamma[left < -enough] *= LEVELS.shrinkage
            return
        product, squares = scales.sums(change * (old - new)), scales.sums((old - new) ** 2)
        is_known = (product > 0) & (squares > 0)
        secant = np.divide(product, squares, scales.gamma.copy(), where=is_known)
        most = LEVELS.growth
        scales.gamma = np.clip(secant, scales.gamma / most, scales.gamma * most)

    def refused(self) -> None:
        self._scales.limits *= LEVELS.shrinkage

    def gradients(self, naturals: np.ndarray) -> np.ndarray:
        own, gamma = naturals[:, self._num_gaussian :], self._scales.gamma[self._scales.owner]
        of_gaussians = self._inner.gradients(naturals[:, : self._num_gaussian])
        return np.concatenate([of_gaussians, (own / gamma).astype(own.dtype)], 1)

    def step(self, direction: Direction, step_size: float, radius: float) -> Step | None:
        of_gaussian, own = np.split(direction.natural, [self._num_gaussian])
        slopes = np.split(direction.gradient, [self._num_gaussian])
        if not np.isfinite(own).all():
            return None
        lengths = step_size * self._scales.rms(own)
        shares = np.minimum(1.0, self._scales.limits / np.where(lengths > 0, lengths, 1.0))
        if self._pairs:  # what moves together is shortened together
            step_size *= shares.min()
        step = self._inner.step(Direction(of_gaussian, slopes[0]), step_size, radius)
        if step is None:
            return None
        if self._pairs:
            step_size, shares[:] = step.step_size, 1.0
        change = (step_size * shares[self._scales.owner] * own).astype(own.dtype)
        parts = np.split(change, np.cumsum([np.size(one) for one in direction.parameters])[:-1])
        moves = map(np.reshape, parts, map(np.shape, direction.parameters))
        return step._replace(
            state=self._moved(step.state, list(moves)),
            change=np.concatenate([step.change, change]),
            slope=step.slope + float(slopes[1] @ change),
        )
