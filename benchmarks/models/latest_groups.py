"""Regressions and groups, with R's data in their own units."""

import numpy as np

from .entries import codes, columns, entry


@entry(
    "raw_scale",
    lambda: tuple(v[::5] for v in columns("datasets", "quakes", "depth", "mag", "stations")),
)
def quakes(ppl, depth, mag, y):
    """Counts of stations by kilometres and magnitudes."""
    start = ppl.sample("start", ppl.Normal(0.0, 10.0))
    slopes = ppl.normals("slopes", 2, 5.0)
    phi = ppl.sample("phi", ppl.HalfCauchy(5.0))
    mean = ppl.exp(start + slopes[0] * depth / 1000 + slopes[1] * mag)
    ppl.rows(ppl.GammaPoisson(phi, phi / mean), y)


def _autos() -> tuple:
    y, weight, power = columns("ISLR", "Auto", "mpg", "weight", "horsepower")
    return weight[::3], power[::3], y[::3]


@entry("raw_scale", _autos)
def autos(ppl, weight, power, y):
    """Miles per gallon by pounds and horsepower as they are, with heavy-tailed noise."""
    start = ppl.sample("start", ppl.Normal(0.0, 1000.0))
    slopes = ppl.normals("slopes", 2, 10.0)
    sigma, nu = ppl.draws(sigma=ppl.HalfCauchy(100.0), nu=ppl.Gamma(2.0, 0.1))
    mean = start + slopes[0] * weight + slopes[1] * power
    ppl.rows(ppl.StudentT(nu, mean, sigma), y)


def _pastes() -> tuple:
    strength, batch, cask = columns("lme4", "Pastes", "strength", "batch", "sample")
    return 1000 * strength, codes(batch), codes(cask)


