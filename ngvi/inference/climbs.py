"""Climbs of the log density: points to climb from, the tops, and whether there are more of them."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from ngvi.inference.engine import Engine
from ngvi.inference.precision import rounding
from ngvi.inference.prior import Prior
from ngvi.inference.rounds import Ask, in_rounds

#: Points of a box of this half width.
NUM_POINTS, RADIUS = 100, 2.0
#: Tops whose heights are so near to each other, in nats, are the same or mirror images.
AS_LEVEL = 0.1
#: Rounding makes those of one top differ by so many of its units: sums over 1e4 to 1e6 rows in
#: single precision were off by up to three, now up and now down.
UNITS = 4.0
#: Of the tops more than this part were met once: there are more.
UNSEEN = 0.1
#: So many others are many, of which it is asked whether this part was met once.
MANY, UNSEEN_OF_MANY = 4, 0.03
#: In whitened coordinates a climb ends where no gradient, in nats, is above this: less than a
#: thousandth of a nat a latent is left of a top as wide as the Gaussian.
FLAT = 1e-2
#: What a line search comes back from.
OUTSIDE = 1e300
#: A climb has come to a known top where its whitened gradient points so near to it, in standard
#: deviations of all latents, and promises its height within ``AS_LEVEL``.
AS_NEAR = 0.3
#: Steps to that top at most, and nats that another one would gain.
MAX_NEWTON, NO_GAIN = 4, 1e-2


class Climbed(NamedTuple):
    """A point with a higher log density than the one below it."""

    mean: np.ndarray  #: all latents, shape ``(d,)``
    height: float  #: its log density, in nats; minus infinity if it had none where it began
    is_top: bool  #: whether it is a local maximum, and not only on the way to one
    rounding: float = 0.0  #: what heights of the same top may differ by, in nats


class _ArrivedError(Exception):
    """A climb has come to a known top."""


class KnownTop:
    """The top of a Gaussian, at which climbs may end early.

    Where a posterior is near to a Gaussian, they need not be followed to the end.

    :param top: itself.
    :param factor: of the covariance, shape ``(d, d)``.
    """

    def __init__(self, top: Climbed, factor: np.ndarray) -> None:
        self.top, self._factor = top, factor
        self._whiten = np.linalg.pinv(factor)

    def is_met(self, theta: np.ndarray, value: float, gradient: np.ndarray) -> bool:
        """Whether a point's gradient points to the top, and promises its height."""
        step = self._factor.T @ gradient
        with np.errstate(over="ignore", invalid="ignore"):  # far down
            promised = value + 0.5 * step @ step
            if not abs(promised - self.top.height) <= AS_LEVEL:
                return False
        off = self._whiten @ (theta - self.top.mean) + step
        return float(np.linalg.norm(off)) < AS_NEAR


def known_top(engine: Engine, mean: np.ndarray, factor: np.ndarray) -> KnownTop | None:
    """Where a few steps of Newton's lead, if the density is as a Gaussian says.

    :param mean: shape ``(d,)``.
    :param factor: of its covariance, shape ``(d, d)``.
    """
    theta, initial = mean, engine.parameters.initial
    for _ in range(MAX_NEWTON):
        values, gradients = engine.evaluator.values_and_gradients(initial, theta[None])
        step = factor.T @ gradients[0]
        if not (math.isfinite(values[0]) and np.isfinite(step).all()):
            return None
        if 0.5 * step @ step < NO_GAIN:
            return KnownTop(Climbed(theta, float(values[0]), True), factor)
        theta = theta + factor @ step
    return None


