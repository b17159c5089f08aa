"""Hierarchies of real data, as people write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from .everyday import codes, everyday, floats
from .registry import table


def _bodyweight() -> tuple:
    d = table("nlme", "BodyWeight")
    g = d.groupby("Rat").Diet.first().reindex(pd.unique(d.Rat))
    return codes(d.Rat), codes(g), floats(d.Time), floats(d.weight)


@everyday(_bodyweight)
def bodyweight(ppl: Any, rat, diet, t, y):
    """Rats' weights by diet, a line for each."""
    dist = ppl.dist
    with ppl.plate("diets", 3):
        m = ppl.sample("m", dist.Normal(400.0, 200.0))
        g = ppl.sample("g", dist.Normal(0.0, 5.0))
    s_a = ppl.sample("s_a", dist.HalfCauchy(50.0))
    s_b = ppl.sample("s_b", dist.HalfCauchy(2.0))
    sigma = ppl.sample("sigma", dist.HalfCauchy(20.0))
    with ppl.plate("rats", 16):
        a = ppl.sample("a", dist.Normal(m[diet], s_a))
        b = ppl.sample("b", dist.Normal(g[diet], s_b))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(a[rat] + b[rat] * t, sigma), obs=y)


def _grouseticks() -> tuple:
    d = table("lme4", "grouseticks")
    return (
        codes(d.LOCATION),
        floats(d.YEAR == 96),
        floats(d.YEAR == 97),
        floats(d.HEIGHT),
        floats(d.TICKS),
    )


@everyday(_grouseticks)
def grouseticks(ppl: Any, loc, y96, y97, height, y):
    """Ticks on grouse chicks by location."""
    dist = ppl.dist
    a0 = ppl.sample("a0", dist.Normal(0.0, 10.0))
    b96 = ppl.sample("b96", dist.Normal(0.0, 2.0))
    b97 = ppl.sample("b97", dist.Normal(0.0, 2.0))
    bh = ppl.sample("bh", dist.Normal(0.0, 1.0))
    s = ppl.sample("s", dist.HalfNormal(2.0))
    conc = ppl.sample("conc", dist.Gamma(2.0, 0.5))
    with ppl.plate("locs", 63):
        a = ppl.sample("a", dist.Normal(a0, s))
    with ppl.plate("rows", len(y)):
        mean = ppl.np.exp(a[loc] + b96 * y96 + b97 * y97 + bh * height)
        ppl.sample("y", dist.GammaPoisson(conc, conc / mean), obs=y)


def _contraception() -> tuple:
    d = table("mlmRev", "Contraception")
    return (
        codes(d.district),
        floats(d.urban == "Y"),
        floats(d.age),
        floats(d.livch != "0"),
        floats(d.use == "Y"),
    )


@everyday(_contraception)
def contraception(ppl: Any, dis, urban, age, kids, y):
    """Use of contraception in sixty districts, two effects each."""
    dist = ppl.dist
    a0 = ppl.sample("a0", dist.Normal(0.0, 5.0))
    b0 = ppl.sample("b0", dist.Normal(0.0, 5.0))
    ba = ppl.sample("ba", dist.Normal(0.0, 1.0))
    ba2 = ppl.sample("ba2", dist.Normal(0.0, 1.0))
    bk = ppl.sample("bk", dist.Normal(0.0, 5.0))
    sa = ppl.sample("sa", dist.HalfCauchy(1.0))
    sb = ppl.sample("sb", dist.HalfCauchy(1.0))
    with ppl.plate("districts", 60):
        a = ppl.sample("a", dist.Normal(a0, sa))
        b = ppl.sample("b", dist.Normal(b0, sb))
    with ppl.plate("rows", len(y)):
        ppl.sample(
            "y",
            dist.Bernoulli(logits=a[dis] + b[dis] * urban + ba * age + ba2 * age**2 + bk * kids),
            obs=y,
        )


def _fatalities() -> tuple:
    d = table("AER", "Fatalities")
    return codes(d.state), floats(d.beertax), floats(d.unemp), floats(d.fatal)


