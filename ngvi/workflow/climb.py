"""Natural-gradient steps of one Gaussian, or of many that leave out rows of their own.

A full step is an iteration of a fixed point in natural coordinates, whose convergence is linear,
and slow where rows decide little each. What the last steps left is combined to the least
(Anderson acceleration: Walker and Ni, 2011, equation 2.1), with the Fisher metric as its measure.
Where the bound falls by such a step, a plain one is taken.
"""

from __future__ import annotations

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
        self._remembered = _Remembered(q, len(weights))
        #: Of each, steps, and what was tried in vain since the last of them.
        self._count, self._tries = np.zeros((2, len(weights)), int)
        by_points = target.predictors is None
        self.noise = DEFAULTS.left_by_points if by_points else 0.0

    def run(self, num_steps: int, left: float) -> list[Steps | None]:
        while True:
            is_active = ~(self._left <= left) & (self._count < num_steps)
            active = np.flatnonzero(is_active & (self._tries <= DEFAULTS.num_halvings))
            if not len(active):
                break
            self._try(active)
        count = self._count
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

    def _try(self, active: np.ndarray) -> None:
        """What is next of each, all at once: a call costs as much for one."""
        new, are_proper = self._next(active)
        is_better = are_proper.copy()
        if are_proper.any():
            tried, new = active[are_proper], new.take(are_proper)
            there = self._target.under(new, self._weights[tried])
            bound = self._bound[tried]
            rounding = DEFAULTS.rounded_bound * np.abs(bound) + self.noise
            found = there.value + new.entropy() >= bound - rounding
            is_better[are_proper] = found
            self._put(tried[found], new.take(found), there.take(found))
        self._count[active[is_better]] += 1
        self._tries[active] = np.where(is_better, 0, self._tries[active] + 1)

    def _next(self, active: np.ndarray) -> tuple[DenseGaussian, np.ndarray]:
        """By an accelerated step, or a plain one, half as long each time; which are Gaussians."""
        q, at, tries = self._q.take(active), self._at.take(active), self._tries[active]
        fresh = np.flatnonzero(tries == 0)
        faster, is_known = self._remembered.step(q.take(fresh), at.take(fresh), active[fresh])
        some, unknown = fresh[is_known], fresh[~is_known]
        tries[unknown] = self._tries[active[unknown]] = 1
        rho = 0.5 ** np.maximum(tries - 1, 0)
        origin, linear, precision = (
            q.mean.copy(),
            rho[:, None] * at.gradient,
            q.within(at.curvature),
        )
        precision = rho[:, None, None] * precision
        short = np.flatnonzero(rho < 1.0)
        precision[short] += (1.0 - rho[short, None, None]) * q.take(short).precision
        origin[some] = self._start.mean
        linear[some], precision[some] = faster[is_known, :, 0], faster[is_known, :, 1:]
        return _at_natural(origin, linear, precision, q.blocks)

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
    :param num: how many Gaussians.
    """

    def __init__(self, start: DenseGaussian, num: int) -> None:
        self._start, dim = start, start.dim
        fits = DEFAULTS.max_numbers // (2 * dim**2)
        shape = num, max(0, min(DEFAULTS.num_remembered, fits) - 1), dim, dim + 1
        self._to, self._change = np.zeros(shape), np.zeros(shape)
        self._count = np.zeros(num, int)

    def step(
        self, q: DenseGaussian, at: Expected, who: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Natural coordinates after accelerated steps of some, and of which there are such.

        :param who: their numbers.
        """
        shift = q.mean - self._start.mean
        curvature = q.within(at.curvature)
        linear = (curvature @ shift[..., None])[..., 0] + at.gradient
        to = np.concatenate([linear[..., None], curvature], -1)
        now = np.concatenate([(q.precision @ shift[..., None]), q.precision], -1)
        factor = self._start.factor
        change = factor.T @ (to - now)
        change[..., 1:] = change[..., 1:] @ factor / np.sqrt(2.0)
        num, most = len(who), self._to.shape[1]
        is_there = np.arange(most) < self._count[who, None]
        old_to, old_change = self._to[who], self._change[who]
        for kept, old, new in (self._to, old_to, to), (self._change, old_change, change):
            kept[who] = np.concatenate([new[:, None], old], 1)[:, :most]
        self._count[who] += 1
        size = int(np.prod(change.shape[1:]))
        gaps = (change[:, None] - old_change).reshape(num, most, size) * is_there[..., None]
        square = gaps @ np.swapaxes(gaps, 1, 2)
        scale = np.trace(square, axis1=1, axis2=2)[:, None, None]
        # It is zero, and so is the part, of what is not there.
        square = square + (DEFAULTS.ridge * scale + np.finfo(float).tiny) * np.eye(most)
        parts = np.linalg.solve(square, gaps @ change.reshape(num, size, 1))[..., 0]
        new = to - np.einsum("uk,ukij->uij", parts, to[:, None] - old_to)
        return new, np.asarray(is_there.any(1))


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


def _left(q: DenseGaussian, at: Expected) -> np.ndarray:
    """Half of the squared Fisher length of the natural gradient, in nats."""
    turned = np.swapaxes(q.factor, -1, -2)
    pulled = (turned @ at.gradient[..., None])[..., 0]
    white = turned @ q.within(at.curvature) @ q.factor - np.eye(q.dim)
    return 0.5 * (pulled**2).sum(-1) + 0.25 * (white**2).sum((-1, -2))


def polished(target: Target, q: DenseGaussian) -> DenseGaussian:
    """At the optimum that a fit is near: sites are only there the posterior's parts."""
    q = q.with_own_factor()
    steps = climb(target, q, DEFAULTS.polish_steps, DEFAULTS.polish_left, of_points=True)
    return steps.q if steps is not None and steps.left < DEFAULTS.tolerance else q
