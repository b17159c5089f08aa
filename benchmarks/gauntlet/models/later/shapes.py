"""Posteriors of few latents with ridges, jumps, edges and several modes."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gauntlet.models.data import codes, columns
from benchmarks.gauntlet.models.registry import later


def _enzymes() -> tuple:
    dose, rate, state = columns("datasets", "Puromycin", "conc", "rate", "state")
    return dose, rate, codes(state)


@later("ridges", _enzymes)
def hill(ppl: Any, dose: Any, y: Any, state: Any) -> None:
    """Hill's curve: its top, middle and steepness take each other's place."""
    dist = ppl.dist
    top = ppl.sample("top", dist.HalfNormal(500.0).expand([2]).to_event(1))
    middle = ppl.sample("middle", dist.LogNormal(0.0, 2.0))
    steep = ppl.sample("steep", dist.LogNormal(0.0, 0.7))
    sigma = ppl.sample("sigma", dist.HalfNormal(50.0))
    with ppl.plate("rows", len(y)):
        mean = top[state] * dose**steep / (middle**steep + dose**steep)
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


@later("ridges", lambda: (np.array([2.0, 2.3, 1.9, 2.2, 2.1]),))
def three_factors(ppl: Any, y: Any) -> None:
    """The product of three latents is known, in four pieces."""
    x = ppl.normals("x", 3, 3.0)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", ppl.dist.Normal(x[0] * x[1] * x[2], 0.2), obs=y)


@later("ridges", lambda: (np.array([1.0]),))
def wide_ring(ppl: Any, y: Any) -> None:
    """The distance from zero is known."""
    x = ppl.normals("x", 2, 3.0, loc=1.0)
    distance = ppl.np.sqrt((x**2).sum() + 1e-6)
    ppl.sample("y", ppl.dist.Normal(distance / 5, 0.05), obs=y[0])


@later("jumps", lambda: tuple(columns("datasets", "Nile", "time", "value")))
def nile(ppl: Any, t: Any, y: Any) -> None:
    """Two levels of the river, and the year between them."""
    dist = ppl.dist
    year = ppl.sample("year", dist.Uniform(1871.0, 1970.0))
    levels = ppl.normals("levels", 2, 2000.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(500.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(ppl.np.where(t < year, levels[0], levels[1]), sigma), obs=y)


def _rounded() -> tuple:
    rng = np.random.default_rng(3805)
    x = rng.normal(size=80)
    return x, np.round(3 + 1.5 * x + 0.8 * rng.normal(size=80))


@later("jumps", _rounded)
def two_widths(ppl: Any, x: Any, y: Any) -> None:
    """The noise is of another width beyond a point."""
    dist = ppl.dist
    beta = ppl.normals("beta", 2, 5.0)
    point = ppl.sample("point", dist.Normal(0.0, 1.0))
    widths = ppl.sample("widths", dist.HalfNormal(2.0).expand([2]).to_event(1))
    with ppl.plate("rows", len(y)):
        sigma = ppl.np.where(x > point, widths[0], widths[1])
        ppl.sample("y", dist.Normal(beta[0] + beta[1] * x, sigma), obs=y)


@later("dynamic_supports", lambda: (np.array([12.0, 30.0, 7.0, 51.0]),))
def four_parts(ppl: Any, y: Any) -> None:
    """Each part is at most what the others have left."""
    dist, np = ppl.dist, ppl.np
    a = ppl.sample("a", dist.Uniform(0.0, 1.0))
    b = ppl.sample("b", dist.Uniform(0.0, 1.0 - a))
    c = ppl.sample("c", dist.Uniform(0.0, 1.0 - a - b))
    parts = np.stack([a, b, c, 1 - a - b - c])
    ppl.factor("counts", (y * np.log(parts + 1e-30)).sum())


@later("dynamic_supports", lambda: (np.sort(np.random.default_rng(3807).uniform(40, 90, 25)),))
def limits(ppl: Any, y: Any) -> None:
    """Data between two limits, of which the lower pushes the upper."""
    dist = ppl.dist
    low = ppl.sample("low", dist.Uniform(0.0, 39.0))
    high = ppl.sample("high", dist.Uniform(low + 60.0, 200.0))
    shape = ppl.sample("shape", dist.Gamma(2.0, 1.0))
    part = (y - low) / (high - low)
    terms = dist.Beta(shape, shape).log_prob(part) - ppl.np.log(high - low)
    ppl.factor("rows", terms.sum())


def _products() -> tuple:
    rng = np.random.default_rng(3812)
    left, right = rng.normal(size=(8, 2)), rng.normal(size=(6, 2))
    return (left @ right.T + 0.3 * rng.normal(size=(8, 6)),)


@later("mixtures", _products)
def factorization(ppl: Any, y: Any) -> None:
    """A matrix of rank two, whose factors may be turned by any angle."""
    dist = ppl.dist
    left = ppl.normals("left", 16).reshape((8, 2))
    right = ppl.normals("right", 12).reshape((6, 2))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    ppl.sample("y", dist.Normal(left @ right.T, sigma).to_event(2), obs=y)


@later("mixtures", lambda: tuple(columns("datasets", "faithful", "waiting")))
def three_for_two(ppl: Any, y: Any) -> None:
    """Three components where there are two clouds, in minutes."""
    dist = ppl.dist
    weights = ppl.sample("weights", dist.Dirichlet(ppl.array([2.0, 2.0, 2.0])))
    loc = ppl.normals("loc", 3, 30.0, loc=70.0)
    scale = ppl.sample("scale", dist.HalfNormal(20.0).expand([3]).to_event(1))
    mixture = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(loc, scale))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", mixture, obs=y)


@later("mixtures", lambda: tuple(columns("robustbase", "starsCYG", "log.Te", "log.light")))
def stars(ppl: Any, x: Any, y: Any) -> None:
    """A line, and stars that are not on it."""
    dist, np = ppl.dist, ppl.np
    start = ppl.sample("start", dist.Normal(0.0, 20.0))
    slope = ppl.sample("slope", dist.Normal(0.0, 10.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    part = ppl.sample("part", dist.Beta(1.0, 4.0))
    mean = start + slope * x
    same = 0 * mean
    kinds = dist.Normal(np.stack([mean, same + 5.0], -1), np.stack([same + sigma, same + 1.5], -1))
    weights = dist.Categorical(np.stack([same + 1 - part, same + part], -1))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.MixtureSameFamily(weights, kinds), obs=y)


def _near_and_far() -> tuple:
    near = np.random.default_rng(1).normal(0, 1, 30) + 2000
    return (np.concatenate([near, np.random.default_rng(2).normal(0, 30, 20) + 2300]),)


@later("mixtures", _near_and_far)
def two_scales(ppl: Any, y: Any) -> None:
    """Clouds of width one and thirty, near 2000."""
    dist, np = ppl.dist, ppl.np
    part = ppl.sample("part", dist.Beta(1.0, 1.0))
    loc = ppl.normals("loc", 2, 500.0, loc=2000.0)
    scale = ppl.sample("scale", dist.LogNormal(2.0, 2.0).expand([2]).to_event(1))
    weights = dist.Categorical(np.stack([part, 1 - part]))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.MixtureSameFamily(weights, dist.Normal(loc, scale)), obs=y)
