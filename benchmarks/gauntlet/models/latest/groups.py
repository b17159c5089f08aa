"""Regressions and groups, with R's data in their own units."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gauntlet.models.data import codes, columns
from benchmarks.gauntlet.models.registry import latest


@latest(
    "raw_scale",
    lambda: tuple(v[::5] for v in columns("datasets", "quakes", "depth", "mag", "stations")),
)
def quakes(ppl: Any, depth: Any, mag: Any, y: Any) -> None:
    """Counts of stations by kilometres and magnitudes."""
    dist, np = ppl.dist, ppl.np
    start = ppl.sample("start", dist.Normal(0.0, 10.0))
    slopes = ppl.normals("slopes", 2, 5.0)
    phi = ppl.sample("phi", dist.HalfCauchy(5.0))
    mean = np.exp(start + slopes[0] * depth / 1000 + slopes[1] * mag)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.GammaPoisson(phi, phi / mean), obs=y)


def _autos() -> tuple:
    y, weight, power = columns("ISLR", "Auto", "mpg", "weight", "horsepower")
    return weight[::3], power[::3], y[::3]


@latest("raw_scale", _autos)
def autos(ppl: Any, weight: Any, power: Any, y: Any) -> None:
    """Miles per gallon by pounds and horsepower as they are, with heavy-tailed noise."""
    dist = ppl.dist
    start = ppl.sample("start", dist.Normal(0.0, 1000.0))
    slopes = ppl.normals("slopes", 2, 10.0)
    sigma = ppl.sample("sigma", dist.HalfCauchy(100.0))
    nu = ppl.sample("nu", dist.Gamma(2.0, 0.1))
    with ppl.plate("rows", len(y)):
        mean = start + slopes[0] * weight + slopes[1] * power
        ppl.sample("y", dist.StudentT(nu, mean, sigma), obs=y)


def _pastes() -> tuple:
    strength, batch, cask = columns("lme4", "Pastes", "strength", "batch", "sample")
    return 1000 * strength, codes(batch), codes(cask)


@latest("raw_scale", _pastes)
def pastes(ppl: Any, y: Any, batch: Any, cask: Any) -> None:
    """Ten batches and thirty casks, both centred; strengths in thousandths."""
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(0.0, 1e5))
    taus = ppl.sample("taus", dist.HalfCauchy(5000.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfCauchy(5000.0))
    with ppl.plate("batches", 10):
        of_batch = ppl.sample("of_batch", dist.Normal(mu, taus[0]))
    with ppl.plate("casks", 30):
        of_cask = ppl.sample("of_cask", dist.Normal(0.0, taus[1]))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(of_batch[batch] + of_cask[cask], sigma), obs=y)


def _light() -> tuple:
    speed, experiment = columns("datasets", "morley", "Speed", "Expt")
    return 1000 * speed + 2.99e8, codes(experiment)


@latest("raw_scale", _light)
def light(ppl: Any, y: Any, experiment: Any) -> None:
    """The speed of light in metres a second, by five experiments: sd 7e4 about 3e8."""
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(3e8, 1e6))
    tau = ppl.sample("tau", dist.HalfCauchy(1e5))
    sigma = ppl.sample("sigma", dist.HalfCauchy(1e5))
    with ppl.plate("experiments", 5):
        own = ppl.sample("own", dist.Normal(0.0, tau))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(mu + own[experiment], sigma), obs=y)


def _seizures() -> tuple:
    y, treated, base, subject = columns("MASS", "epil", "y", "trt", "base", "subject")
    return y, codes(treated).astype(float), base, codes(subject)


@latest("plain", _seizures)
def seizures(ppl: Any, y: Any, treated: Any, base: Any, subject: Any) -> None:
    """Counts of 59 people, each with a rate of their own."""
    dist, np = ppl.dist, ppl.np
    beta = ppl.normals("beta", 3, 3.0)
    tau = ppl.sample("tau", dist.HalfNormal(1.0))
    with ppl.plate("people", 59):
        own = ppl.sample("own", dist.Normal(0.0, 1.0))
    rate = beta[0] + beta[1] * treated + beta[2] * np.log(base / 4) + tau * own[subject]
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Poisson(np.exp(rate)), obs=y)


def _masses() -> tuple:
    (mass,) = columns("HSAUR", "planets", "mass")
    return (mass * 318,)


@latest("heavy_tails", _masses)
def masses(ppl: Any, y: Any) -> None:
    """Planets in masses of the earth, a location with Cauchy's prior."""
    dist = ppl.dist
    loc = ppl.sample("loc", dist.Cauchy(0.0, 1000.0))
    scale = ppl.sample("scale", dist.HalfCauchy(1000.0))
    nu = ppl.sample("nu", dist.Gamma(2.0, 0.5))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(nu, loc, scale), obs=y)


