"""Where to begin: where the model itself says, and broad, because tight starts end in poor optima.

- The first start is ``N(m, I)`` on the unconstrained scale, with the mean ``m`` of the guide's
  ``init_loc_fn``; narrower ones, if the bound or its gradient overflows there.
- Where the prior's means and standard deviations are others, ``N(prior mean, prior sd^2)`` is
  the second: data in thousands leave a model's latents far from zero, and its scales collapse
  from a start that knows nothing of them.
- Others are points where the log density is high, of those that the prior and a box around zero
  hold, and uphill from there by L-BFGS: for models where all these fail, and to look for other
  modes.
"""

from __future__ import annotations

import dataclasses
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

#: Draws of the prior, and the quantiles that its standard deviations come from: of a normal
#: distribution they are so many standard deviations apart.
NUM_PRIOR, QUARTILES, APART = 100, (0.25, 0.75), 1.349
#: Standard deviation of parameters of the model's own that start at zero, at least.
LEAST_OWN = 0.1
#: A prior is another start if a mean is so far from the first one's, or a standard deviation
#: outside this range.
FAR, USUAL_SCALES = 5.0, (0.02, 50.0)


class Start(NamedTuple):
    """A place where the bound is finite, and what was measured there."""

    place: Place
    draws: list[Draws]
    measured: Measured
    name: str = "the guide's start"


@dataclasses.dataclass(frozen=True)
class Prior:
    """What a model says of its latents before it sees data, on the unconstrained scale.

    :ivar mean: the median of each latent, shape ``(d,)``.
    :ivar sd: the standard deviation by the quartiles of each, shape ``(d,)``.
    :ivar draws: shape ``(N, d)``.
    """

    mean: np.ndarray
    sd: np.ndarray
    draws: np.ndarray

    @classmethod
    def of(cls, engine: Engine, rng: np.random.Generator) -> Prior | None:
        """A model's, or None if it cannot be sampled."""
        draws = engine.evaluator.prior(rng, NUM_PRIOR)
        if draws is None:
            return None
        draws = draws[np.isfinite(draws).all(1)]
        if len(draws) < NUM_PRIOR // 2:
            return None
        low, high = np.quantile(draws, QUARTILES, 0)
        sd = (high - low) / APART
        return cls(np.median(draws, 0), np.where(sd > 0, sd, 1.0), draws)

    def is_elsewhere(self, mean: np.ndarray) -> bool:
        """Whether this is not about ``N(mean, I)``."""
        low, high = USUAL_SCALES
        far = np.abs(self.mean - mean) > FAR
        return bool((far | (self.sd < low) | (self.sd > high)).any())


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
        or next(_at_scales(engine, None, 1.0, SCALES[1:], draws), None)
        or find_other_start(engine, rng, num_groups)
    )


def find_prior_start(
    engine: Engine, rng: np.random.Generator, num_groups: int, prior: Prior
) -> Start | None:
    """``N(prior mean, prior sd^2)``, or a narrower one, if the bound is finite there."""
    draws = engine.evaluator.draws(rng, num_groups)
    found = next(_at_scales(engine, prior.mean, prior.sd, SCALES, draws), None)
    return found and found._replace(name="the prior")


def find_other_start(
    engine: Engine, rng: np.random.Generator, num_groups: int, prior: Prior | None = None
) -> Start | None:
    """A start whose mean has a higher log density than the guide's, for where that one fails.

    :return: None if there is none.
    """
    draws = engine.evaluator.draws(rng, num_groups)
    mean = engine.parameters.mean(engine.parameters.initial)
    sd = 1.0 if prior is None else np.minimum(prior.sd, 1.0)
    for first in (mean, *high_points(engine, rng, prior, NUM_RANDOM_MEANS)):
        better = climbed(engine, first)
        if better is None:
            continue
        found = list(_at_scales(engine, better, sd, SCALES, draws))
        if found:
            best = max(found, key=lambda start: start.measured.value)
            return best._replace(name="a point of high density")
    return None


def start_at(
    engine: Engine, rng: np.random.Generator, num_groups: int, mean: np.ndarray, name: str
) -> Start | None:
    """The scale around a mean whose bound is best, or None if none has a finite one."""
    draws = engine.evaluator.draws(rng, num_groups)
    found = list(_at_scales(engine, mean, 1.0, SCALES[1:], draws))
    best = max(found, key=lambda start: start.measured.value, default=None)
    return best and best._replace(name=name)


def start_beside(
    engine: Engine, rng: np.random.Generator, num_groups: int, start: Start
) -> Start | None:
    """Another start, whose own parameters are about the given ones, and as far from them as these
    are from zero; None if it has no finite bound. Single numbers stay.
    """
    draws = engine.evaluator.draws(rng, num_groups)
    steps = []
    for value in engine.parameters.own(start.place):
        sd = max(float(np.sqrt(np.mean(np.square(value)))), LEAST_OWN) if value.size > 1 else 0.0
        steps.append((sd * rng.standard_normal(value.shape)).astype(value.dtype))
    found = _usable(engine, engine.parameters.moved(start.place, steps), draws)
    return found and found._replace(name="other parameters")


def high_points(
    engine: Engine, rng: np.random.Generator, prior: Prior | None, count: int, total: int = 0
) -> np.ndarray:
    """Points where the log density is high, of the prior's draws and of a box; the best first.

    :param count: of these.
    :param total: of the points, the rest of which are any of the others, of which fewer lead to
        the same place.
    """
    dim = engine.parameters.dim
    points = rng.uniform(-RADIUS, RADIUS, (NUM_PRIOR, dim))
    if prior is not None:
        points = np.concatenate([prior.draws, points])
    values = engine.evaluator.values(engine.parameters.initial, points)
    order = np.argsort(-np.where(np.isfinite(values), values, -np.inf))
    others = rng.permutation(order[count:])[: max(total - count, 0)]
    return points[np.concatenate([order[:count], others])]


def _at_scales(
    engine: Engine,
    mean: np.ndarray | None,
    sd: float | np.ndarray,
    scales: tuple[float, ...],
    draws: list[Draws],
) -> Iterator[Start]:
    """The usable starts at one mean."""
    for scale in scales:
        start = _usable(engine, engine.parameters.at(mean, scale * sd), draws)
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


def climbed(engine: Engine, mean: np.ndarray, max_steps: int = MAX_MEAN_STEPS) -> np.ndarray | None:
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

    minimize(loss, mean, jac=True, method="L-BFGS-B", options={"maxiter": max_steps})
    return best[1]