@entry("raw_scale", _pastes)
def pastes(ppl, y, batch, cask):
    """Ten batches and thirty casks, both centred; strengths in thousandths."""
    mu = ppl.sample("mu", ppl.Normal(0.0, 1e5))
    taus = ppl.sample("taus", ppl.HalfCauchy(5000.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfCauchy(5000.0))
    with ppl.plate("batches", 10):
        of_batch = ppl.sample("of_batch", ppl.Normal(mu, taus[0]))
    with ppl.plate("casks", 30):
        of_cask = ppl.sample("of_cask", ppl.Normal(0.0, taus[1]))
    ppl.rows(ppl.Normal(of_batch[batch] + of_cask[cask], sigma), y)


def _light() -> tuple:
    speed, experiment = columns("datasets", "morley", "Speed", "Expt")
    return 1000 * speed + 2.99e8, codes(experiment)


@entry("raw_scale", _light)
def light(ppl, y, experiment):
    """The speed of light in metres a second, by five experiments: sd 7e4 about 3e8."""
    mu, tau = ppl.draws(mu=ppl.Normal(3e8, 1e6), tau=ppl.HalfCauchy(1e5))
    sigma = ppl.sample("sigma", ppl.HalfCauchy(1e5))
    with ppl.plate("experiments", 5):
        own = ppl.sample("own", ppl.Normal(0.0, tau))
    ppl.rows(ppl.Normal(mu + own[experiment], sigma), y)


def _seizures() -> tuple:
    y, treated, base, subject = columns("MASS", "epil", "y", "trt", "base", "subject")
    return y, codes(treated).astype(float), base, codes(subject)


@entry("plain", _seizures)
def seizures(ppl, y, treated, base, subject):
    """Counts of 59 people, each with a rate of their own."""
    beta = ppl.normals("beta", 3, 3.0)
    tau = ppl.sample("tau", ppl.HalfNormal(1.0))
    with ppl.plate("people", 59):
        own = ppl.sample("own", ppl.Normal(0.0, 1.0))
    rate = beta[0] + beta[1] * treated + beta[2] * ppl.log(base / 4) + tau * own[subject]
    ppl.rows(ppl.Poisson(ppl.exp(rate)), y)


def _masses() -> tuple:
    (mass,) = columns("HSAUR", "planets", "mass")
    return (mass * 318,)


@entry("heavy_tails", _masses)
def masses(ppl, y):
    """Planets in masses of the earth, a location with Cauchy's prior."""
    loc, scale = ppl.draws(loc=ppl.Cauchy(0.0, 1000.0), scale=ppl.HalfCauchy(1000.0))
    nu = ppl.sample("nu", ppl.Gamma(2.0, 0.5))
    ppl.rows(ppl.StudentT(nu, loc, scale), y)


@entry("heavy_tails", lambda: (np.array([-3.0, 40.0, 2.0, 5.0, -1.0, 230.0]),))
def sparse_means(ppl, y):
    """Six means, of which two are far out, with a scale for each."""
    tau = ppl.sample("tau", ppl.HalfCauchy(1.0))
    with ppl.plate("rows", 6):
        scale, z = ppl.draws(scale=ppl.HalfCauchy(1.0), z=ppl.StudentT(4.0, 0.0, 1.0))
        ppl.sample("y", ppl.Normal(tau * scale * z, 3.0), obs=y)


def _visits() -> tuple:
    visits, age, chronic, income = columns("AER", "NMES1988", "visits", "age", "chronic", "income")
    rows = np.random.default_rng(5002).choice(len(age), 3000, replace=False)
    X = np.column_stack([np.ones(3000), 10 * age[rows], chronic[rows], income[rows]])
    return X, visits[rows]


@entry("minibatches", _visits, batch=300)
def visits(ppl, X, y, batch=None):
    """Visits of a doctor by years of age and income in ten thousands, 300 people at a time."""
    beta = ppl.normals("beta", 4, 2.0)
    phi = ppl.sample("phi", ppl.LogNormal(0.0, 1.0))
    with ppl.plate("rows", len(y), subsample_size=batch) as rows:
        mean = ppl.exp(X[rows] @ beta)
        ppl.sample("y", ppl.GammaPoisson(phi, phi / mean), obs=y[rows])


def _guns() -> tuple:
    violent, prisoners, income, state = columns(
        "AER", "Guns", "violent", "prisoners", "income", "state"
    )
    return violent, np.column_stack([prisoners, income]), codes(state)


@entry("minibatches", _guns, batch=117)
def states(ppl, y, X, state, batch=None):
    """Violent crimes by prisoners and dollars, with a level for each of 51 states; raw numbers."""
    mu = ppl.sample("mu", ppl.Normal(0.0, 1000.0))
    slopes = ppl.normals("slopes", 2)
    tau, sigma = ppl.draws(tau=ppl.HalfNormal(500.0), sigma=ppl.HalfNormal(500.0))
    with ppl.plate("states", 51):
        own = ppl.sample("own", ppl.Normal(mu, tau))
    with ppl.plate("rows", len(y), subsample_size=batch) as rows:
        ppl.sample("y", ppl.Normal(own[state[rows]] + X[rows] @ slopes, sigma), obs=y[rows])


def _sleep() -> tuple:
    reaction, days, subject = columns("lme4", "sleepstudy", "Reaction", "Days", "Subject")
    return reaction, days, codes(subject)


@entry("own_parameters", _sleep)
def sleepers(ppl, y, days, subject):
    """Milliseconds; the mean, the slope and both widths are parameters that begin at one."""
    positive = ppl.constraints.positive
    start = ppl.param("start", ppl.array(1.0))
    slope = ppl.param("slope", ppl.array(1.0))
    tau = ppl.param("tau", ppl.array(1.0), constraint=positive)
    sigma = ppl.param("sigma", ppl.array(1.0), constraint=positive)
    with ppl.plate("subjects", 18):
        own = ppl.sample("own", ppl.Normal(0.0, tau))
    ppl.rows(ppl.Normal(start + slope * days + own[subject], sigma), y)
