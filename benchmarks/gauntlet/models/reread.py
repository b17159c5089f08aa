"""Models of the readings after the last changes of `fit`, ``--which reread``, as they were run."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gauntlet.models.data import codes, columns
from benchmarks.gauntlet.models.registry import reread

PI = float(np.pi)


def _tree() -> tuple:
    t, w = columns("datasets", "treering", "time", "value")
    return t[-400::4], 1000 * w[-400::4]


@reread("dynamics", _tree)
def tree_rings(ppl: Any, t: Any, y: Any) -> None:
    """A wave through rings of trees in thousandths, which they hardly have."""
    dist, np = ppl.dist, ppl.np
    period = ppl.sample("period", dist.LogNormal(3.0, 1.0))
    a = ppl.normals("a", 2, 500.0)
    base = ppl.sample("base", dist.Normal(0.0, 3000.0))
    s = ppl.sample("s", dist.HalfCauchy(300.0))
    w = 2 * PI * (t - 1900.0) / period
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(base + a[0] * np.sin(w) + a[1] * np.cos(w), s), obs=y)


def _counts() -> tuple:
    r = np.random.default_rng(77)
    t = np.arange(1900, 1980) * 1.0
    return t, r.poisson(np.exp(2.5 + 0.9 * np.cos(2 * PI * (t - 1900) / 13.7 + 0.5))).astype(float)


@reread("dynamics", _counts)
def seasonal_counts(ppl: Any, t: Any, y: Any) -> None:
    """Counts with a period that is not known."""
    dist, np = ppl.dist, ppl.np
    period = ppl.sample("period", dist.Uniform(3.0, 50.0))
    b = ppl.normals("b", 2, 1.0)
    base = ppl.sample("base", dist.Normal(0.0, 5.0))
    w = 2 * PI * (t - 1900.0) / period
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Poisson(np.exp(base + b[0] * np.sin(w) + b[1] * np.cos(w))), obs=y)


def _dnase() -> tuple:
    c, d = columns("datasets", "DNase", "conc", "density")
    return c, d


@reread("plain", _dnase)
def dose_response(ppl: Any, x: Any, y: Any) -> None:
    """A logistic curve of a dose's logarithm."""
    dist, np = ppl.dist, ppl.np
    top = ppl.sample("top", dist.Normal(0.0, 10.0))
    low = ppl.sample("low", dist.Normal(0.0, 10.0))
    mid = ppl.sample("mid", dist.Normal(0.0, 5.0))
    slope = ppl.sample("slope", dist.Normal(0.0, 3.0))
    s = ppl.sample("s", dist.HalfCauchy(1.0))
    with ppl.plate("rows", len(y)):
        z = slope * (np.log(x) - mid)
        ppl.sample("y", dist.Normal(low + (top - low) / (1 + np.exp(-z)), s), obs=y)


@reread("mixtures", lambda: tuple(columns("MASS", "galaxies", "dat")))
def four_galaxies(ppl: Any, y: Any) -> None:
    """Four components for velocities in km/s."""
    dist, np = ppl.dist, ppl.np
    w = ppl.sample("w", dist.Dirichlet(ppl.array([1.0, 1.0, 1.0, 1.0])))
    loc = ppl.normals("loc", 4, 10000.0, loc=20000.0)
    s = ppl.sample("s", dist.LogNormal(7.0, 1.0).expand([4]).to_event(1))
    lp = dist.Normal(loc, s).log_prob(y[:, None]) + np.log(w)
    most = np.amax(lp, 1)
    ppl.factor("rows", (most + np.log(np.exp(lp - most[:, None]).sum(1))).sum())


def _bt() -> tuple:
    r = np.random.default_rng(79)
    s = r.normal(size=10) * 1.5
    i, j = np.triu_indices(10, 1)
    n = 4
    return (
        i.astype(int),
        j.astype(int),
        r.binomial(n, 1 / (1 + np.exp(-(s[i] - s[j])))).astype(float),
    )


@reread("plain", _bt)
def ratings(ppl: Any, i: Any, j: Any, y: Any) -> None:
    """Ten players, each pair four games."""
    dist = ppl.dist
    tau = ppl.sample("tau", dist.HalfCauchy(1.0))
    s = ppl.normals("skill", 10)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Binomial(4, logits=tau * (s[i] - s[j])), obs=y)


