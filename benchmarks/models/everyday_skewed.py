"""Posteriors that are no Gaussians: few rows, scales, tails."""

import numpy as np

from .entries import everyday, floats, levels, standard, table


def _stack() -> tuple:
    d = table("datasets", "stackloss")
    return standard(d[["Air.Flow", "Water.Temp", "Acid.Conc."]]), floats(d["stack.loss"])


@everyday(_stack)
def stack(ppl, X, y):
    """Robust regression, unknown degrees of freedom, 21 rows."""
    nu, s, a = ppl.draws(nu=ppl.Gamma(2.0, 0.1), s=ppl.HalfCauchy(10.0), a=ppl.Normal(17.0, 20.0))
    with ppl.plate("cols", 3):
        b = ppl.sample("b", ppl.Normal(0.0, 10.0))
    ppl.rows(ppl.StudentT(nu, a + X @ b, s), y)


def _orings() -> tuple:
    d = table("DAAG", "orings")
    return (floats(d.Temperature) - 70) / 10, floats(d.Total > 0)


@everyday(_orings)
def orings(ppl, x, y):
    """Logistic regression, 23 rows."""
    a, b = ppl.draws(a=ppl.Normal(0.0, 10.0), b=ppl.Normal(0.0, 10.0))
    ppl.rows(ppl.Bernoulli(logits=a + b * x), y)


def _squirrels() -> tuple:
    d = table("COUNT", "nuts")
    y = floats(d.cones)
    return standard(d[["sntrees", "sheight", "scover"]]), y, floats(y == 0)


@everyday(_squirrels)
def squirrels(ppl, X, y, zero):
    """Zero-inflated negative binomial counts, 52 rows."""
    z, c, a = ppl.draws(z=ppl.Beta(1.0, 1.0), c=ppl.HalfCauchy(2.0), a=ppl.Normal(0.0, 5.0))
    with ppl.plate("cols", 3):
        b = ppl.sample("b", ppl.Normal(0.0, 2.0))
    mean = ppl.exp(a + X @ b)
    with ppl.plate("rows", len(y)):
        of_counts = ppl.exp(ppl.GammaPoisson(c, c / mean).log_prob(y))
        ppl.factor("obs", ppl.log(z * zero + (1 - z) * of_counts))


def _ovarian() -> tuple:
    d = table("survival", "ovarian")
    others = floats(d.rx == 2), floats(d["resid.ds"] == 2)
    return floats(d.futime) / 365, floats(d.fustat), standard(d[["age"]])[:, 0], *others


@everyday(_ovarian)
def ovarian(ppl, t, event, age, rx, rest):
    """Weibull survival with censoring, 26 rows."""
    k, a = ppl.draws(k=ppl.HalfCauchy(2.0), a=ppl.Normal(0.0, 3.0))
    with ppl.plate("cols", 3):
        b = ppl.sample("b", ppl.Normal(0.0, 2.0))
    log_scale = a + b[0] * age + b[1] * rx + b[2] * rest
    with ppl.plate("rows", len(t)):
        log_time = ppl.log(t) - log_scale
        hazard = ppl.log(k) - log_scale + (k - 1) * log_time
        ppl.factor("obs", event * hazard - ppl.exp(k * log_time))


def _respdis() -> tuple:
    d = table("geepack", "respdis")
    y = d[["y1", "y2", "y3", "y4"]].to_numpy(int) - 1
    n = len(d)
    times = np.tile([0.0, 1.0, 2.0, 3.0], n)
    return np.repeat(np.arange(n), 4), np.repeat(floats(d.trt), 4), times, y.reshape(-1)


@everyday(_respdis)
def respdis(ppl, g, treated, t, y):
    """Ordinal ratings, effects of patients."""
    tau, c, w = ppl.draws(tau=ppl.HalfCauchy(2.0), c=ppl.Normal(0.0, 3.0), w=ppl.HalfNormal(3.0))
    b, bt = ppl.draws(b=ppl.Normal(0.0, 2.0), bt=ppl.Normal(0.0, 1.0))
    with ppl.plate("patients", 111):
        u = ppl.sample("u", ppl.Normal(0.0, tau))
    cuts = ppl.stack([c, c + w])
    ppl.rows(ppl.OrderedLogistic(b * treated + bt * t + u[g], cuts), y)


@everyday(lambda: (floats(table("datasets", "nhtemp").value) - 51,))
def nhtemp(ppl, y):
    """A local level."""
    q, s, m0 = ppl.draws(q=ppl.HalfNormal(1.0), s=ppl.HalfNormal(2.0), m0=ppl.Normal(0.0, 3.0))
    with ppl.plate("steps", len(y)):
        e = ppl.sample("e", ppl.Normal(0.0, 1.0))
    level = m0 + q * ppl.cumsum(e, -1)
    ppl.rows(ppl.Normal(level, s), y)


@everyday(lambda: (np.full(18, 45.0), np.round(45 * floats(table("pscl", "EfronMorris").p))))
def batters(ppl, n, y):
    """A beta-binomial model with a Pareto concentration, centred."""
    phi = ppl.sample("phi", ppl.Uniform(0.0, 1.0))
    kappa = ppl.exp(ppl.sample("log_kappa", ppl.Exponential(1.5)))
    with ppl.plate("players", 18):
        theta = ppl.sample("theta", ppl.Beta(phi * kappa, (1 - phi) * kappa))
        ppl.sample("y", ppl.Binomial(n, theta), obs=y)


def _rail() -> tuple:
    d = table("nlme", "Rail")
    return levels(d.Rail), floats(d.travel)


@everyday(_rail)
def rail(ppl, g, y):
    """Six groups on their raw scale, centred."""
    m, tau = ppl.draws(m=ppl.Normal(50.0, 50.0), tau=ppl.HalfCauchy(25.0))
    s = ppl.sample("s", ppl.HalfCauchy(25.0))
    with ppl.plate("rails", 6):
        u = ppl.sample("u", ppl.Normal(m, tau))
    ppl.rows(ppl.Normal(u[g], s), y)


@everyday(lambda: (floats(table("boot", "aircondit").hours),))
def aircon(ppl, y):
    """A gamma of 12 rows."""
    a, m = ppl.draws(a=ppl.HalfCauchy(2.0), m=ppl.LogNormal(4.0, 2.0))
    ppl.rows(ppl.Gamma(a, a / m), y)


def _pastes() -> tuple:
    d = table("lme4", "Pastes")
    batch = levels(d.groupby("sample", sort=False).batch.first())
    return levels(d["sample"]), batch, floats(d.strength)


@everyday(_pastes)
def pastes(ppl, cask, batch, y):
    """Casks within batches."""
    m, sb, sc = ppl.draws(m=ppl.Normal(60.0, 20.0), sb=ppl.HalfCauchy(5.0), sc=ppl.HalfCauchy(5.0))
    s = ppl.sample("s", ppl.HalfCauchy(5.0))
    with ppl.plate("batches", 10):
        b = ppl.sample("bt", ppl.Normal(0.0, sb))
    with ppl.plate("casks", 30):
        c = ppl.sample("c", ppl.Normal(m + b[batch], sc))
    ppl.rows(ppl.Normal(c[cask], s), y)