@everyday(_fatalities)
def fatalities(ppl: Any, st, tax, unemp, y):
    """Traffic deaths, two effects by state."""
    dist = ppl.dist
    a0 = ppl.sample("a0", dist.Normal(0.0, 10.0))
    b0 = ppl.sample("b0", dist.Normal(0.0, 1.0))
    bj = ppl.sample("bj", dist.Normal(0.0, 1.0))
    sa = ppl.sample("sa", dist.HalfNormal(2.0))
    sb = ppl.sample("sb", dist.HalfNormal(1.0))
    conc = ppl.sample("conc", dist.HalfCauchy(50.0))
    with ppl.plate("states", 48):
        a = ppl.sample("a", dist.Normal(a0, sa))
        b = ppl.sample("b", dist.Normal(b0, sb))
    with ppl.plate("rows", len(y)):
        mean = ppl.np.exp(a[st] + b[st] * tax + bj * unemp)
        ppl.sample("y", dist.GammaPoisson(conc, conc / mean), obs=y)


def _orange() -> tuple:
    d = table("datasets", "Orange")
    return codes(d.Tree), floats(d.age), floats(d.circumference)


@everyday(_orange)
def orange(ppl: Any, g, age, y):
    """Orange trees, logistic growth, in days and millimetres."""
    dist = ppl.dist
    asym = ppl.sample("asym", dist.Normal(200.0, 50.0))
    mid = ppl.sample("mid", dist.Normal(700.0, 200.0))
    sc = ppl.sample("sc", dist.LogNormal(5.8, 0.5))
    s = ppl.sample("s", dist.HalfNormal(50.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(20.0))
    with ppl.plate("trees", 5):
        a = ppl.sample("a", dist.Normal(asym, s))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(a[g] / (1 + ppl.np.exp(-(age - mid) / sc)), sigma), obs=y)


def _chicks() -> tuple:
    d = table("datasets", "ChickWeight")
    g = d.groupby("Chick").Diet.first().reindex(pd.unique(d.Chick))
    return codes(d.Chick), codes(g), floats(d.Time), np.log(floats(d.weight))


@everyday(_chicks)
def chicks(ppl: Any, c, diet, t, y):
    """Chicks' weights by diet, two effects each."""
    dist = ppl.dist
    with ppl.plate("diets", 4):
        b = ppl.sample("b", dist.Normal(0.0, 1.0))
    a0 = ppl.sample("a0", dist.Normal(4.0, 1.0))
    sa = ppl.sample("sa", dist.HalfNormal(1.0))
    sb = ppl.sample("sb", dist.HalfNormal(0.1))
    s = ppl.sample("s", dist.HalfNormal(1.0))
    with ppl.plate("chicks", 50):
        a = ppl.sample("a", dist.Normal(a0, sa))
        e = ppl.sample("e", dist.Normal(0.0, sb))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(a[c] + (b[diet][c] + e[c]) * t, s), obs=y)


def _exam() -> tuple:
    d = table("mlmRev", "Exam")
    return codes(d.school), floats(d.standLRT), floats(d.sex == "M"), floats(d.normexam)


@everyday(_exam)
def exam(ppl: Any, g, x, male, y):
    """Exam scores in 65 schools, Student-t."""
    dist = ppl.dist
    a0 = ppl.sample("a0", dist.Normal(0.0, 1.0))
    b0 = ppl.sample("b0", dist.Normal(0.0, 1.0))
    bm = ppl.sample("bm", dist.Normal(0.0, 1.0))
    sa = ppl.sample("sa", dist.HalfCauchy(1.0))
    sb = ppl.sample("sb", dist.HalfCauchy(1.0))
    s = ppl.sample("s", dist.HalfNormal(1.0))
    nu = ppl.sample("nu", dist.Gamma(2.0, 0.1))
    with ppl.plate("schools", 65):
        a = ppl.sample("a", dist.Normal(a0, sa))
        b = ppl.sample("b", dist.Normal(b0, sb))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(nu, a[g] + b[g] * x + bm * male, s), obs=y)


def _theoph() -> tuple:
    d = table("datasets", "Theoph")
    d = d[d.Time > 0]
    return (
        codes(d.Subject),
        floats(d.groupby("Subject", sort=False).Dose.first()),
        floats(d.Time),
        floats(d.conc),
    )


