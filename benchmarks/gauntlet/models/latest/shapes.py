"""Kinks, jumps, mixtures, ridges, supports that depend on others, networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gauntlet.models.data import columns, standard
from benchmarks.gauntlet.models.registry import latest


def _ozone() -> tuple:
    ozone, degrees = columns("datasets", "airquality", "Ozone", "Temp")
    seen = np.isfinite(ozone)
    return degrees[seen], ozone[seen]


@latest("kinks", _ozone)
def ozone(ppl: Any, x: Any, y: Any) -> None:
    """Ozone by degrees Fahrenheit, a line that bends where it is not known, Laplace's noise."""
    dist, np = ppl.dist, ppl.np
    knot = ppl.sample("knot", dist.Normal(75.0, 20.0))
    level = ppl.sample("level", dist.Normal(0.0, 100.0))
    slopes = ppl.normals("slopes", 2, 10.0)
    sigma = ppl.sample("sigma", dist.HalfCauchy(20.0))
    left = np.where(x < knot, x - knot, 0 * x)
    right = np.where(x > knot, x - knot, 0 * x)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Laplace(level + slopes[0] * left + slopes[1] * right, sigma), obs=y)


@latest("kinks", lambda: tuple(columns("datasets", "rock", "area", "peri", "perm")))
def rocks(ppl: Any, area: Any, peri: Any, y: Any) -> None:
    """Absolute deviations of permeability by pixels, in thousands."""
    dist = ppl.dist
    start = ppl.sample("start", dist.Normal(0.0, 1000.0))
    slopes = ppl.sample("slopes", dist.Laplace(0.0, 1.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfCauchy(500.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Laplace(start + slopes[0] * area + slopes[1] * peri, sigma), obs=y)


def _accidents() -> tuple:
    (date,) = columns("boot", "coal", "date")
    years = np.arange(1851, 1963)
    return years.astype(float), np.histogram(date, np.arange(1851, 1964))[0].astype(float)


@latest("jumps", _accidents)
def three_rates(ppl: Any, t: Any, y: Any) -> None:
    """Accidents in mines, whose rate changes in two unknown years."""
    dist, np = ppl.dist, ppl.np
    first = ppl.sample("first", dist.Uniform(1851.0, 1963.0))
    part = ppl.sample("part", dist.Uniform(0.0, 1.0))
    second = first + part * (1963.0 - first)
    rates = ppl.sample("rates", dist.Gamma(1.0, 0.5).expand([3]).to_event(1))
    with ppl.plate("rows", len(y)):
        rate = np.where(t < first, rates[0], np.where(t < second, rates[1], rates[2]))
        ppl.sample("y", dist.Poisson(rate), obs=y)


@latest("jumps", lambda: tuple(columns("datasets", "cars", "speed", "dist")))
def step_in_speed(ppl: Any, x: Any, y: Any) -> None:
    """Braking distances, by a line with a step."""
    dist, np = ppl.dist, ppl.np
    at = ppl.sample("at", dist.Uniform(4.0, 25.0))
    beta = ppl.normals("beta", 3, 50.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(50.0))
    with ppl.plate("rows", len(y)):
        mean = beta[0] + beta[1] * x + np.where(x > at, beta[2], 0 * beta[2])
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


@latest("mixtures", lambda: tuple(columns("MASS", "crabs", "CL", "FL")))
def crabs(ppl: Any, x: Any, y: Any) -> None:
    """Two lines through crabs of two species, in millimetres."""
    dist, np = ppl.dist, ppl.np
    weight = ppl.sample("weight", dist.Beta(2.0, 2.0))
    starts = ppl.normals("starts", 2, 10.0)
    slopes = ppl.normals("slopes", 2)
    sigma = ppl.sample("sigma", dist.HalfNormal(5.0))
    one = dist.Normal(starts[0] + slopes[0] * x, sigma).log_prob(y) + np.log(weight)
    two = dist.Normal(starts[1] + slopes[1] * x, sigma).log_prob(y) + np.log(1 - weight)
    ppl.factor("rows", np.logaddexp(one, two).sum())


@latest("mixtures", lambda: (columns("MASS", "SP500", "dat")[0][::10],))
def returns(ppl: Any, y: Any) -> None:
    """Calm and wild days on a market, in percent."""
    dist, np = ppl.dist, ppl.np
    weight = ppl.sample("weight", dist.Uniform(0.0, 1.0))
    mu = ppl.sample("mu", dist.Normal(0.0, 1.0))
    sigmas = ppl.sample("sigmas", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    one = dist.Normal(mu, sigmas[0]).log_prob(y) + np.log(weight)
    two = dist.Normal(mu, sigmas[1]).log_prob(y) + np.log(1 - weight)
    ppl.factor("rows", np.logaddexp(one, two).sum())


@latest("enumerated", lambda: tuple(columns("datasets", "discoveries", "value")), enumerated=True)
def discoveries(ppl: Any, y: Any) -> None:
    """Years of few and of many discoveries, a class for each."""
    dist = ppl.dist
    share = ppl.sample("share", dist.Beta(1.0, 1.0))
    rates = ppl.sample("rates", dist.Gamma(1.0, 0.2).expand([2]).to_event(1))
    with ppl.plate("rows", len(y)):
        kind = ppl.sample("kind", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        rate = ppl.np.where(kind == 1, rates[1], rates[0])
        ppl.sample("y", dist.Poisson(rate), obs=y)


@latest("dynamic_supports", lambda: (np.array([3.0, 41.0, 22.0, 9.0]),))
def cut_points(ppl: Any, y: Any) -> None:
    """Each cut point lies above the one before; counts between them in pounds of ten."""
    dist, np = ppl.dist, ppl.np
    one = ppl.sample("one", dist.Uniform(0.0, 10.0))
    two = ppl.sample("two", dist.Uniform(one, 10.0))
    three = ppl.sample("three", dist.Uniform(two, 10.0))
    parts = np.stack([one, two - one, three - two, 10.0 - three]) / 10
    ppl.factor("counts", (y * np.log(parts + 1e-30)).sum())


def _reactions() -> tuple:
    conc, rate = columns("datasets", "Puromycin", "conc", "rate")
    low = conc < 0.15
    return conc[low], rate[low]


@latest("ridges", _reactions)
def slow_reactions(ppl: Any, x: Any, y: Any) -> None:
    """Only low concentrations, which tell hardly more than a ratio of two numbers."""
    dist = ppl.dist
    most = ppl.sample("most", dist.LogNormal(5.0, 2.0))
    half = ppl.sample("half", dist.LogNormal(0.0, 2.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(30.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(most * x / (half + x), sigma), obs=y)


@latest("ridges", lambda: (np.array([250.0, 262.0, 241.0]),))
def power(ppl: Any, y: Any) -> None:
    """A base to a power."""
    dist = ppl.dist
    base = ppl.sample("base", dist.LogNormal(1.0, 1.0))
    exponent = ppl.sample("exponent", dist.Normal(2.0, 2.0))
    with ppl.plate("rows", 3):
        ppl.sample("y", dist.Normal(base**exponent, 10.0), obs=y)


def _braking() -> tuple:
    speed, distance = columns("datasets", "cars", "speed", "dist")
    return standard(speed), standard(distance)


@latest("networks", _braking)
def braking(ppl: Any, x: Any, y: Any) -> None:
    """Three smooth units."""
    dist, np = ppl.dist, ppl.np
    first, bias = ppl.normals("first", 3), ppl.normals("bias", 3)
    second = ppl.normals("second", 3)
    shift = ppl.sample("shift", dist.Normal(0.0, 1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    hidden = np.log(1 + np.exp(x[:, None] * first + bias))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(hidden @ second + shift, sigma), obs=y)


def _air() -> tuple:
    ozone, degrees, wind = columns("datasets", "airquality", "Ozone", "Temp", "Wind")
    seen = np.isfinite(ozone)
    return standard(np.column_stack([degrees, wind])[seen]), standard(np.log(ozone[seen]))


@latest("networks", _air)
def air(ppl: Any, X: Any, y: Any) -> None:
    """Two inputs, four units with tanh, heavy-tailed noise."""
    dist, np = ppl.dist, ppl.np
    first, bias = ppl.normals("first", 8).reshape((2, 4)), ppl.normals("bias", 4)
    second = ppl.normals("second", 4)
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    with ppl.plate("rows", len(y)):
        mean = np.tanh(X @ first + bias) @ second
        ppl.sample("y", dist.StudentT(5.0, mean, sigma), obs=y)
