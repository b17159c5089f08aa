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

    :ivar ends: where one parameter ends and the next begins, but for the last.
    :ivar limits: of the steps, by parameter: the root of their mean square.
    :ivar gamma: by parameter.
    """

    ends: tuple[int, ...] = ()
    limits: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))
    gamma: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))

    def parts(self, count: int) -> list[slice]:
        """Return the place of each parameter in a vector of all of them."""
        starts = [0, *self.ends]
        return [slice(*pair) for pair in zip(starts, [*self.ends, count], strict=True)]

    def each(self, values: np.ndarray, count: int) -> np.ndarray:
        """Return a number of each parameter for each of its elements."""
        sizes = [part.stop - part.start for part in self.parts(count)]
        return np.repeat(values, sizes)

    def begin(self, gradient: np.ndarray) -> None:
        """Begin with nothing but the gradient of the parameters."""
        norms = np.array([_rms(gradient[part]) for part in self.parts(len(gradient))])
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
        self._scales.ends = tuple(np.cumsum(sizes)[:-1].tolist())
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
        scaled[..., self._num_gaussian :] *= scales.each(scales.gamma, own.shape[-1])
        return scaled

    def accepted(self, step: Step, before: Direction, after: Direction, is_short: bool) -> None:
        # In single precision a ``y`` of 2e19 has an infinite square, and no curvature of its own.
        change, old, new = (
            vector[self._num_gaussian :].astype(float)
            for vector in (step.change, before.natural, after.natural)
        )
        scales = self._scales
        ends = float(after.gradient @ step.change)
        for index, part in enumerate(scales.parts(len(change))):
            moved, slope = change[part], float(old[part] @ change[part])
            left = float(new[part] @ moved) / slope if slope > 0 else 0.0
            # What moves together, along a ridge say, gains together.
            enough = LEVELS.shrinkage
            goes_on = ends > enough * step.slope if self._pairs else left > enough
            if goes_on and _rms(moved) > 0.5 * scales.limits[index]:
                scales.limits[index] *= GROWTH
            y = old[part] - new[part]
            product, squares = float(moved @ y), float(y @ y)
            gamma = scales.gamma[index]
            if is_short and product > 0 and squares > 0:
                most = LEVELS.growth
                scales.gamma[index] = np.clip(product / squares, gamma / most, gamma * most)
            elif not is_short and left > enough:
                scales.gamma[index] *= GROWTH
            elif not is_short and left < -enough:
                scales.gamma[index] *= LEVELS.shrinkage

    def refused(self) -> None:
        self._scales.limits *= LEVELS.shrinkage

    def gradients(self, naturals: np.ndarray) -> np.ndarray:
        own = naturals[:, self._num_gaussian :]
        gamma = self._scales.each(self._scales.gamma, own.shape[1])
        of_gaussians = self._inner.gradients(naturals[:, : self._num_gaussian])
        return np.concatenate([of_gaussians, (own / gamma).astype(own.dtype)], 1)

    def step(self, direction: Direction, step_size: float, radius: float) -> Step | None:
        of_gaussian, own = np.split(direction.natural, [self._num_gaussian])
        slopes = np.split(direction.gradient, [self._num_gaussian])
        if not np.isfinite(own).all():
            return None
        parts = self._scales.parts(len(own))
        lengths = step_size * np.array([_rms(own[part]) for part in parts])
        shares = np.minimum(1.0, self._scales.limits / np.where(lengths > 0, lengths, 1.0))
        if self._pairs:  # what moves together is shortened together
            step_size *= shares.min()
        step = self._inner.step(Direction(of_gaussian, slopes[0]), step_size, radius)
        if step is None:
            return None
        if self._pairs:
            step_size, shares[:] = step.step_size, 1.0
        change, moves = step_size * own, []
        for part, share, like in zip(parts, shares, direction.parameters, strict=True):
            change[part] *= share
            moves.append(change[part].reshape(np.shape(like)))
        return step._replace(
            state=self._moved(step.state, moves),
            change=np.concatenate([step.change, change]),
            slope=step.slope + float(slopes[1] @ change),
        )


def _rms(values: np.ndarray) -> float:
    """Return the root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values, dtype=float))))
