"""Models of the readings after the last changes of `fit`, ``--which reread``, as they were run."""

import numpy as np

from .entries import codes, columns, reread

PI = float(np.pi)


def _tree() -> tuple:
    t, w = columns("datasets", "treering", "time", "value")
    return t[-400::4], 1000 * w[-400::4]


@reread("dynamics", _tree)
def tree_rings(ppl, t, y):
    """A wave through rings of trees in thousandths, which they hardly have."""
    period = ppl.sample("period", ppl.LogNormal(3.0, 1.0))
    a = ppl.normals("a", 2, 500.0)
    base, s = ppl.draws(base=ppl.Normal(0.0, 3000.0), s=ppl.HalfCauchy(300.0))
    w = 2 * PI * (t - 1900.0) / period
    ppl.rows(ppl.Normal(base + a[0] * ppl.sin(w) + a[1] * ppl.cos(w), s), y)


def _counts() -> tuple:
    r = np.random.default_rng(77)
    t = np.arange(1900, 1980) * 1.0
    return t, r.poisson(np.exp(2.5 + 0.9 * np.cos(2 * PI * (t - 1900) / 13.7 + 0.5))).astype(float)


@reread("dynamics", _counts)
def seasonal_counts(ppl, t, y):
    """Counts with a period that is not known."""
    period = ppl.sample("period", ppl.Uniform(3.0, 50.0))
    b = ppl.normals("b", 2, 1.0)
    base = ppl.sample("base", ppl.Normal(0.0, 5.0))
    w = 2 * PI * (t - 1900.0) / period
    ppl.rows(ppl.Poisson(ppl.exp(base + b[0] * ppl.sin(w) + b[1] * ppl.cos(w))), y)


def _dnase() -> tuple:
    c, d = columns("datasets", "DNase", "conc", "density")
    return c, d


@reread("plain", _dnase)
def dose_response(ppl, x, y):
    """A logistic curve of a dose's logarithm."""
    top, low = ppl.draws(top=ppl.Normal(0.0, 10.0), low=ppl.Normal(0.0, 10.0))
    mid, slope = ppl.draws(mid=ppl.Normal(0.0, 5.0), slope=ppl.Normal(0.0, 3.0))
    s = ppl.sample("s", ppl.HalfCauchy(1.0))
    z = slope * (ppl.log(x) - mid)
    ppl.rows(ppl.Normal(low + (top - low) / (1 + ppl.exp(-z)), s), y)


@reread("mixtures", lambda: tuple(columns("MASS", "galaxies", "dat")))
def four_galaxies(ppl, y):
    """Four components for velocities in km/s."""
    w = ppl.sample("w", ppl.Dirichlet(ppl.array([1.0, 1.0, 1.0, 1.0])))
    loc = ppl.normals("loc", 4, 10000.0, loc=20000.0)
    s = ppl.sample("s", ppl.LogNormal(7.0, 1.0).expand([4]).to_event(1))
    lp = ppl.Normal(loc, s).log_prob(y[:, None]) + ppl.log(w)
    most = ppl.amax(lp, 1)
    ppl.factor("rows", (most + ppl.log(ppl.exp(lp - most[:, None]).sum(1))).sum())


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
def ratings(ppl, i, j, y):
    """Ten players, each pair four games."""
    tau = ppl.sample("tau", ppl.HalfCauchy(1.0))
    s = ppl.normals("skill", 10)
    ppl.rows(ppl.Binomial(4, logits=tau * (s[i] - s[j])), y)


def _gas() -> tuple:
    t, y = columns("datasets", "UKgas", "time", "value")
    return t[:60], y[:60]


@reread("dynamics", _gas)
def gas(ppl, t, y):
    """Quarterly gas, a line and a wave of unknown period."""
    period = ppl.sample("period", ppl.Gamma(2.0, 1.0))
    w = ppl.normals("w", 2, 200.0)
    line = ppl.normals("line", 2, 500.0)
    s = ppl.sample("s", ppl.HalfNormal(200.0))
    a = 2 * PI * (t - 1960.0) / period
    ppl.rows(
        ppl.Normal(
            line[0] + line[1] * (t - 1967.0) / 10 + w[0] * ppl.sin(a) + w[1] * ppl.cos(a), s
        ),
        y,
    )


def _pub() -> tuple:
    art, fem, kid, mentor = columns("pscl", "bioChemists", "art", "fem", "kid5", "ment")
    return art[::4], np.column_stack([np.ones(len(art)), codes(fem), kid, mentor])[::4]


@reread("mixtures", _pub)
def zero_inflated(ppl, y, X):
    """Articles of biochemists, some of whom write none."""
    b = ppl.normals("b", 4, 5.0)
    g = ppl.normals("g", 2, 5.0)
    rate = ppl.exp(X @ b)
    gate = 1 / (1 + ppl.exp(-(g[0] + g[1] * X[:, 3])))
    lp = ppl.Poisson(rate).log_prob(y) + ppl.log1p(-gate)
    zero = ppl.log(gate + (1 - gate) * ppl.exp(-rate))
    ppl.factor("rows", ppl.where(y == 0, zero, lp).sum())


def _gehan() -> tuple:
    time, cens, treat = columns("MASS", "gehan", "time", "cens", "treat")
    return time, cens, codes(treat).astype(float)


