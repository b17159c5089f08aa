"""Where to begin: broad, because a tight start ends in poor local optima of hierarchical models.

The first candidate is ``N(m, I)`` on the unconstrained scale, with the mean ``m`` of the guide's
``init_loc_fn``. If the bound or its gradient overflows there, narrower ones follow, then the mean
is moved to where the log density is high (L-BFGS, by scipy), with the scale whose bound is
best; then random means are tried. So it goes, too, where a search from a broad start leads nowhere.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from ngvi.fit.engine import Draws, Engine, Measured

#: Standard deviations to try, in this order.
SCALES = (1.0, 0.1, 0.01, 1e-3)
#: Steps of L-BFGS on the mean, and random means to try.
MAX_MEAN_STEPS = 50
NUM_RANDOM_MEANS = 5
#: Half the width of the range of random means.
RADIUS = 2.0


class Start(NamedTuple):
    """A place where the bound is finite, and what was measured there."""

    place: Any
    draws: list[Draws]
    measured: Measured


def find_start(
    engine: Engine, rng: np.random.Generator, num_groups: int, place: Any = None
) -> Start | None:
    """A place where the bound and its natural gradient are finite.

    :param place: begin here if it is one.
    :return: None if there is none.
    """
    draws = engine.draws(rng, num_groups)
    if place is not None:
        return _usable(engine, place, draws)
    return _at_scales(engine, draws) or find_other_start(engine, rng, num_groups)


def find_other_start(engine: Engine, rng: np.random.Generator, num_groups: int) -> Start | None:
    """A start whose mean has a higher log density than the guide's, for where that one fails.

    :return: None if there is none.
    """
    draws = engine.draws(rng, num_groups)
    mean = engine.joint(engine.locs(engine.initial))
    for start in (mean, *rng.uniform(-RADIUS, RADIUS, (NUM_RANDOM_MEANS, engine.dim))):
        better = _climbed(engine, start)
        locs = {} if better is None else engine.split(better)
        found = [start for scale in SCALES if (start := _at(engine, locs, scale, draws))]
        if found:
            return max(found, key=lambda start: float(start.measured.values.mean()))
    return None


def _at_scales(engine: Engine, draws: list[Draws]) -> Start | None:
    """The broadest usable start at the guide's mean."""
    return next((s for scale in SCALES if (s := _at(engine, None, scale, draws))), None)


def _at(
    engine: Engine, locs: dict[str, np.ndarray] | None, scale: float, draws: list[Draws]
) -> Start | None:
    if locs is not None and not locs:
        return None
    return _usable(engine, engine.at(locs, scale), draws)


def _usable(engine: Engine, place: Any, draws: list[Draws]) -> Start | None:
    measured = engine.measure(place, draws)
    if not np.isfinite(measured.values).all():
        return None
    mean = engine.mean(measured)
    # The slope along the direction itself is NaN if any of its numbers is.
    size = engine.corrected(place, mean, [])[1]
    if not math.isfinite(size) or engine.step(place, mean, 1.0, 1.0) is None:
        return None
    return Start(place, draws, measured)


def _climbed(engine: Engine, mean: np.ndarray) -> np.ndarray | None:
    """A mean with a higher log density, or None if it has none at this one."""
    best: tuple[float, np.ndarray | None] = (-math.inf, None)

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        value, gradient = engine.value_and_gradient(theta)
        if not (math.isfinite(value) and np.isfinite(gradient).all()):
            return 1e300, np.zeros_like(theta)  # the line search comes back
        if value > best[0]:
            best = value, theta.copy()
        return -value, -gradient

    minimize(loss, mean, jac=True, method="L-BFGS-B", options={"maxiter": MAX_MEAN_STEPS})
    return best[1]
