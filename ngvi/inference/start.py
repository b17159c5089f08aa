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

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ngvi.inference.climbs import climbed, high_points
from ngvi.inference.engine import Draws, Engine, Measured, Place
from ngvi.inference.prior import Prior
from ngvi.optim.radius import INITIAL_RADIUS

#: Standard deviations to try, in this order; the first is that of the guide that ``fit`` makes.
SCALES = (1.0, 0.1, 0.01, 1e-3)
#: Of a Gaussian that is good but for a few of its draws.
FINE_SCALES = (1.0, 0.7, 0.5, 0.35, 0.2, *SCALES[1:])
#: Where nothing is finite at these: raw covariates overflow far sooner, in single precision above
#: all.
NARROW_SCALES = (1e-4, 1e-5, 1e-6)
#: Steps of L-BFGS on the mean, and random means to try.
MAX_MEAN_STEPS, NUM_RANDOM_MEANS = 50, 5

#: Widths of single latents at a maximum, where the log density has fallen by so much, in nats, lie
#: between these; so many halvings of the interval of their logarithms find them.
HALF_A_NAT, LEAST_WIDTH, MOST_WIDTH, NUM_HALVINGS = 0.5, 1e-6, 1e3, 5

#: Standard deviation of parameters of the model's own that start at zero, at least.
LEAST_OWN = 0.1


class Start(NamedTuple):
    """A place where the bound is finite, and what was measured there."""

    place: Place
    draws: list[Draws]
    measured: Measured
    name: str = "the guide's start"


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
        or next(_at_scales(engine, None, 1.0, NARROW_SCALES, draws), None)
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
    # Around the guide's own mean as narrow as it takes: at others the density may be a plateau.
    scales: tuple[float, ...] = SCALES + NARROW_SCALES
    for first in (mean, *high_points(engine, rng, prior, NUM_RANDOM_MEANS)):
        (better,) = climbed(engine, first[None], MAX_MEAN_STEPS)
        if not math.isfinite(better.height):
            continue
        found = list(_at_scales(engine, better.mean, sd, scales, draws))
        scales = SCALES
        if found:
            best = max(found, key=lambda start: start.measured.value)
            return best._replace(name="a point of high density")
    return None


def start_at(
    engine: Engine,
    rng: np.random.Generator,
    num_groups: int,
    mean: np.ndarray,
    name: str,
    is_top: bool = False,
) -> Start | None:
    """The scale around a mean whose bound is best, or None if none has a finite one.

    Of raw covariates every usual scale may overflow: then it is the first narrow one that will do.

    :param is_top: whether the mean is a maximum, where each latent can have a scale of its own.
    """
    draws = engine.evaluator.draws(rng, num_groups)
    found = list(_at_scales(engine, mean, 1.0, SCALES[1:], draws))
    if is_top:
        found += _at_scales(engine, mean, widths(engine, mean), (1.0,), draws)
    if not found:
        found = list(itertools.islice(_at_scales(engine, mean, 1.0, NARROW_SCALES, draws), 1))
    best = max(found, key=lambda start: start.measured.value, default=None)
    return best and best._replace(name=name)


def start_beside(
    engine: Engine,
    rng: np.random.Generator,
    num_groups: int,
    start: Start,
    of_numbers: float = 0.0,
) -> Start | None:
    """Another start, whose own parameters are about the given ones, and as far from them as these
    are from zero; with narrower Gaussians where they are needed. None if no bound is finite.

    :param of_numbers: the standard deviation of single numbers, which may be a noise's logarithm.
    """
    draws = engine.evaluator.draws(rng, num_groups)
    steps = []
    for value in engine.parameters.own(start.place):
        sd = max(float(np.sqrt(np.mean(np.square(value)))), LEAST_OWN)
        sd = sd if value.size > 1 else of_numbers
        steps.append((sd * rng.standard_normal(value.shape)).astype(value.dtype))
    narrower = (engine.parameters.at(None, scale) for scale in SCALES[1:])
    places = (engine.parameters.moved(place, steps) for place in (start.place, *narrower))
    usable = (_usable(engine, place, draws) for place in places)
    found = next(filter(None, usable), None)
    return found and found._replace(name="other parameters")


def start_about(engine: Engine, rng: np.random.Generator, places: list[Place]) -> Start | None:
    """The first of some places that can be a start; they are of independent latents."""
    draws = engine.evaluator.draws(rng, 1)
    usable = (_usable(engine, place, draws) for place in places)
    return next(filter(None, usable), None)


def widths(engine: Engine, mean: np.ndarray) -> np.ndarray:
    """How far from a maximum, along each latent alone, the log density falls by half a nat.

    These are the standard deviations of the best Gaussian of independent latents, if the posterior
    is a Gaussian; to a factor of 1.4, by bisection of ``2 * NUM_HALVINGS * d`` values.

    :return: shape ``(d,)``.
    """
    initial, dim = engine.parameters.initial, len(mean)
    low, high = np.full(dim, LEAST_WIDTH), np.full(dim, MOST_WIDTH)
    (level,) = engine.evaluator.values(initial, mean[None])
    for _ in range(NUM_HALVINGS):
        middle = np.sqrt(low * high)
        steps = np.diag(middle)
        values = engine.evaluator.values(initial, np.concatenate([mean + steps, mean - steps]))
        with np.errstate(invalid="ignore", over="ignore"):  # beside the support's edges
            fall = level - values.reshape(2, dim).mean(0)
        is_narrow = fall < HALF_A_NAT  # not where it is NaN
        low, high = np.where(is_narrow, middle, low), np.where(is_narrow, high, middle)
    return np.sqrt(low * high)


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
