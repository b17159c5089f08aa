"""Natural-gradient steps of one Gaussian, or of many that leave out rows of their own."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ngvi.workflow.expected import Expected
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.target import Target


@dataclasses.dataclass(frozen=True)
class Steps:
    """The Gaussian that natural-gradient steps have reached."""

    q: DenseGaussian
    bound: float
    left: float  #: Half of the squared length of the natural gradient, in nats.
    count: int


def climb(target: Target, q: DenseGaussian, left: float | None = None) -> Steps | None:
    """Take the steps of one Gaussian; see :func:`climb_all`."""
    return climb_all(target, q, target.weights[None], left)[0]


def climb_all(
    target: Target,
    q: DenseGaussian,
    weights: np.ndarray,
    left: float | None = None,
    starts: list[DenseGaussian] | None = None,
    most: int = DEFAULTS.num_steps,
    end: float = math.inf,
    after: Callable[[int], Any] = lambda _: None,
) -> list[Steps | None]:
    """Take natural-gradient steps, of the Bayesian learning rule, from one Gaussian to several.

    ``S <- (1 - rho) S - rho E[hess l]``, ``mu <- mu + rho S^-1 E[grad l]``, with the new ``S``.
    ``rho`` is 1, halved until the bound does not fall. Only what the Gaussian's family has of a
    Hessian counts. The result is None where no step leads to a Gaussian: the target may be
    improper.

    :param weights: how many times each counts each element, shape ``(U, M)``.
    :param left: gain, in nats, at which the steps end; by default what the expectations are
        accurate to, or what is small.
    :param starts: Gaussians that the steps begin at, of ``q``'s blocks.
    :param most: steps of each, at most.
    :param end: of :func:`time.perf_counter`, after which none begins.
    :param after: called with the number of steps that have just been taken.
    """
    begin = DenseGaussian.several(starts or [q] * len(weights))
    start, q = q, DenseGaussian(begin.mean.copy(), begin.factor.copy(), begin.blocks)
    count, tries = np.zeros((2, len(weights)), int)
    at = target.under(begin, weights)
    noise = 0.0 if target.predictors is not None else DEFAULTS.left_by_points
    left = max(DEFAULTS.left, noise) if left is None else left
    bound, gain = at.value + begin.entropy(), _left(begin, at)
    while True:
        is_active = ~(gain <= left) & (count < most)
        active = np.flatnonzero(is_active & (tries < DEFAULTS.num_halvings))
        if not len(active) or time.perf_counter() > end:
            break
        new, is_better = _step(q.take(active), at.take(active), 0.5 ** tries[active])
        if is_better.any():
            tried, new = active[is_better], new.take(is_better)
            there = target.under(new, weights[tried])
            reached = there.value + new.entropy()
            is_up = reached >= bound[tried] - DEFAULTS.rounding * np.abs(bound[tried]) - noise
            is_better[is_better] = is_up
            where, new, there = tried[is_up], new.take(is_up), there.take(is_up)
            q.mean[where], q.factor[where], bound[where] = new.mean, new.factor, reached[is_up]
            at.value[where], at.gradient[where] = there.value, there.gradient
            at.curvature[where], gain[where] = there.curvature, _left(new, there)
        count[active[is_better]] += 1
        after(int(is_better.sum()))
        tries[active] = np.where(is_better, 0, tries[active] + 1)
    # Where the target has no curvature at the end there is no Gaussian to go on to.
    white = start.factor.T @ start.within(at.curvature) @ start.factor
    is_found = np.isfinite(gain) & np.isfinite(white).all((1, 2))
    least = np.linalg.eigvalsh(np.where(is_found[:, None, None], white, 0.0))[:, 0]
    is_found &= least >= DEFAULTS.rounding
    return [
        Steps(q.take(u), float(bound[u]), float(gain[u]), int(count[u])) if is_found[u] else None
        for u in range(len(weights))
    ]


def _step(q: DenseGaussian, at: Expected, rho: np.ndarray) -> tuple[DenseGaussian, np.ndarray]:
    """Return Gaussians after steps, and which of the precisions are definite."""
    are_proper = np.full(len(rho), True)
    precision = rho[:, None, None] * q.within(at.curvature)
    precision = precision + (1.0 - rho)[:, None, None] * q.precision
    try:
        new = DenseGaussian.of_precision(q.mean, precision, q.blocks)
    except np.linalg.LinAlgError:
        for u, one in enumerate(precision):
            try:
                np.linalg.cholesky(one)
            except np.linalg.LinAlgError:
                precision[u], are_proper[u] = np.eye(len(one)), False
        new = DenseGaussian.of_precision(q.mean, precision, q.blocks)
    step = new.factor @ (np.swapaxes(new.factor, 1, 2) @ (rho[:, None] * at.gradient)[..., None])
    return dataclasses.replace(new, mean=q.mean + step[..., 0]), are_proper


def _left(q: DenseGaussian, at: Expected) -> np.ndarray:
    """Half of the squared Fisher length of the natural gradient, in nats."""
    turned = np.swapaxes(q.factor, -1, -2)
    pulled = (turned @ at.gradient[..., None])[..., 0]
    white = turned @ q.within(at.curvature) @ q.factor - np.eye(q.dim)
    return 0.5 * (pulled**2).sum(-1) + 0.25 * (white**2).sum((-1, -2))


def polished(target: Target, q: DenseGaussian) -> DenseGaussian:
    """Return the optimum that a fit is near: sites are only there the posterior's parts.

    Expectations by points are less accurate than the fit, which then stays as it is.
    """
    q = q.with_own_factor()
    if target.predictors is None:
        return q
    steps = climb(target, q, DEFAULTS.polish_left)
    return steps.q if steps is not None and steps.left < DEFAULTS.tolerance else q