def _gas() -> tuple:
    t, y = columns("datasets", "UKgas", "time", "value")
    return t[:60], y[:60]


@reread("dynamics", _gas)
def gas(ppl: Any, t: Any, y: Any) -> None:
    """Quarterly gas, a line and a wave of unknown period."""
    dist, np = ppl.dist, ppl.np
    period = ppl.sample("period", dist.Gamma(2.0, 1.0))
    w = ppl.normals("w", 2, 200.0)
    line = ppl.normals("line", 2, 500.0)
    s = ppl.sample("s", dist.HalfNormal(200.0))
    a = 2 * PI * (t - 1960.0) / period
    with ppl.plate("rows", len(y)):
        ppl.sample(
            "y",
            dist.Normal(
                line[0] + line[1] * (t - 1967.0) / 10 + w[0] * np.sin(a) + w[1] * np.cos(a), s
            ),
            obs=y,
        )


def _pub() -> tuple:
    art, fem, kid, mentor = columns("pscl", "bioChemists", "art", "fem", "kid5", "ment")
    return art[::4], np.column_stack([np.ones(len(art)), codes(fem), kid, mentor])[::4]


@reread("mixtures", _pub)
def zero_inflated(ppl: Any, y: Any, X: Any) -> None:
    """Articles of biochemists, some of whom write none."""
    dist, np = ppl.dist, ppl.np
    b = ppl.normals("b", 4, 5.0)
    g = ppl.normals("g", 2, 5.0)
    rate = np.exp(X @ b)
    gate = 1 / (1 + np.exp(-(g[0] + g[1] * X[:, 3])))
    lp = dist.Poisson(rate).log_prob(y) + np.log1p(-gate)
    zero = np.log(gate + (1 - gate) * np.exp(-rate))
    ppl.factor("rows", np.where(y == 0, zero, lp).sum())


def _gehan() -> tuple:
    time, cens, treat = columns("MASS", "gehan", "time", "cens", "treat")
    return time, cens, codes(treat).astype(float)


@reread("heavy_tails", _gehan)
def weeks(ppl: Any, t: Any, died: Any, treat: Any) -> None:
    """Weeks of remission, some of them censored."""
    dist, np = ppl.dist, ppl.np
    k = ppl.sample("k", dist.HalfCauchy(2.0))
    b = ppl.normals("b", 2, 10.0)
    z = (t / np.exp(b[0] + b[1] * treat)) ** k
    ppl.factor("rows", (died * (np.log(k) + np.log(z) - np.log(t)) - z).sum())


def _ar() -> tuple:
    r = np.random.default_rng(91)
    y = [50.0, 52.0]
    for _ in range(90):
        y.append(10 + 1.3 * y[-1] - 0.5 * y[-2] + 3 * r.normal())
    return (np.array(y),)


@reread("dynamic_supports", _ar)
def triangle(ppl: Any, y: Any) -> None:
    """An autoregression in the triangle where it is stationary."""
    dist = ppl.dist
    b = ppl.sample("b", dist.Uniform(-1.0, 1.0))
    a = ppl.sample("a", dist.Uniform(b - 1.0, 1.0 - b))
    c = ppl.sample("c", dist.Normal(0.0, 100.0))
    s = ppl.sample("s", dist.HalfCauchy(10.0))
    with ppl.plate("rows", len(y) - 2):
        ppl.sample("y", dist.Normal(c + a * y[1:-1] + b * y[:-2], s), obs=y[2:])


def _decay() -> tuple:
    r = np.random.default_rng(92)
    t = np.arange(0, 60, 1.5)
    return t, r.poisson(900 * np.exp(-0.3 * t) + 150 * np.exp(-0.03 * t) + 20).astype(float)


@reread("dynamics", _decay)
def decays(ppl: Any, t: Any, y: Any) -> None:
    """Two decays above a background, which can change places."""
    dist, np = ppl.dist, ppl.np
    amp = ppl.sample("amp", dist.LogNormal(5.0, 2.0).expand([2]).to_event(1))
    rate = ppl.sample("rate", dist.LogNormal(-2.0, 1.5).expand([2]).to_event(1))
    bg = ppl.sample("bg", dist.HalfNormal(50.0))
    with ppl.plate("rows", len(y)):
        ppl.sample(
            "y",
            dist.Poisson(amp[0] * np.exp(-rate[0] * t) + amp[1] * np.exp(-rate[1] * t) + bg),
            obs=y,
        )


