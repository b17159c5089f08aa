"""Regressions and series of real data, as people write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .everyday import everyday, floats
from .registry import table


def _smoking() -> tuple:
    d = table("asaur", "pharmacoSmoking")
    t = floats(d.ttr)
    return (
        np.maximum(t, 0.5),
        floats(d.relapse),
        floats(d.age),
        floats(d.grp == "combination"),
        floats(d.yearsSmoking),
    )


@everyday(_smoking)
def smoking(ppl: Any, t, event, age, combo, years):
    """Time to relapse, Weibull with censoring, raw ages."""
    dist = ppl.dist
    b0 = ppl.sample("b0", dist.Normal(0.0, 10.0))
    ba = ppl.sample("ba", dist.Normal(0.0, 1.0))
    bc = ppl.sample("bc", dist.Normal(0.0, 2.0))
    by = ppl.sample("by", dist.Normal(0.0, 1.0))
    k = ppl.sample("k", dist.HalfNormal(2.0))
    scale = ppl.np.exp(b0 + ba * age + bc * combo + by * years)
    ppl.factor(
        "likelihood",
        (event * dist.Weibull(scale, k).log_prob(t) - (1 - event) * (t / scale) ** k).sum(),
    )


def _housing() -> tuple:
    d = table("MASS", "housing")
    d = d.loc[d.index.repeat(d.Freq)]
    levels = {"Low": 0, "Medium": 1, "High": 2}
    return (
        np.column_stack(
            [
                floats(d.Infl == "Medium"),
                floats(d.Infl == "High"),
                floats(d.Type == "Apartment"),
                floats(d.Type == "Atrium"),
                floats(d.Type == "Terrace"),
                floats(d.Cont == "High"),
            ]
        ),
        d.Sat.map(levels).to_numpy(int),
    )


@everyday(_housing)
def housing(ppl: Any, X, y):
    """Satisfaction, ordered logits."""
    dist = ppl.dist
    with ppl.plate("cols", 6):
        b = ppl.sample("b", dist.Normal(0.0, 5.0))
    c = ppl.sample(
        "c",
        dist.TransformedDistribution(
            dist.Normal(ppl.array(np.zeros(2)), 5.0).to_event(1), dist.transforms.OrderedTransform()
        ),
    )
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.OrderedLogistic(X @ b, c), obs=y)


def _phones() -> tuple:
    d = table("MASS", "phones")
    return floats(d.year), floats(d.calls)


@everyday(_phones)
def phones(ppl: Any, x, y):
    """Calls by year with outliers."""
    dist = ppl.dist
    a = ppl.sample("a", dist.Normal(0.0, 500.0))
    b = ppl.sample("b", dist.Normal(0.0, 10.0))
    s = ppl.sample("s", dist.HalfCauchy(10.0))
    nu = ppl.sample("nu", dist.Gamma(2.0, 0.1))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(nu, a + b * x, s), obs=y)


def _puromycin() -> tuple:
    d = table("datasets", "Puromycin")
    return floats(d.conc), floats(d.rate), floats(d.state == "treated")


@everyday(_puromycin)
def puromycin(ppl: Any, c, y, t):
    """Michaelis-Menten, raw."""
    dist = ppl.dist
    v = ppl.sample("v", dist.HalfNormal(300.0))
    k = ppl.sample("k", dist.HalfNormal(1.0))
    dv = ppl.sample("dv", dist.Normal(0.0, 50.0))
    dk = ppl.sample("dk", dist.Normal(0.0, 0.1))
    s = ppl.sample("s", dist.HalfCauchy(10.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal((v + dv * t) * c / (k * ppl.np.exp(dk * t) + c), s), obs=y)


def _zip_art() -> tuple:
    d = table("pscl", "bioChemists")
    return np.column_stack(
        [
            floats(d.fem == "Women"),
            floats(d.mar == "Married"),
            floats(d.kid5),
            floats(d.phd),
            floats(d.ment),
        ]
    ), floats(d.art)


@everyday(_zip_art)
def zip_art(ppl: Any, X, y):
    """Articles, zero-inflated, raw covariates."""
    dist = ppl.dist
    with ppl.plate("cols", 5):
        b = ppl.sample("b", dist.Normal(0.0, 1.0))
        g = ppl.sample("g", dist.Normal(0.0, 1.0))
    b0 = ppl.sample("b0", dist.Normal(0.0, 2.0))
    g0 = ppl.sample("g0", dist.Normal(0.0, 2.0))
    with ppl.plate("rows", len(y)):
        ppl.sample(
            "y",
            dist.ZeroInflatedPoisson(
                gate=1 / (1 + ppl.np.exp(-(g0 + X @ g))), rate=ppl.np.exp(b0 + X @ b)
            ),
            obs=y,
        )


def _melanoma() -> tuple:
    d = table("MASS", "Melanoma")
    return (
        floats(d.time) / 365.0,
        floats(d.status == 1),
        np.column_stack(
            [floats(d.sex), (floats(d.age) - 50) / 10, np.log(floats(d.thickness)), floats(d.ulcer)]
        ),
    )


@everyday(_melanoma)
def melanoma(ppl: Any, t, event, X):
    """Survival, log-logistic with censoring."""
    dist = ppl.dist
    with ppl.plate("cols", 4):
        b = ppl.sample("b", dist.Normal(0.0, 2.0))
    b0 = ppl.sample("b0", dist.Normal(2.0, 2.0))
    k = ppl.sample("k", dist.LogNormal(0.0, 1.0))
    z = k * (ppl.np.log(t) - b0 - X @ b)
    ppl.factor(
        "likelihood",
        (
            event * (ppl.np.log(k) + z - ppl.np.log(t)) - (1 + event) * ppl.np.log1p(ppl.np.exp(z))
        ).sum(),
    )


def _salaries() -> tuple:
    d = table("carData", "Salaries")
    return np.column_stack(
        [
            floats(d["rank"] == "AssocProf"),
            floats(d["rank"] == "Prof"),
            floats(d.discipline == "B"),
            floats(d["yrs.since.phd"]),
            floats(d["yrs.service"]),
            floats(d.sex == "Male"),
        ]
    ), floats(d.salary)


@everyday(_salaries)
def salaries(ppl: Any, X, y):
    """Salaries in dollars."""
    dist = ppl.dist
    b0 = ppl.sample("b0", dist.Normal(80000.0, 50000.0))
    s = ppl.sample("s", dist.HalfCauchy(20000.0))
    with ppl.plate("cols", 6):
        b = ppl.sample("b", dist.Normal(0.0, 20000.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(b0 + X @ b, s), obs=y)


def _wage() -> tuple:
    d = table("wooldridge", "wage1")
    return np.column_stack(
        [floats(d[c]) for c in ("educ", "exper", "tenure", "female", "married")]
    ), floats(d.wage)


@everyday(_wage)
def wage(ppl: Any, X, y):
    """Wages, a gamma regression on raw covariates."""
    dist = ppl.dist
    with ppl.plate("cols", 5):
        b = ppl.sample("b", dist.Normal(0.0, 1.0))
    b0 = ppl.sample("b0", dist.Normal(0.0, 5.0))
    k = ppl.sample("k", dist.HalfCauchy(5.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Gamma(k, k / ppl.np.exp(b0 + X @ b)), obs=y)


def _menarche() -> tuple:
    d = table("MASS", "menarche")
    return floats(d.Age), floats(d.Total), floats(d.Menarche)


@everyday(_menarche)
def menarche(ppl: Any, x, n, y):
    """Age of menarche, raw."""
    dist = ppl.dist
    a = ppl.sample("a", dist.Normal(0.0, 50.0))
    b = ppl.sample("b", dist.Normal(0.0, 10.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Binomial(n, logits=a + b * x), obs=y)


def _ozone() -> tuple:
    d = table("datasets", "airquality").dropna()
    x = floats(d[["Solar.R", "Wind", "Temp"]])
    X = (x - x.mean(0)) / x.std(0)
    Z = np.column_stack([X, X**2, X[:, [0]] * X[:, 1:], X[:, 1] * X[:, 2]])
    return Z, floats(d.Ozone)


@everyday(_ozone)
def ozone(ppl: Any, Z, y):
    """Ozone, Laplace prior on a quadratic."""
    dist = ppl.dist
    lam = ppl.sample("lam", dist.HalfCauchy(10.0))
    s = ppl.sample("s", dist.HalfCauchy(20.0))
    b0 = ppl.sample("b0", dist.Normal(40.0, 40.0))
    with ppl.plate("cols", Z.shape[1]):
        b = ppl.sample("b", dist.Laplace(0.0, lam))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(b0 + Z @ b, s), obs=y)


def _visits() -> tuple:
    d = table("AER", "DoctorVisits").iloc[::8]
    return np.column_stack(
        [
            floats(d.gender == "female"),
            floats(d.age),
            floats(d.income),
            floats(d.illness),
            floats(d.reduced),
            floats(d.health),
        ]
    ), floats(d.visits)


@everyday(_visits)
def visits(ppl: Any, X, y):
    """Visits to doctors, negative binomial."""
    dist = ppl.dist
    with ppl.plate("cols", 6):
        b = ppl.sample("b", dist.Normal(0.0, 2.0))
    b0 = ppl.sample("b0", dist.Normal(0.0, 5.0))
    c = ppl.sample("c", dist.HalfCauchy(1.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.GammaPoisson(c, c / ppl.np.exp(b0 + X @ b)), obs=y)


def _huron() -> tuple:
    d = table("datasets", "LakeHuron")
    return (floats(d.value),)


@everyday(_huron)
def huron(ppl: Any, y):
    """Level of Lake Huron, AR(2), raw."""
    dist = ppl.dist
    c = ppl.sample("c", dist.Normal(100.0, 300.0))
    a1 = ppl.sample("a1", dist.Normal(0.0, 1.0))
    a2 = ppl.sample("a2", dist.Normal(0.0, 1.0))
    s = ppl.sample("s", dist.HalfNormal(5.0))
    with ppl.plate("rows", len(y) - 2):
        ppl.sample("y", dist.Normal(c + a1 * y[1:-1] + a2 * y[:-2], s), obs=y[2:])


def _discoveries() -> tuple:
    d = table("datasets", "discoveries")
    return (floats(d.value),)


@everyday(_discoveries)
def discoveries(ppl: Any, y):
    """Great discoveries, a random walk not centred."""
    dist = ppl.dist
    n = len(y)
    s = ppl.sample("s", dist.HalfNormal(0.5))
    m = ppl.sample("m", dist.Normal(1.0, 1.0))
    with ppl.plate("steps", n):
        e = ppl.sample("e", dist.Normal(0.0, 1.0))
    x = m + s * ppl.np.cumsum(e, 0)
    with ppl.plate("rows", n):
        ppl.sample("y", dist.Poisson(ppl.np.exp(x)), obs=y)


def _mcycle() -> tuple:
    d = table("MASS", "mcycle").drop_duplicates("times")
    knots = np.linspace(2, 58, 15)
    B = np.exp(-0.5 * ((floats(d.times)[:, None] - knots) / 4.0) ** 2)
    return B, floats(d.accel)


@everyday(_mcycle)
def mcycle(ppl: Any, B, y):
    """Acceleration of a helmet, radial basis functions."""
    dist = ppl.dist
    s = ppl.sample("s", dist.HalfNormal(100.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(50.0))
    m = ppl.sample("m", dist.Normal(0.0, 50.0))
    with ppl.plate("knots", 15):
        w = ppl.sample("w", dist.Normal(0.0, s))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(m + B @ w, sigma), obs=y)
