"""Posteriors of few latents with ridges, jumps, edges and several modes."""

import numpy as np

from .entries import codes, columns, entry


def _enzymes() -> tuple:
    dose, rate, state = columns("datasets", "Puromycin", "conc", "rate", "state")
    return dose, rate, codes(state)


@entry("ridges", _enzymes)
def hill(ppl, dose, y, state):
    """Hill's curve: its top, middle and steepness take each other's place."""
    top = ppl.sample("top", ppl.HalfNormal(500.0).expand([2]).to_event(1))
    middle, steep = ppl.draws(middle=ppl.LogNormal(0.0, 2.0), steep=ppl.LogNormal(0.0, 0.7))
    sigma = ppl.sample("sigma", ppl.HalfNormal(50.0))
    mean = top[state] * dose**steep / (middle**steep + dose**steep)
    ppl.rows(ppl.Normal(mean, sigma), y)


@entry("ridges", lambda: (np.array([2.0, 2.3, 1.9, 2.2, 2.1]),))
def three_factors(ppl, y):
    """The product of three latents is known, in four pieces."""
    x = ppl.normals("x", 3, 3.0)
    ppl.rows(ppl.Normal(x[0] * x[1] * x[2], 0.2), y)


@entry("ridges", lambda: (np.array([1.0]),))
def wide_ring(ppl, y):
    """The distance from zero is known."""
    x = ppl.normals("x", 2, 3.0, loc=1.0)
    distance = ppl.sqrt((x**2).sum() + 1e-6)
    ppl.sample("y", ppl.Normal(distance / 5, 0.05), obs=y[0])


@entry("jumps", lambda: tuple(columns("datasets", "Nile", "time", "value")))
def nile(ppl, t, y):
    """Two levels of the river, and the year between them."""
    year = ppl.sample("year", ppl.Uniform(1871.0, 1970.0))
    levels = ppl.normals("levels", 2, 2000.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(500.0))
    ppl.rows(ppl.Normal(ppl.where(t < year, levels[0], levels[1]), sigma), y)


def _rounded() -> tuple:
    rng = np.random.default_rng(3805)
    x = rng.normal(size=80)
    return x, np.round(3 + 1.5 * x + 0.8 * rng.normal(size=80))


@entry("jumps", _rounded)
def two_widths(ppl, x, y):
    """The noise is of another width beyond a point."""
    beta = ppl.normals("beta", 2, 5.0)
    point = ppl.sample("point", ppl.Normal(0.0, 1.0))
    widths = ppl.sample("widths", ppl.HalfNormal(2.0).expand([2]).to_event(1))
    sigma = ppl.where(x > point, widths[0], widths[1])
    ppl.rows(ppl.Normal(beta[0] + beta[1] * x, sigma), y)


@entry("dynamic_supports", lambda: (np.array([12.0, 30.0, 7.0, 51.0]),))
def four_parts(ppl, y):
    """Each part is at most what the others have left."""
    a = ppl.sample("a", ppl.Uniform(0.0, 1.0))
    b = ppl.sample("b", ppl.Uniform(0.0, 1.0 - a))
    c = ppl.sample("c", ppl.Uniform(0.0, 1.0 - a - b))
    parts = ppl.stack([a, b, c, 1 - a - b - c])
    ppl.factor("counts", (y * ppl.log(parts + 1e-30)).sum())


@entry("dynamic_supports", lambda: (np.sort(np.random.default_rng(3807).uniform(40, 90, 25)),))
def limits(ppl, y):
    """Data between two limits, of which the lower pushes the upper."""
    low = ppl.sample("low", ppl.Uniform(0.0, 39.0))
    high, shape = ppl.draws(high=ppl.Uniform(low + 60.0, 200.0), shape=ppl.Gamma(2.0, 1.0))
    part = (y - low) / (high - low)
    terms = ppl.Beta(shape, shape).log_prob(part) - ppl.log(high - low)
    ppl.factor("rows", terms.sum())


def _products() -> tuple:
    rng = np.random.default_rng(3812)
    left, right = rng.normal(size=(8, 2)), rng.normal(size=(6, 2))
    return (left @ right.T + 0.3 * rng.normal(size=(8, 6)),)


@entry("mixtures", _products)
def factorization(ppl, y):
    """A matrix of rank two, whose factors may be turned by any angle."""
    left = ppl.normals("left", 16).reshape((8, 2))
    right = ppl.normals("right", 12).reshape((6, 2))
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    ppl.sample("y", ppl.Normal(left @ right.T, sigma).to_event(2), obs=y)


@entry("mixtures", lambda: tuple(columns("datasets", "faithful", "waiting")))
def three_for_two(ppl, y):
    """Three components where there are two clouds, in minutes."""
    weights = ppl.sample("weights", ppl.Dirichlet(ppl.array([2.0, 2.0, 2.0])))
    loc = ppl.normals("loc", 3, 30.0, loc=70.0)
    scale = ppl.sample("scale", ppl.HalfNormal(20.0).expand([3]).to_event(1))
    mixture = ppl.MixtureSameFamily(ppl.Categorical(weights), ppl.Normal(loc, scale))
    ppl.rows(mixture, y)


@entry("mixtures", lambda: tuple(columns("robustbase", "starsCYG", "log.Te", "log.light")))
def stars(ppl, x, y):
    """A line, and stars that are not on it."""
    start, slope = ppl.draws(start=ppl.Normal(0.0, 20.0), slope=ppl.Normal(0.0, 10.0))
    sigma, part = ppl.draws(sigma=ppl.HalfNormal(1.0), part=ppl.Beta(1.0, 4.0))
    mean = start + slope * x
    same = 0 * mean
    kinds = ppl.Normal(ppl.stack([mean, same + 5.0], -1), ppl.stack([same + sigma, same + 1.5], -1))
    weights = ppl.Categorical(ppl.stack([same + 1 - part, same + part], -1))
    ppl.rows(ppl.MixtureSameFamily(weights, kinds), y)


def _near_and_far() -> tuple:
    near = np.random.default_rng(1).normal(0, 1, 30) + 2000
    return (np.concatenate([near, np.random.default_rng(2).normal(0, 30, 20) + 2300]),)


@entry("mixtures", _near_and_far)
def two_scales(ppl, y):
    """Clouds of width one and thirty, near 2000."""
    part = ppl.sample("part", ppl.Beta(1.0, 1.0))
    loc = ppl.normals("loc", 2, 500.0, loc=2000.0)
    scale = ppl.sample("scale", ppl.LogNormal(2.0, 2.0).expand([2]).to_event(1))
    weights = ppl.Categorical(ppl.stack([part, 1 - part]))
    ppl.rows(ppl.MixtureSameFamily(weights, ppl.Normal(loc, scale)), y)
