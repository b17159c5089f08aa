"""Natural-gradient steps of one Gaussian, or of many that leave out rows of their own.

A full step is an iteration of a fixed point in natural coordinates, whose convergence is linear,
and slow where rows decide little each. What the last steps left is combined to the least
(Anderson acceleration: Walker and Ni, 2011, equation 2.1), with the Fisher metric as its measure.
Where the bound falls by such a step, a plain one is taken.
"""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np

from ngvi.workflow.expected import Expected, points
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.target import Target


@dataclasses.dataclass(frozen=True)
class Steps:
    """Where natural-gradient steps have led."""

    q: DenseGaussian
    bound: float
    left: float  #: what half of the squared natural gradient's length says is left, in nats
    count: int


def climb(
    target: Target, q: DenseGaussian, num_steps: int, left: float, *, of_points: bool = False
) -> Steps | None:
    """Those of one Gaussian; see :func:`climb_all`.

    :param of_points: whether averages over points, where there are such, are to be followed as far
        as exact expectations: from wherever one comes, they lead to the same Gaussian.
    """
    run = _Climb(target, q, target.weights[None], None)
    return run.run(num_steps, left if of_points else max(left, run.noise))[0]


def climb_all(
    target: Target,
    q: DenseGaussian,
    weights: np.ndarray,
    num_steps: int,
    left: float,
    at: Expected | None = None,
) -> list[Steps | None]:
    """Natural-gradient steps, of the Bayesian learning rule, from one Gaussian to several.

    ``S <- (1 - rho) S - rho E[hess l]``, ``mu <- mu + rho S^-1 E[grad l]``, with the new ``S``.
    ``rho`` is 1, halved until the bound does not fall; before that an accelerated step is tried.
    Only what the Gaussian's family has of a Hessian counts. None where no step leads to a Gaussian:
    the target may be improper.

    :param weights: how many times each counts each element, shape ``(U, M)``.
    :param left: nats that are left to gain at most, or so many steps have been taken.
    :param at: expectations of all under ``q``, if they are known.
    """
    each = q.dim if target.predictors is not None else len(points(q.dim)[0])
    numbers = max(weights.shape[1] * each, 2 * DEFAULTS.num_remembered * q.dim**2)
    size = max(1, DEFAULTS.numbers_at_once // max(1, numbers))
    found: list[Steps | None] = []
    for start in range(0, len(weights), size):
        some = slice(start, start + size)
        known = None if at is None else at.take(some)
        run = _Climb(target, q, weights[some], known)
        found += run.run(num_steps, max(left, run.noise))
    return found


class _Climb:
    """Several at a time.

    :param at: expectations at the start.
    :ivar noise: the nats to which expectations are known.
    """

    def __init__(
        self, target: Target, q: DenseGaussian, weights: np.ndarray, at: Expected | None
    ) -> None:
        self._target, self._start, self._weights = target, q, weights
        self._q = q.repeated(len(weights))
        self._at = target.under(self._q, weights) if at is None else at
        self._bound = self._at.value + self._q.entropy()
        self._left = _left(self._q, self._at)
        self._remembered = _Remembered(q)
        by_points = target.predictors is None
        self.noise = DEFAULTS.left_by_points if by_points else 0.0

    def run(self, num_steps: int, left: float) -> list[Steps | None]:
        count = np.zeros(len(self._weights), int)
        active = np.arange(len(count))
        for _ in range(num_steps):
            active = active[~(self._left[active] <= left)]
            if not len(active):
                break
            active = self._step(active)
            count[active] += 1
        # Where the target has no curvature at the end there is no Gaussian to go on to.
        factor = self._start.factor
        white = factor.T @ self._start.within(self._at.curvature) @ factor
        is_finite = np.isfinite(self._left) & np.isfinite(white).all((1, 2))
        least = np.linalg.eigvalsh(np.where(is_finite[:, None, None], white, 0.0))[:, 0]
        is_found = is_finite & (least >= DEFAULTS.least_precision)
        return [
            Steps(self._q.take(u), float(self._bound[u]), float(self._left[u]), int(count[u]))
            if is_found[u]
            else None
            for u in range(len(count))
        ]

    def _step(self, active: np.ndarray) -> np.ndarray:
        """One step each, and which have found one."""
        waiting, rho, done = active, 1.0, []
        accelerated = self._remembered.step(self._q.take(active), self._at.take(active), active)
        for number in range(DEFAULTS.num_halvings):
            if number == 0 and accelerated is not None:
                new, are_proper = accelerated
            else:
                new, are_proper = _moved(self._q.take(waiting), self._at.take(waiting), rho)
                rho *= 0.5
            if are_proper.any():
                tried, new = waiting[are_proper], new.take(are_proper)
                there = self._target.under(new, self._weights[tried])
                value = there.value + new.entropy()
                bound = self._bound[tried]
                is_better = value >= bound - DEFAULTS.rounded_bound * np.abs(bound) - self.noise
                if is_better.any():
                    done.append(tried[is_better])
                    self._put(done[-1], new.take(is_better), there.take(is_better))
                waiting = np.setdiff1d(waiting, tried[is_better])
            if not len(waiting):
                break
        return np.sort(np.concatenate([np.empty(0, int), *done]))

    def _put(self, where: np.ndarray, q: DenseGaussian, at: Expected) -> None:
        mean, factor = self._q.mean.copy(), self._q.factor.copy()
        mean[where], factor[where] = q.mean, q.factor
        self._q = dataclasses.replace(self._q, mean=mean, factor=factor)
        value, gradient, curvature = (
            x.copy() for x in (self._at.value, self._at.gradient, self._at.curvature)
        )
        value[where], gradient[where], curvature[where] = at.value, at.gradient, at.curvature
        self._at = Expected(value, gradient, curvature)
        self._bound[where] = at.value + q.entropy()
        self._left[where] = _left(q, at)


class _Remembered:
    """Where plain steps led from, and to, in the last steps of several Gaussians.

    :param start: whose mean is the origin of natural coordinates ``S (mu - origin)`` and ``S``.
    """

    def __init__(self, start: DenseGaussian) -> None:
        self._start = start
        self._steps: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  #: who, to, change
        fits = DEFAULTS.max_numbers // (2 * start.dim**2)
        self._most = min(DEFAULTS.num_remembered, fits)

    def step(
        self, q: DenseGaussian, at: Expected, who: np.ndarray
    ) -> tuple[DenseGaussian, np.ndarray] | None:
        """Accelerated steps of some, and which lead to Gaussians.

        :param who: their numbers, which are among those of the steps before.
        """
        shift = q.mean - self._start.mean
        curvature = q.within(at.curvature)
        linear = (curvature @ shift[..., None])[..., 0] + at.gradient
        to = np.concatenate([linear[..., None], curvature], -1)
        now = np.concatenate([(q.precision @ shift[..., None]), q.precision], -1)
        factor = self._start.factor
        change = factor.T @ (to - now)
        change[..., 1:] = change[..., 1:] @ factor / np.sqrt(2.0)
        earlier = [
            (a[np.searchsorted(of, who)], b[np.searchsorted(of, who)]) for of, a, b in self._steps
        ]
        self._steps = [*self._steps, (who, to, change)][-max(1, self._most - 1) :]
        if not earlier or self._most < 2:
            return None
        count = len(who)
        gaps = np.stack([(change - old).reshape(count, -1) for _, old in earlier], 1)
        square = gaps @ np.swapaxes(gaps, 1, 2)
        scale = np.trace(square, axis1=1, axis2=2)[:, None, None]
        square = square + (DEFAULTS.ridge * scale + np.finfo(float).tiny) * np.eye(len(earlier))
        parts = np.linalg.solve(square, gaps @ change.reshape(count, -1, 1))[..., 0]
        new = to - sum(parts[:, k, None, None] * (to - old) for k, (old, _) in enumerate(earlier))
        return _at_natural(self._start.mean, new[..., 0], new[..., 1:], q.blocks)


def _at_natural(
    origin: np.ndarray, linear: np.ndarray, precision: np.ndarray, blocks: np.ndarray
) -> tuple[DenseGaussian, np.ndarray]:
    """Gaussians, and which of the precisions are definite."""
    are_proper = np.full(len(linear), True)
    mean = np.broadcast_to(origin, linear.shape)
    try:
        new = DenseGaussian.of_precision(mean, precision, blocks)
    except np.linalg.LinAlgError:
        precision = precision.copy()
        for u, one in enumerate(precision):
            try:
                np.linalg.cholesky(one)
            except np.linalg.LinAlgError:
                precision[u], are_proper[u] = np.eye(len(one)), False
        new = DenseGaussian.of_precision(mean, precision, blocks)
    pulled = np.swapaxes(new.factor, 1, 2) @ linear[..., None]
    return dataclasses.replace(new, mean=mean + (new.factor @ pulled)[..., 0]), are_proper


def _moved(q: DenseGaussian, at: Expected, rho: float) -> tuple[DenseGaussian, np.ndarray]:
    """By one step each, and which are Gaussians."""
    precision = rho * q.within(at.curvature)
    if rho < 1.0:
        precision = precision + (1.0 - rho) * q.precision
    return _at_natural(q.mean, rho * at.gradient, precision, q.blocks)


def _left(q: DenseGaussian, at: Expected) -> np.ndarray:
    """Half of the squared Fisher length of the natural gradient, in nats."""
    turned = np.swapaxes(q.factor, -1, -2)
    pulled = (turned @ at.gradient[..., None])[..., 0]
    white = turned @ q.within(at.curvature) @ q.factor - np.eye(q.dim)
    return 0.5 * (pulled**2).sum(-1) + 0.25 * (white**2).sum((-1, -2))


def polished(target: Target, q: DenseGaussian) -> DenseGaussian:
    """At the optimum that a fit is near: sites are only there the posterior's parts."""
    steps = climb(target, q, DEFAULTS.polish_steps, DEFAULTS.polish_left, of_points=True)
    q = steps.q if steps is not None and steps.left < DEFAULTS.tolerance else q
    # One Gaussian has many factors: noise shall be the same draw whichever way led to it.
    with contextlib.suppress(np.linalg.LinAlgError):
        return dataclasses.replace(q, factor=np.linalg.cholesky(q.within(q.factor @ q.factor.T)))
    return q