@latest("heavy_tails", lambda: (np.array([-3.0, 40.0, 2.0, 5.0, -1.0, 230.0]),))
def sparse_means(ppl: Any, y: Any) -> None:
    """Six means, of which two are far out, with a scale for each."""
    dist = ppl.dist
    tau = ppl.sample("tau", dist.HalfCauchy(1.0))
    with ppl.plate("rows", 6):
        scale = ppl.sample("scale", dist.HalfCauchy(1.0))
        z = ppl.sample("z", dist.StudentT(4.0, 0.0, 1.0))
        ppl.sample("y", dist.Normal(tau * scale * z, 3.0), obs=y)


def _visits() -> tuple:
    visits, age, chronic, income = columns("AER", "NMES1988", "visits", "age", "chronic", "income")
    rows = np.random.default_rng(5002).choice(len(age), 3000, replace=False)
    X = np.column_stack([np.ones(3000), 10 * age[rows], chronic[rows], income[rows]])
    return X, visits[rows]


@latest("minibatches", _visits, batch=300)
def visits(ppl: Any, X: Any, y: Any, batch: int | None = None) -> None:
    """Visits of a doctor by years of age and income in ten thousands, 300 people at a time."""
    dist, np = ppl.dist, ppl.np
    beta = ppl.normals("beta", 4, 2.0)
    phi = ppl.sample("phi", dist.LogNormal(0.0, 1.0))
    with ppl.plate("rows", len(y), subsample_size=batch) as rows:
        mean = np.exp(X[rows] @ beta)
        ppl.sample("y", dist.GammaPoisson(phi, phi / mean), obs=y[rows])


def _guns() -> tuple:
    violent, prisoners, income, state = columns(
        "AER", "Guns", "violent", "prisoners", "income", "state"
    )
    return violent, np.column_stack([prisoners, income]), codes(state)


@latest("minibatches", _guns, batch=117)
def states(ppl: Any, y: Any, X: Any, state: Any, batch: int | None = None) -> None:
    """Violent crimes by prisoners and dollars, with a level for each of 51 states; raw numbers."""
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(0.0, 1000.0))
    slopes = ppl.normals("slopes", 2)
    tau = ppl.sample("tau", dist.HalfNormal(500.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(500.0))
    with ppl.plate("states", 51):
        own = ppl.sample("own", dist.Normal(mu, tau))
    with ppl.plate("rows", len(y), subsample_size=batch) as rows:
        ppl.sample("y", dist.Normal(own[state[rows]] + X[rows] @ slopes, sigma), obs=y[rows])


def _sleep() -> tuple:
    reaction, days, subject = columns("lme4", "sleepstudy", "Reaction", "Days", "Subject")
    return reaction, days, codes(subject)


@latest("own_parameters", _sleep)
def sleepers(ppl: Any, y: Any, days: Any, subject: Any) -> None:
    """Milliseconds; the mean, the slope and both widths are parameters that begin at one."""
    dist = ppl.dist
    positive = dist.constraints.positive
    start = ppl.param("start", ppl.array(1.0))
    slope = ppl.param("slope", ppl.array(1.0))
    tau = ppl.param("tau", ppl.array(1.0), constraint=positive)
    sigma = ppl.param("sigma", ppl.array(1.0), constraint=positive)
    with ppl.plate("subjects", 18):
        own = ppl.sample("own", dist.Normal(0.0, tau))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(start + slope * days + own[subject], sigma), obs=y)
