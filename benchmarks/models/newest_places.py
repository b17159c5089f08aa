"""Data in thousands, groups, plateaus, overflow, single precision, ends, flat directions."""

import numpy as np

from .entries import codes, columns, newest, with_ones


@newest("raw_scale", lambda: tuple(columns("datasets", "airmiles", "time", "value")))
def miles(ppl, t, y):
    """Logistic growth of air miles, 400 to 30,000."""
    most, middle = ppl.draws(most=ppl.LogNormal(10.0, 1.0), middle=ppl.Normal(1950.0, 20.0))
    width = ppl.sample("width", ppl.LogNormal(1.0, 1.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(2000.0))
    ppl.rows(ppl.Normal(most / (1 + ppl.exp((middle - t) / width)), sigma), y)


@newest("raw_scale", lambda: tuple(columns("lme4", "Dyestuff", "Batch", "Yield")))
def dyestuff(ppl, batch, y):
    """Batches of 1,500 grams, centred."""
    mu, tau = ppl.draws(mu=ppl.Normal(1000.0, 1000.0), tau=ppl.HalfCauchy(100.0))
    sigma = ppl.sample("sigma", ppl.HalfCauchy(100.0))
    with ppl.plate("batches", 6):
        mean = ppl.sample("mean", ppl.Normal(mu, tau))
    ppl.rows(ppl.Normal(mean[batch], sigma), y)


def _claims() -> tuple:
    district, group, age, holders, claims = columns(
        "MASS", "Insurance", "District", "Group", "Age", "Holders", "Claims"
    )
    return codes(district), codes(group), codes(age), np.log(holders), claims


@newest("groups", _claims)
def claims(ppl, district, group, age, log_holders, y):
    """Claims of drivers, a rate for each of 64 cells."""
    beta = ppl.normals("beta", 3, 2.0)
    tau = ppl.sample("tau", ppl.HalfNormal(1.0).expand([2]).to_event(1))
    with ppl.plate("districts", 4):
        effect = ppl.sample("effect", ppl.Normal(0.0, tau[0]))
    with ppl.plate("rows", 64):
        noise = ppl.sample("noise", ppl.Normal(0.0, tau[1]))
        eta = beta[0] + beta[1] * group + beta[2] * age + effect[district] + noise
        ppl.sample("y", ppl.Poisson(ppl.exp(eta + log_holders)), obs=y)


def _bump() -> tuple:
    x = np.linspace(0.0, 100.0, 80)
    noise = np.random.default_rng(901).normal(size=80)
    return x, 5 * np.exp(-(((x - 71) / 2) ** 2)) + 0.4 * noise


@newest("plateaus", _bump)
def bump(ppl, x, y):
    """A narrow bump somewhere on a line; elsewhere the density is flat."""
    height, at = ppl.draws(height=ppl.HalfNormal(10.0), at=ppl.Uniform(0.0, 100.0))
    width, sigma = ppl.draws(width=ppl.LogNormal(1.0, 0.5), sigma=ppl.HalfNormal(1.0))
    ppl.rows(ppl.Normal(height * ppl.exp(-(((x - at) / width) ** 2)), sigma), y)


@newest("plateaus", lambda: (np.zeros(1),))
def funnel(ppl, y):
    """Widths that know nothing of data."""
    width = ppl.sample("width", ppl.Normal(0.0, 3.0))
    x = ppl.sample("x", ppl.Normal(0.0, ppl.exp(0.5 * width)).expand([6]).to_event(1))
    ppl.rows(ppl.Normal(x.sum(), 10.0), y)


def _doses() -> tuple:
    x = np.random.default_rng(902).uniform(200, 800, 60)
    return x, (x + 30 * np.random.default_rng(903).logistic(size=60) > 530).astype(float)


@newest("plateaus", _doses)
def steep(ppl, x, y):
    """A steep logistic curve in raw doses, whose place is known by a thousand."""
    at, slope = ppl.draws(at=ppl.Normal(0.0, 1000.0), slope=ppl.Normal(0.0, 1.0))
    ppl.rows(ppl.Bernoulli(logits=slope * (x - at)), y)


def _births() -> tuple:
    years = np.arange(1900.0, 1990.0, 3)
    return years, np.random.default_rng(904).poisson(np.exp(0.02 * (years - 1850))).astype(float)


@newest("overflow", _births)
def raw_years(ppl, x, y):
    """Counts by the year as it is."""
    start, slope = ppl.draws(start=ppl.Normal(0.0, 100.0), slope=ppl.Normal(0.0, 1.0))
    ppl.rows(ppl.Poisson(ppl.exp(start + slope * x)), y)


def _cooling() -> tuple:
    t = np.arange(0.0, 2000.0, 100.0)
    return t, 60 * np.exp(-t / 700) + np.random.default_rng(907).normal(size=20)


@newest("overflow", _cooling)
def cooling(ppl, t, y):
    """A decay over thousands of seconds, whose rate may be of any sign."""
    rate, sigma = ppl.draws(rate=ppl.Normal(0.0, 1.0), sigma=ppl.HalfNormal(10.0))
    ppl.rows(ppl.Normal(60 * ppl.exp(-rate * t), sigma), y)


@newest("single", lambda: (1e6 + np.random.default_rng(905).normal(size=40).round(1),))
def offset(ppl, y):
    """A mean of a million, known by less than one."""
    mu, sigma = ppl.draws(mu=ppl.Normal(1e6, 100.0), sigma=ppl.HalfNormal(5.0))
    ppl.rows(ppl.Normal(mu, sigma), y)


def _square() -> tuple:
    year = np.arange(1950.0, 2000.0)
    X = np.column_stack([np.ones(50), year, year**2])
    return X, 0.01 * (year - 1970) ** 2 + np.random.default_rng(906).normal(size=50)


@newest("single", _square)
def parabola(ppl, X, y):
    """A parabola through years as they are."""
    beta = ppl.sample("beta", ppl.Normal(0.0, ppl.array([1e5, 1e2, 1.0])).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfNormal(5.0))
    ppl.rows(ppl.Normal(X @ beta, sigma), y)


def _floods() -> tuple:
    return (20 + np.random.default_rng(908).gamma(2.0, 5.0, 30),)


@newest("ends", _floods)
def floods(ppl, y):
    """A gamma above an unknown least."""
    least, shape = ppl.draws(least=ppl.Normal(10.0, 10.0), shape=ppl.LogNormal(0.5, 0.5))
    rate = ppl.sample("rate", ppl.LogNormal(-1.0, 1.0))
    above = y - least
    safe = ppl.where(above > 0, above, ppl.ones_like(above))
    density = ppl.Gamma(shape, rate).log_prob(safe)
    ppl.factor("y", ppl.where(above > 0, density, ppl.full_like(above, -np.inf)).sum())


def _population() -> tuple:
    x, found = 0.3, []
    for noise in np.random.default_rng(909).normal(size=12):
        x = 2.6 * x * (1 - x)
        found.append(x + 0.05 * noise)
    return (np.array(found),)


@newest("ends", _population)
def generations(ppl, y):
    """The logistic map, which leaves for infinity above four."""
    rate, start = ppl.draws(rate=ppl.Normal(2.5, 1.0), start=ppl.Beta(2.0, 2.0))
    path = ppl.iterate(lambda x: rate * x * (1 - x), start, 12)
    ppl.rows(ppl.Normal(path, 0.1), y)


@newest("ends", lambda: (np.array([1.1, 1.3, 1.5, 2.0, 2.5, 3.9]),))
def runaway_growth(ppl, y):
    """Growth by the square, which explodes for rates a little larger."""
    rate, sigma = ppl.draws(rate=ppl.HalfNormal(0.5), sigma=ppl.HalfNormal(0.3))
    path = ppl.iterate(lambda x: x + rate * x * x, ppl.ones_like(rate), 6)
    ppl.rows(ppl.Normal(path, sigma), y)


def _flat(ppl, name, size):
    support = ppl.constraints.real_vector
    return ppl.sample(name, ppl.ImproperUniform(support, (), (size,)))


@newest("flat", lambda: (with_ones(np.linspace(-2, 2, 20)), np.repeat([0.0, 1.0], 10)))
def separated(ppl, X, y):
    """A logistic regression of separated classes under a flat prior."""
    ppl.rows(ppl.Bernoulli(logits=X @ _flat(ppl, "beta", 2)), y)


@newest("flat", lambda: (np.random.default_rng(910).normal(size=20),))
def only_sum(ppl, y):
    """Two means, of which only the sum is known."""
    ppl.rows(ppl.Normal(_flat(ppl, "means", 2).sum(), 1.0), y)


@newest("flat", lambda: (np.zeros(8),))
def no_events(ppl, y):
    """No event in eight years, under a flat prior of the logarithm."""
    ppl.rows(ppl.Poisson(ppl.exp(_flat(ppl, "log_rate", 1))), y)


@newest("flat", lambda: (np.tile([-0.5, 0.5], 12), np.repeat(np.arange(6), 4)))
def no_spread(ppl, y, group):
    """Groups that do not differ, whose spread is a parameter of the model."""
    tau = ppl.param("tau", ppl.array(1.0), constraint=ppl.constraints.positive)
    with ppl.plate("groups", 6):
        effect = ppl.sample("effect", ppl.Normal(0.0, tau))
    ppl.rows(ppl.Normal(effect[group], 0.5), y)


@newest("heavy_tails", lambda: (np.array([0.3, -1.2, 8.0]),))
def wide_but_proper(ppl, y):
    """A Cauchy prior, and noise with it: heavy, but proper."""
    mu, sigma = ppl.draws(mu=ppl.Cauchy(0.0, 10.0), sigma=ppl.HalfCauchy(5.0))
    ppl.rows(ppl.StudentT(3.0, mu, sigma), y)
