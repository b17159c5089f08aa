"""Posteriors that are no Gaussians: few rows, scales, tails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from .everyday import codes, everyday, floats
from .registry import table


def standardised(frame: pd.DataFrame) -> np.ndarray:
    """Columns with mean zero and standard deviation one."""
    columns = frame.to_numpy(float)
    return (columns - columns.mean(0)) / columns.std(0)


def _stack() -> tuple:
    d = table("datasets", "stackloss")
    return standardised(d[["Air.Flow", "Water.Temp", "Acid.Conc."]]), floats(d["stack.loss"])


@everyday(_stack)
def stack(ppl: Any, X, y):
    """Robust regression, unknown degrees of freedom, 21 rows."""
    dist = ppl.dist
    nu = ppl.sample("nu", dist.Gamma(2.0, 0.1))
    s = ppl.sample("s", dist.HalfCauchy(10.0))
    a = ppl.sample("a", dist.Normal(17.0, 20.0))
    with ppl.plate("cols", 3):
        b = ppl.sample("b", dist.Normal(0.0, 10.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(nu, a + X @ b, s), obs=y)


def _orings() -> tuple:
    d = table("DAAG", "orings")
    return (floats(d.Temperature) - 70) / 10, floats(d.Total > 0)


@everyday(_orings)
def orings(ppl: Any, x, y):
    """Logistic regression, 23 rows."""
    dist = ppl.dist
    a = ppl.sample("a", dist.Normal(0.0, 10.0))
    b = ppl.sample("b", dist.Normal(0.0, 10.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Bernoulli(logits=a + b * x), obs=y)


def _squirrels() -> tuple:
    d = table("COUNT", "nuts")
    y = floats(d.cones)
    return standardised(d[["sntrees", "sheight", "scover"]]), y, floats(y == 0)


@everyday(_squirrels)
def squirrels(ppl: Any, X, y, zero):
    """Zero-inflated negative binomial counts, 52 rows."""
    dist = ppl.dist
    z = ppl.sample("z", dist.Beta(1.0, 1.0))
    c = ppl.sample("c", dist.HalfCauchy(2.0))
    a = ppl.sample("a", dist.Normal(0.0, 5.0))
    with ppl.plate("cols", 3):
        b = ppl.sample("b", dist.Normal(0.0, 2.0))
    mean = ppl.np.exp(a + X @ b)
    with ppl.plate("rows", len(y)):
        of_counts = ppl.np.exp(dist.GammaPoisson(c, c / mean).log_prob(y))
        ppl.factor("obs", ppl.np.log(z * zero + (1 - z) * of_counts))


def _ovarian() -> tuple:
    d = table("survival", "ovarian")
    others = floats(d.rx == 2), floats(d["resid.ds"] == 2)
    return floats(d.futime) / 365, floats(d.fustat), standardised(d[["age"]])[:, 0], *others


@everyday(_ovarian)
def ovarian(ppl: Any, t, event, age, rx, rest):
    """Weibull survival with censoring, 26 rows."""
    dist = ppl.dist
    k = ppl.sample("k", dist.HalfCauchy(2.0))
    a = ppl.sample("a", dist.Normal(0.0, 3.0))
    with ppl.plate("cols", 3):
        b = ppl.sample("b", dist.Normal(0.0, 2.0))
    log_scale = a + b[0] * age + b[1] * rx + b[2] * rest
    with ppl.plate("rows", len(t)):
        log_time = ppl.np.log(t) - log_scale
        hazard = ppl.np.log(k) - log_scale + (k - 1) * log_time
        ppl.factor("obs", event * hazard - ppl.np.exp(k * log_time))


def _respdis() -> tuple:
    d = table("geepack", "respdis")
    y = d[["y1", "y2", "y3", "y4"]].to_numpy(int) - 1
    n = len(d)
    times = np.tile([0.0, 1.0, 2.0, 3.0], n)
    return np.repeat(np.arange(n), 4), np.repeat(floats(d.trt), 4), times, y.reshape(-1)


@everyday(_respdis)
def respdis(ppl: Any, g, treated, t, y):
    """Ordinal ratings, effects of patients."""
    dist = ppl.dist
    tau = ppl.sample("tau", dist.HalfCauchy(2.0))
    c = ppl.sample("c", dist.Normal(0.0, 3.0))
    w = ppl.sample("w", dist.HalfNormal(3.0))
    b = ppl.sample("b", dist.Normal(0.0, 2.0))
    bt = ppl.sample("bt", dist.Normal(0.0, 1.0))
    with ppl.plate("patients", 111):
        u = ppl.sample("u", dist.Normal(0.0, tau))
    cuts = ppl.np.stack([c, c + w])
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.OrderedLogistic(b * treated + bt * t + u[g], cuts), obs=y)


def _nhtemp() -> tuple:
    return (floats(table("datasets", "nhtemp").value) - 51,)


@everyday(_nhtemp)
def nhtemp(ppl: Any, y):
    """A local level."""
    dist = ppl.dist
    q = ppl.sample("q", dist.HalfNormal(1.0))
    s = ppl.sample("s", dist.HalfNormal(2.0))
    m0 = ppl.sample("m0", dist.Normal(0.0, 3.0))
    with ppl.plate("steps", len(y)):
        e = ppl.sample("e", dist.Normal(0.0, 1.0))
    level = m0 + q * ppl.np.cumsum(e, -1)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(level, s), obs=y)


def _batters() -> tuple:
    return np.full(18, 45.0), np.round(45 * floats(table("pscl", "EfronMorris").p))


@everyday(_batters)
def batters(ppl: Any, n, y):
    """A beta-binomial model with a Pareto concentration, centred."""
    dist = ppl.dist
    phi = ppl.sample("phi", dist.Uniform(0.0, 1.0))
    kappa = ppl.np.exp(ppl.sample("log_kappa", dist.Exponential(1.5)))
    with ppl.plate("players", 18):
        theta = ppl.sample("theta", dist.Beta(phi * kappa, (1 - phi) * kappa))
        ppl.sample("y", dist.Binomial(n, theta), obs=y)


def _rail() -> tuple:
    d = table("nlme", "Rail")
    return codes(d.Rail), floats(d.travel)


@everyday(_rail)
def rail(ppl: Any, g, y):
    """Six groups on their raw scale, centred."""
    dist = ppl.dist
    m = ppl.sample("m", dist.Normal(50.0, 50.0))
    tau = ppl.sample("tau", dist.HalfCauchy(25.0))
    s = ppl.sample("s", dist.HalfCauchy(25.0))
    with ppl.plate("rails", 6):
        u = ppl.sample("u", dist.Normal(m, tau))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(u[g], s), obs=y)


def _aircon() -> tuple:
    return (floats(table("boot", "aircondit").hours),)


@everyday(_aircon)
def aircon(ppl: Any, y):
    """A gamma of 12 rows."""
    dist = ppl.dist
    a = ppl.sample("a", dist.HalfCauchy(2.0))
    m = ppl.sample("m", dist.LogNormal(4.0, 2.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Gamma(a, a / m), obs=y)


def _pastes() -> tuple:
    d = table("lme4", "Pastes")
    batch = codes(d.groupby("sample", sort=False).batch.first())
    return codes(d["sample"]), batch, floats(d.strength)


@everyday(_pastes)
def pastes(ppl: Any, cask, batch, y):
    """Casks within batches."""
    dist = ppl.dist
    m = ppl.sample("m", dist.Normal(60.0, 20.0))
    sb = ppl.sample("sb", dist.HalfCauchy(5.0))
    sc = ppl.sample("sc", dist.HalfCauchy(5.0))
    s = ppl.sample("s", dist.HalfCauchy(5.0))
    with ppl.plate("batches", 10):
        b = ppl.sample("bt", dist.Normal(0.0, sb))
    with ppl.plate("casks", 30):
        c = ppl.sample("c", dist.Normal(m + b[batch], sc))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(c[cask], s), obs=y)