@everyday(_theoph)
def theoph(ppl: Any, g, dose, t, y):
    """Theophylline, one compartment, not centred."""
    dist = ppl.dist
    ka = ppl.sample("ka", dist.Normal(0.5, 1.0))
    ke = ppl.sample("ke", dist.Normal(-2.5, 1.0))
    cl = ppl.sample("cl", dist.Normal(-3.0, 1.0))
    with ppl.plate("pars", 2):
        sd = ppl.sample("sd", dist.HalfNormal(0.5))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    with ppl.plate("subjects", 12):
        za = ppl.sample("za", dist.Normal(0.0, 1.0))
        zc = ppl.sample("zc", dist.Normal(0.0, 1.0))
    A = ppl.np.exp(ka + sd[0] * za)[g]
    C = ppl.np.exp(cl + sd[1] * zc)[g]
    K = ppl.np.exp(ke)
    with ppl.plate("rows", len(y)):
        ppl.sample(
            "y",
            dist.Normal(
                dose[g] * K * A / (C * (A - K)) * (ppl.np.exp(-K * t) - ppl.np.exp(-A * t)), sigma
            ),
            obs=y,
        )


def _sleep_lkj() -> tuple:
    d = table("lme4", "sleepstudy")
    return codes(d.Subject), floats(d.Days), floats(d.Reaction)


@everyday(_sleep_lkj)
def sleep_lkj(ppl: Any, g, x, y):
    """Sleep deprivation, correlated effects."""
    dist = ppl.dist
    m = ppl.sample(
        "m",
        dist.Normal(
            ppl.array(np.array([250.0, 10.0])), ppl.array(np.array([100.0, 10.0]))
        ).to_event(1),
    )
    sd = ppl.sample("sd", dist.HalfNormal(ppl.array(np.array([50.0, 10.0]))).to_event(1))
    L = ppl.sample("L", dist.LKJCholesky(2, ppl.array(np.array(2.0))))
    sigma = ppl.sample("sigma", dist.HalfNormal(50.0))
    with ppl.plate("subjects", 18):
        z = ppl.sample("z", dist.MultivariateNormal(m, scale_tril=sd[:, None] * L))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(z[g, 0] + z[g, 1] * x, sigma), obs=y)


def _oxboys_mm() -> tuple:
    d = table("nlme", "Oxboys")
    return codes(d.Subject), floats(d.age), floats(d.height) * 10  # millimetres


@everyday(_oxboys_mm)
def oxboys_mm(ppl: Any, g, age, y):
    """Boys' heights in millimetres, two effects each."""
    dist = ppl.dist
    m = ppl.sample("m", dist.Normal(1500.0, 500.0))
    b0 = ppl.sample("b0", dist.Normal(0.0, 100.0))
    sa = ppl.sample("sa", dist.HalfNormal(200.0))
    sb = ppl.sample("sb", dist.HalfNormal(50.0))
    s = ppl.sample("s", dist.HalfNormal(50.0))
    with ppl.plate("boys", 26):
        a = ppl.sample("a", dist.Normal(m, sa))
        b = ppl.sample("b", dist.Normal(b0, sb))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(a[g] + b[g] * age, s), obs=y)


def _sprays() -> tuple:
    d = table("datasets", "InsectSprays")
    return codes(d.spray), floats(d["count"])


@everyday(_sprays)
def sprays(ppl: Any, g, y):
    """Insects by spray, negative binomial."""
    dist = ppl.dist
    m = ppl.sample("m", dist.Normal(0.0, 3.0))
    s = ppl.sample("s", dist.HalfNormal(2.0))
    c = ppl.sample("c", dist.Exponential(0.1))
    with ppl.plate("sprays", 6):
        a = ppl.sample("a", dist.Normal(m, s))
    with ppl.plate("rows", len(y)):
        r = ppl.np.exp(a[g])
        ppl.sample("y", dist.GammaPoisson(c, c / r), obs=y)


def _seizures() -> tuple:
    d = table("MASS", "epil")
    return codes(d.subject), floats(d.trt == "progabide"), floats(np.log(d.base / 4)), floats(d.y)


@everyday(_seizures)
def seizures(ppl: Any, g, t, b, y):
    """Seizures by patient."""
    dist = ppl.dist
    b0 = ppl.sample("b0", dist.Normal(0.0, 2.0))
    bt = ppl.sample("bt", dist.Normal(0.0, 1.0))
    bb = ppl.sample("bb", dist.Normal(0.0, 1.0))
    s = ppl.sample("s", dist.HalfCauchy(1.0))
    with ppl.plate("subjects", 59):
        a = ppl.sample("a", dist.Normal(0.0, s))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Poisson(ppl.np.exp(b0 + bt * t + bb * b + a[g])), obs=y)