@reread("heavy_tails", _gehan)
def weeks(ppl, t, died, treat):
    """Weeks of remission, some of them censored."""
    k = ppl.sample("k", ppl.HalfCauchy(2.0))
    b = ppl.normals("b", 2, 10.0)
    z = (t / ppl.exp(b[0] + b[1] * treat)) ** k
    ppl.factor("rows", (died * (ppl.log(k) + ppl.log(z) - ppl.log(t)) - z).sum())


def _ar() -> tuple:
    r = np.random.default_rng(91)
    y = [50.0, 52.0]
    for _ in range(90):
        y.append(10 + 1.3 * y[-1] - 0.5 * y[-2] + 3 * r.normal())
    return (np.array(y),)


@reread("dynamic_supports", _ar)
def triangle(ppl, y):
    """An autoregression in the triangle where it is stationary."""
    b = ppl.sample("b", ppl.Uniform(-1.0, 1.0))
    a, c = ppl.draws(a=ppl.Uniform(b - 1.0, 1.0 - b), c=ppl.Normal(0.0, 100.0))
    s = ppl.sample("s", ppl.HalfCauchy(10.0))
    with ppl.plate("rows", len(y) - 2):
        ppl.sample("y", ppl.Normal(c + a * y[1:-1] + b * y[:-2], s), obs=y[2:])


def _decay() -> tuple:
    r = np.random.default_rng(92)
    t = np.arange(0, 60, 1.5)
    return t, r.poisson(900 * np.exp(-0.3 * t) + 150 * np.exp(-0.03 * t) + 20).astype(float)


@reread("dynamics", _decay)
def decays(ppl, t, y):
    """Two decays above a background, which can change places."""
    amp = ppl.sample("amp", ppl.LogNormal(5.0, 2.0).expand([2]).to_event(1))
    rate = ppl.sample("rate", ppl.LogNormal(-2.0, 1.5).expand([2]).to_event(1))
    bg = ppl.sample("bg", ppl.HalfNormal(50.0))
    ppl.rows(ppl.Poisson(amp[0] * ppl.exp(-rate[0] * t) + amp[1] * ppl.exp(-rate[1] * t) + bg), y)


def _school() -> tuple:
    r = np.random.default_rng(93)
    g = np.repeat(np.arange(15), 6)
    x = r.uniform(0, 100, 90)
    u = r.normal(size=(15, 2))
    return x, g, 1200 + 8 * x + u[g, 0] * 200 + u[g, 1] * 3 * x + 150 * r.standard_t(3, size=90)


@reread("raw_scale", _school)
def slopes(ppl, x, g, y):
    """Starts and slopes of fifteen groups, heavy-tailed noise."""
    mu = ppl.normals("mu", 2, 1000.0)
    tau, s = ppl.draws(tau=ppl.HalfCauchy(100.0).expand([2]).to_event(1), s=ppl.HalfCauchy(100.0))
    nu = ppl.sample("nu", ppl.Gamma(2.0, 0.1))
    with ppl.plate("groups", 15):
        u, v = ppl.draws(u=ppl.Normal(0.0, tau[0]), v=ppl.Normal(0.0, tau[1]))
    ppl.rows(ppl.StudentT(nu, mu[0] + u[g] + (mu[1] + v[g]) * x, s), y)


def _pass() -> tuple:
    t, y = columns("datasets", "AirPassengers", "time", "value")
    return t[:96], 1000 * y[:96]


@reread("raw_scale", _pass)
def flights(ppl, t, y):
    """Passengers by the month, a line and a wave of unknown period."""
    period = ppl.sample("period", ppl.LogNormal(0.0, 1.0))
    w = ppl.normals("w", 2, 1e5)
    line = ppl.normals("line", 2, 3e5)
    s = ppl.sample("s", ppl.HalfCauchy(5e4))
    a = 2 * PI * (t - 1949.0) / period
    ppl.rows(
        ppl.Normal(line[0] + line[1] * (t - 1953.0) / 4 + w[0] * ppl.sin(a) + w[1] * ppl.cos(a), s),
        y,
    )


def _warp() -> tuple:
    b, w, t = columns("datasets", "warpbreaks", "breaks", "wool", "tension")
    return b, codes(w), codes(t)


@reread("plain", _warp)
def breaks(ppl, y, w, t):
    """Six means of counts with a scale in common."""
    m = ppl.normals("m", 6, 10.0)
    phi, tau = ppl.draws(phi=ppl.HalfCauchy(10.0), tau=ppl.HalfNormal(1.0))
    c = ppl.sample("c", ppl.Normal(0.0, 10.0))
    mean = ppl.exp(c + tau * m[w * 3 + t])
    ppl.rows(ppl.GammaPoisson(phi, phi / mean), y)


def _mix() -> tuple:
    r = np.random.default_rng(55)
    x = r.uniform(0, 10, 80)
    z = r.random(80) < 0.3
    return x, np.where(z, 40 - 3 * x, 5 + 2 * x) + r.normal(size=80) * 2


@reread("mixtures", _mix)
def two_lines(ppl, x, y):
    """Two lines, each with noise of its own."""
    p = ppl.sample("p", ppl.Beta(1.0, 1.0))
    a = ppl.normals("a", 2, 30.0)
    b = ppl.normals("b", 2, 5.0)
    s = ppl.sample("s", ppl.HalfCauchy(5.0).expand([2]).to_event(1))
    one = ppl.Normal(a[0] + b[0] * x, s[0]).log_prob(y) + ppl.log(p)
    two = ppl.Normal(a[1] + b[1] * x, s[1]).log_prob(y) + ppl.log1p(-p)
    ppl.factor("rows", ppl.logaddexp(one, two).sum())