def _school() -> tuple:
    r = np.random.default_rng(93)
    g = np.repeat(np.arange(15), 6)
    x = r.uniform(0, 100, 90)
    u = r.normal(size=(15, 2))
    return x, g, 1200 + 8 * x + u[g, 0] * 200 + u[g, 1] * 3 * x + 150 * r.standard_t(3, size=90)


@reread("raw_scale", _school)
def slopes(ppl: Any, x: Any, g: Any, y: Any) -> None:
    """Starts and slopes of fifteen groups, heavy-tailed noise."""
    dist = ppl.dist
    mu = ppl.normals("mu", 2, 1000.0)
    tau = ppl.sample("tau", dist.HalfCauchy(100.0).expand([2]).to_event(1))
    s = ppl.sample("s", dist.HalfCauchy(100.0))
    nu = ppl.sample("nu", dist.Gamma(2.0, 0.1))
    with ppl.plate("groups", 15):
        u = ppl.sample("u", dist.Normal(0.0, tau[0]))
        v = ppl.sample("v", dist.Normal(0.0, tau[1]))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(nu, mu[0] + u[g] + (mu[1] + v[g]) * x, s), obs=y)


def _pass() -> tuple:
    t, y = columns("datasets", "AirPassengers", "time", "value")
    return t[:96], 1000 * y[:96]


@reread("raw_scale", _pass)
def flights(ppl: Any, t: Any, y: Any) -> None:
    """Passengers by the month, a line and a wave of unknown period."""
    dist, np = ppl.dist, ppl.np
    period = ppl.sample("period", dist.LogNormal(0.0, 1.0))
    w = ppl.normals("w", 2, 1e5)
    line = ppl.normals("line", 2, 3e5)
    s = ppl.sample("s", dist.HalfCauchy(5e4))
    a = 2 * PI * (t - 1949.0) / period
    with ppl.plate("rows", len(y)):
        ppl.sample(
            "y",
            dist.Normal(
                line[0] + line[1] * (t - 1953.0) / 4 + w[0] * np.sin(a) + w[1] * np.cos(a), s
            ),
            obs=y,
        )


def _warp() -> tuple:
    b, w, t = columns("datasets", "warpbreaks", "breaks", "wool", "tension")
    return b, codes(w), codes(t)


@reread("plain", _warp)
def breaks(ppl: Any, y: Any, w: Any, t: Any) -> None:
    """Six means of counts with a scale in common."""
    dist, np = ppl.dist, ppl.np
    m = ppl.normals("m", 6, 10.0)
    phi = ppl.sample("phi", dist.HalfCauchy(10.0))
    tau = ppl.sample("tau", dist.HalfNormal(1.0))
    c = ppl.sample("c", dist.Normal(0.0, 10.0))
    with ppl.plate("rows", len(y)):
        mean = np.exp(c + tau * m[w * 3 + t])
        ppl.sample("y", dist.GammaPoisson(phi, phi / mean), obs=y)


def _mix() -> tuple:
    r = np.random.default_rng(55)
    x = r.uniform(0, 10, 80)
    z = r.random(80) < 0.3
    return x, np.where(z, 40 - 3 * x, 5 + 2 * x) + r.normal(size=80) * 2


@reread("mixtures", _mix)
def two_lines(ppl: Any, x: Any, y: Any) -> None:
    """Two lines, each with noise of its own."""
    dist, np = ppl.dist, ppl.np
    p = ppl.sample("p", dist.Beta(1.0, 1.0))
    a = ppl.normals("a", 2, 30.0)
    b = ppl.normals("b", 2, 5.0)
    s = ppl.sample("s", dist.HalfCauchy(5.0).expand([2]).to_event(1))
    one = dist.Normal(a[0] + b[0] * x, s[0]).log_prob(y) + np.log(p)
    two = dist.Normal(a[1] + b[1] * x, s[1]).log_prob(y) + np.log1p(-p)
    ppl.factor("rows", np.logaddexp(one, two).sum())
