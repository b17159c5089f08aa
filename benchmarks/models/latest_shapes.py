"""Kinks, jumps, mixtures, ridges, supports that depend on others, networks."""

import numpy as np

from .entries import columns, entry, standard


def _ozone() -> tuple:
    ozone, degrees = columns("datasets", "airquality", "Ozone", "Temp")
    seen = np.isfinite(ozone)
    return degrees[seen], ozone[seen]


@entry("kinks", _ozone)
def ozone(ppl, x, y):
    """Ozone by degrees Fahrenheit, a line that bends where it is not known, Laplace's noise."""
    knot, level = ppl.draws(knot=ppl.Normal(75.0, 20.0), level=ppl.Normal(0.0, 100.0))
    slopes = ppl.normals("slopes", 2, 10.0)
    sigma = ppl.sample("sigma", ppl.HalfCauchy(20.0))
    left = ppl.where(x < knot, x - knot, 0 * x)
    right = ppl.where(x > knot, x - knot, 0 * x)
    ppl.rows(ppl.Laplace(level + slopes[0] * left + slopes[1] * right, sigma), y)


@entry("kinks", lambda: tuple(columns("datasets", "rock", "area", "peri", "perm")))
def rocks(ppl, area, peri, y):
    """Absolute deviations of permeability by pixels, in thousands."""
    start = ppl.sample("start", ppl.Normal(0.0, 1000.0))
    slopes = ppl.sample("slopes", ppl.Laplace(0.0, 1.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfCauchy(500.0))
    ppl.rows(ppl.Laplace(start + slopes[0] * area + slopes[1] * peri, sigma), y)


def _accidents() -> tuple:
    (date,) = columns("boot", "coal", "date")
    years = np.arange(1851, 1963)
    return years.astype(float), np.histogram(date, np.arange(1851, 1964))[0].astype(float)


@entry("jumps", _accidents)
def three_rates(ppl, t, y):
    """Accidents in mines, whose rate changes in two unknown years."""
    first, part = ppl.draws(first=ppl.Uniform(1851.0, 1963.0), part=ppl.Uniform(0.0, 1.0))
    second = first + part * (1963.0 - first)
    rates = ppl.sample("rates", ppl.Gamma(1.0, 0.5).expand([3]).to_event(1))
    rate = ppl.where(t < first, rates[0], ppl.where(t < second, rates[1], rates[2]))
    ppl.rows(ppl.Poisson(rate), y)


@entry("jumps", lambda: tuple(columns("datasets", "cars", "speed", "dist")))
def step_in_speed(ppl, x, y):
    """Braking distances, by a line with a step."""
    at = ppl.sample("at", ppl.Uniform(4.0, 25.0))
    beta = ppl.normals("beta", 3, 50.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(50.0))
    mean = beta[0] + beta[1] * x + ppl.where(x > at, beta[2], 0 * beta[2])
    ppl.rows(ppl.Normal(mean, sigma), y)


@entry("mixtures", lambda: tuple(columns("MASS", "crabs", "CL", "FL")))
def crabs(ppl, x, y):
    """Two lines through crabs of two species, in millimetres."""
    weight = ppl.sample("weight", ppl.Beta(2.0, 2.0))
    starts = ppl.normals("starts", 2, 10.0)
    slopes = ppl.normals("slopes", 2)
    sigma = ppl.sample("sigma", ppl.HalfNormal(5.0))
    one = ppl.Normal(starts[0] + slopes[0] * x, sigma).log_prob(y) + ppl.log(weight)
    two = ppl.Normal(starts[1] + slopes[1] * x, sigma).log_prob(y) + ppl.log(1 - weight)
    ppl.factor("rows", ppl.logaddexp(one, two).sum())


@entry("mixtures", lambda: (columns("MASS", "SP500", "dat")[0][::10],))
def returns(ppl, y):
    """Calm and wild days on a market, in percent."""
    weight, mu = ppl.draws(weight=ppl.Uniform(0.0, 1.0), mu=ppl.Normal(0.0, 1.0))
    sigmas = ppl.sample("sigmas", ppl.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    one = ppl.Normal(mu, sigmas[0]).log_prob(y) + ppl.log(weight)
    two = ppl.Normal(mu, sigmas[1]).log_prob(y) + ppl.log(1 - weight)
    ppl.factor("rows", ppl.logaddexp(one, two).sum())


@entry("enumerated", lambda: tuple(columns("datasets", "discoveries", "value")), enumerated=True)
def discoveries(ppl, y):
    """Years of few and of many discoveries, a class for each."""
    share = ppl.sample("share", ppl.Beta(1.0, 1.0))
    rates = ppl.sample("rates", ppl.Gamma(1.0, 0.2).expand([2]).to_event(1))
    with ppl.plate("rows", len(y)):
        kind = ppl.sample("kind", ppl.Bernoulli(share), infer={"enumerate": "parallel"})
        rate = ppl.where(kind == 1, rates[1], rates[0])
        ppl.sample("y", ppl.Poisson(rate), obs=y)


@entry("dynamic_supports", lambda: (np.array([3.0, 41.0, 22.0, 9.0]),))
def cut_points(ppl, y):
    """Each cut point lies above the one before; counts between them in pounds of ten."""
    one = ppl.sample("one", ppl.Uniform(0.0, 10.0))
    two = ppl.sample("two", ppl.Uniform(one, 10.0))
    three = ppl.sample("three", ppl.Uniform(two, 10.0))
    parts = ppl.stack([one, two - one, three - two, 10.0 - three]) / 10
    ppl.factor("counts", (y * ppl.log(parts + 1e-30)).sum())


def _reactions() -> tuple:
    conc, rate = columns("datasets", "Puromycin", "conc", "rate")
    low = conc < 0.15
    return conc[low], rate[low]


@entry("ridges", _reactions)
def slow_reactions(ppl, x, y):
    """Only low concentrations, which tell hardly more than a ratio of two numbers."""
    most, half = ppl.draws(most=ppl.LogNormal(5.0, 2.0), half=ppl.LogNormal(0.0, 2.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(30.0))
    ppl.rows(ppl.Normal(most * x / (half + x), sigma), y)


@entry("ridges", lambda: (np.array([250.0, 262.0, 241.0]),))
def power(ppl, y):
    """A base to a power."""
    base, exponent = ppl.draws(base=ppl.LogNormal(1.0, 1.0), exponent=ppl.Normal(2.0, 2.0))
    with ppl.plate("rows", 3):
        ppl.sample("y", ppl.Normal(base**exponent, 10.0), obs=y)


def _braking() -> tuple:
    speed, distance = columns("datasets", "cars", "speed", "dist")
    return standard(speed), standard(distance)


@entry("networks", _braking)
def braking(ppl, x, y):
    """Three smooth units."""
    first, bias = ppl.normals("first", 3), ppl.normals("bias", 3)
    second = ppl.normals("second", 3)
    shift, sigma = ppl.draws(shift=ppl.Normal(0.0, 1.0), sigma=ppl.HalfNormal(1.0))
    hidden = ppl.log(1 + ppl.exp(x[:, None] * first + bias))
    ppl.rows(ppl.Normal(hidden @ second + shift, sigma), y)


def _air() -> tuple:
    ozone, degrees, wind = columns("datasets", "airquality", "Ozone", "Temp", "Wind")
    seen = np.isfinite(ozone)
    return standard(np.column_stack([degrees, wind])[seen]), standard(np.log(ozone[seen]))


@entry("networks", _air)
def air(ppl, X, y):
    """Two inputs, four units with tanh, heavy-tailed noise."""
    first, bias = ppl.normals("first", 8).reshape((2, 4)), ppl.normals("bias", 4)
    second = ppl.normals("second", 4)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    mean = ppl.tanh(X @ first + bias) @ second
    ppl.rows(ppl.StudentT(5.0, mean, sigma), y)
