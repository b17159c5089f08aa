"""Where to begin: broad, because a tight start ends in poor local optima of hierarchical models.

The first candidate is ``N(m, I)`` on the unconstrained scale, with the mean ``m`` of the guide's
``init_loc_fn``. If the bound or its gradient overflows there, narrower ones follow, then the mean
is moved to where the log density is high (L-BFGS, by scipy), with the scale whose bound is
best; then random means are tried. So it goes, too, where a search from a broad start leads nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from ngvi.fit.engine import Draws, Engine, Measured, Place
from ngvi.trust_region import INITIAL_RADIUS

#: Standard deviations to try, in this order; the first is that of the guide that ``fit`` makes.
SCALES = (1.0, 0.1, 0.01, 1e-3)
#: Steps of L-BFGS on the mean, and random means to try.
MAX_MEAN_STEPS = 50
NUM_RANDOM_MEANS = 5
#: Half the width of the range of random means.
RADIUS = 2.0


class Start(NamedTuple):
    """A place where the bound is finite, and what was measured there."""

    place: Place
    draws: list[Draws]
    measured: Measured


def find_start(
    engine: Engine, rng: np.random.Generator, num_groups: int, place: Place | None = None
) -> Start | None:
    """A place where the bound and its natural gradient are finite.

    :param place: begin here; by default at the initial place, or a narrower one.
    :return: None if there is none.
    """
    draws = engine.evaluator.draws(rng, num_groups)
    if place is not None:
        return _usable(engine, place, draws)
    return (
        _usable(engine, engine.parameters.initial, draws)
        or next(_at_scales(engine, None, SCALES[1:], draws), None)
        or find_other_start(engine, rng, num_groups)
    )


def find_other_start(engine: Engine, rng: np.random.Generator, num_groups: int) -> Start | None:
    """A start whose mean has a higher log density than the guide's, for where that one fails.

    :return: None if there is none.
    """
    draws = engine.evaluator.draws(rng, num_groups)
    mean = engine.parameters.mean(engine.parameters.initial)
    for first in (mean, *rng.uniform(-RADIUS, RADIUS, (NUM_RANDOM_MEANS, len(mean)))):
        better = _climbed(engine, first)
        if better is None:
            continue
        found = list(_at_scales(engine, better, SCALES, draws))
        if found:
            return max(found, key=lambda start: start.measured.value)
    return None


def _at_scales(
    engine: Engine, mean: np.ndarray | None, scales: tuple[float, ...], draws: list[Draws]
) -> Iterator[Start]:
    """The usable starts at one mean."""
    for scale in scales:
        start = _usable(engine, engine.parameters.at(mean, scale), draws)
        if start is not None:
            yield start


def _usable(engine: Engine, place: Place, draws: list[Draws]) -> Start | None:
    measured = engine.evaluator.measure(place, draws)
    if not np.isfinite(measured.values).all():
        return None
    geometry = engine.geometry(place, [])
    # The slope along the direction itself is NaN if any of its numbers is.
    if not math.isfinite(geometry.corrected(measured.mean).gain):
        return None
    if geometry.step(measured.mean, 1.0, INITIAL_RADIUS) is None:
        return None
    return Start(place, draws, measured)


def _climbed(engine: Engine, mean: np.ndarray) -> np.ndarray | None:
    """A mean with a higher log density, or None if it has none at this one."""
    best: tuple[float, np.ndarray | None] = (-math.inf, None)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        value, gradient = engine.evaluator.value_and_gradient(theta)
        if not (math.isfinite(value) and np.isfinite(gradient).all()):
            return 1e300, np.zeros_like(theta)  # the line search comes back
        if value > best[0]:
            best = value, theta.copy()
        return -value, -gradient

    minimize(loss, mean, jac=True, method="L-BFGS-B", options={"maxiter": MAX_MEAN_STEPS})
    return best[1]