def climbed(
    engine: Engine,
    points: np.ndarray,
    max_steps: int,
    factor: np.ndarray | None = None,
    known: KnownTop | None = None,
) -> list[Climbed]:
    """Uphill by L-BFGS from several points, which run the model together.

    :param points: shape ``(N, d)``.
    :param factor: of a covariance, shape ``(d, d)``, in whose whitened coordinates to climb.
    :param known: a top at which a climb ends early.
    """
    bests = [Climbed(point, -math.inf, False) for point in points]

    def uphill(index: int, ask: Ask) -> None:
        def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
            theta = points[index] + (z if factor is None else factor @ z)
            value, gradient = ask(theta)
            if not (math.isfinite(value) and np.isfinite(gradient).all()):
                return OUTSIDE, np.zeros_like(z)
            if value > bests[index].height:
                bests[index] = Climbed(theta, value, False)
            if known is not None and known.is_met(theta, value, gradient):
                bests[index] = known.top
                raise _ArrivedError
            return -value, -(gradient if factor is None else factor.T @ gradient)

        first = np.zeros_like(points[index])
        options = {"maxiter": max_steps} | ({} if factor is None else {"gtol": FLAT})
        try:
            end = minimize(loss, first, jac=True, method="L-BFGS-B", options=options)
        except _ArrivedError:
            return
        # Where values are equal by rounding it ends as well, on a slope that leads far up.
        with np.errstate(over="ignore", invalid="ignore"):  # beside an overflow of the density
            left = 0.5 * float(end.jac @ (end.hess_inv @ end.jac))
        bests[index] = bests[index]._replace(is_top=bool(end.success) and left < AS_LEVEL)

    climbs = [partial(uphill, index) for index in range(len(points))]
    in_rounds(climbs, partial(engine.evaluator.values_and_gradients, engine.parameters.initial))
    return [one._replace(rounding=UNITS * rounding(engine, one.height)) for one in bests]


def high_points(
    engine: Engine, rng: np.random.Generator, prior: Prior | None, count: int, total: int = 0
) -> np.ndarray:
    """Points where the log density is high, of the prior's draws and of a box; the best first.

    Points without a density are none.

    :param count: of these.
    :param total: of the points, the rest of which are any of the others, of which fewer lead to
        the same place.
    """
    dim = engine.parameters.dim
    points = rng.uniform(-RADIUS, RADIUS, (NUM_POINTS, dim))
    if prior is not None:
        points = np.concatenate([prior.draws, points])
    values = engine.evaluator.values(engine.parameters.initial, points)
    points, values = points[np.isfinite(values)], values[np.isfinite(values)]
    order = np.argsort(-values)
    others = rng.permutation(order[count:])[: max(total - count, 0)]
    return points[np.concatenate([order[:count], others])]


def heights(tops: list[Climbed]) -> np.ndarray:
    """How often each height was met: maxima that are as high may be mirror images of one."""
    return np.array([len(part) for part in _by_height(tops)], dtype=int)


def beside_the_most(tops: list[Climbed]) -> list[Climbed]:
    """Maxima but those of the height that was met most often, of several the highest."""
    parts = _by_height(tops)
    most = max(parts, key=len, default=[])
    return [climb for part in parts if part is not most for climb in part]


def _by_height(tops: list[Climbed]) -> list[list[Climbed]]:
    """Maxima, those of the same height together, the highest first."""
    parts: list[list[Climbed]] = []
    for climb in sorted((climb for climb in tops if climb.is_top), key=lambda one: -one.height):
        if not parts or parts[-1][-1].height - climb.height > AS_LEVEL + climb.rounding:
            parts.append([])
        parts[-1].append(climb)
    return parts


def has_more(elsewhere: list[Climbed], known: int, least: float = -math.inf) -> bool:
    """Whether other climbs would end at tops that none has met yet.

    The part of tops that were met once estimates the probability that the next climb ends at a
    new one (Good, 1953, "The population frequencies of species", equation 9). Climbs that came to
    no end count for nothing. Nor does a low top, however often it was met, tell whether there are
    others as high as the best: of these alone it is asked as well. Where these are more than the
    climbs that ended at the best, one more that is met as rarely as the best was may be missed.

    :param known: climbs that ended in the best Gaussian, whatever their height.
    :param least: the log density of a top that is as high as the best, in nats.
    """
    as_high = [climb for climb in elsewhere if climb.height > least]
    for tops in (elsewhere, as_high):
        counts = heights(tops)
        if np.sum(counts == 1) > UNSEEN * (known + np.sum(counts)):
            return True
    return len(counts) > 1 + known


def has_more_as_high(elsewhere: list[Climbed], known: int, least: float) -> bool:
    """Whether there are many tops as high as the best, and one more of them may be missed.

    Of these more climbs have to tell than of a few: the highest may be one that is narrow. A wave
    with an unknown frequency has a dozen tops of a few nats, and one of forty that every tenth
    climb ends at. Parameters as of :func:`has_more`.
    """
    counts = heights([climb for climb in elsewhere if climb.height > least])
    is_unseen = np.sum(counts == 1) > UNSEEN_OF_MANY * (known + np.sum(counts))
    return len(counts) >= MANY and bool(is_unseen or len(counts) > 1 + known)
