"""Hierarchies of real data, as people write them."""

import numpy as np
import pandas as pd

from .entries import everyday, floats, levels, table


def _bodyweight() -> tuple:
    d = table("nlme", "BodyWeight")
    g = d.groupby("Rat").Diet.first().reindex(pd.unique(d.Rat))
    return levels(d.Rat), levels(g), floats(d.Time), floats(d.weight)


@everyday(_bodyweight)
def bodyweight(ppl, rat, diet, t, y):
    """Rats' weights by diet, a line for each."""
    with ppl.plate("diets", 3):
        m, g = ppl.draws(m=ppl.Normal(400.0, 200.0), g=ppl.Normal(0.0, 5.0))
    s_a, s_b = ppl.draws(s_a=ppl.HalfCauchy(50.0), s_b=ppl.HalfCauchy(2.0))
    sigma = ppl.sample("sigma", ppl.HalfCauchy(20.0))
    with ppl.plate("rats", 16):
        a, b = ppl.draws(a=ppl.Normal(m[diet], s_a), b=ppl.Normal(g[diet], s_b))
    ppl.rows(ppl.Normal(a[rat] + b[rat] * t, sigma), y)


def _grouseticks() -> tuple:
    d = table("lme4", "grouseticks")
    return (
        levels(d.LOCATION),
        floats(d.YEAR == 96),
        floats(d.YEAR == 97),
        floats(d.HEIGHT),
        floats(d.TICKS),
    )


@everyday(_grouseticks)
def grouseticks(ppl, loc, y96, y97, height, y):
    """Ticks on grouse chicks by location."""
    a0, b96 = ppl.draws(a0=ppl.Normal(0.0, 10.0), b96=ppl.Normal(0.0, 2.0))
    b97, bh, s = ppl.draws(b97=ppl.Normal(0.0, 2.0), bh=ppl.Normal(0.0, 1.0), s=ppl.HalfNormal(2.0))
    conc = ppl.sample("conc", ppl.Gamma(2.0, 0.5))
    with ppl.plate("locs", 63):
        a = ppl.sample("a", ppl.Normal(a0, s))
    mean = ppl.exp(a[loc] + b96 * y96 + b97 * y97 + bh * height)
    ppl.rows(ppl.GammaPoisson(conc, conc / mean), y)


def _contraception() -> tuple:
    d = table("mlmRev", "Contraception")
    return (
        levels(d.district),
        floats(d.urban == "Y"),
        floats(d.age),
        floats(d.livch != "0"),
        floats(d.use == "Y"),
    )


@everyday(_contraception)
def contraception(ppl, dis, urban, age, kids, y):
    """Use of contraception in sixty districts, two effects each."""
    a0, b0 = ppl.draws(a0=ppl.Normal(0.0, 5.0), b0=ppl.Normal(0.0, 5.0))
    ba, ba2 = ppl.draws(ba=ppl.Normal(0.0, 1.0), ba2=ppl.Normal(0.0, 1.0))
    bk, sa, sb = ppl.draws(bk=ppl.Normal(0.0, 5.0), sa=ppl.HalfCauchy(1.0), sb=ppl.HalfCauchy(1.0))
    with ppl.plate("districts", 60):
        a, b = ppl.draws(a=ppl.Normal(a0, sa), b=ppl.Normal(b0, sb))
    ppl.rows(ppl.Bernoulli(logits=a[dis] + b[dis] * urban + ba * age + ba2 * age**2 + bk * kids), y)


def _fatalities() -> tuple:
    d = table("AER", "Fatalities")
    return levels(d.state), floats(d.beertax), floats(d.unemp), floats(d.fatal)


@everyday(_fatalities)
def fatalities(ppl, st, tax, unemp, y):
    """Traffic deaths, two effects by state."""
    a0, b0 = ppl.draws(a0=ppl.Normal(0.0, 10.0), b0=ppl.Normal(0.0, 1.0))
    bj, sa, sb = ppl.draws(bj=ppl.Normal(0.0, 1.0), sa=ppl.HalfNormal(2.0), sb=ppl.HalfNormal(1.0))
    conc = ppl.sample("conc", ppl.HalfCauchy(50.0))
    with ppl.plate("states", 48):
        a, b = ppl.draws(a=ppl.Normal(a0, sa), b=ppl.Normal(b0, sb))
    mean = ppl.exp(a[st] + b[st] * tax + bj * unemp)
    ppl.rows(ppl.GammaPoisson(conc, conc / mean), y)


def _orange() -> tuple:
    d = table("datasets", "Orange")
    return levels(d.Tree), floats(d.age), floats(d.circumference)


@everyday(_orange)
def orange(ppl, g, age, y):
    """Orange trees, logistic growth, in days and millimetres."""
    asym, mid = ppl.draws(asym=ppl.Normal(200.0, 50.0), mid=ppl.Normal(700.0, 200.0))
    sc, s = ppl.draws(sc=ppl.LogNormal(5.8, 0.5), s=ppl.HalfNormal(50.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(20.0))
    with ppl.plate("trees", 5):
        a = ppl.sample("a", ppl.Normal(asym, s))
    ppl.rows(ppl.Normal(a[g] / (1 + ppl.exp(-(age - mid) / sc)), sigma), y)


def _chicks() -> tuple:
    d = table("datasets", "ChickWeight")
    g = d.groupby("Chick").Diet.first().reindex(pd.unique(d.Chick))
    return levels(d.Chick), levels(g), floats(d.Time), np.log(floats(d.weight))


@everyday(_chicks)
def chicks(ppl, c, diet, t, y):
    """Chicks' weights by diet, two effects each."""
    with ppl.plate("diets", 4):
        b = ppl.sample("b", ppl.Normal(0.0, 1.0))
    a0, sa, sb = ppl.draws(a0=ppl.Normal(4.0, 1.0), sa=ppl.HalfNormal(1.0), sb=ppl.HalfNormal(0.1))
    s = ppl.sample("s", ppl.HalfNormal(1.0))
    with ppl.plate("chicks", 50):
        a, e = ppl.draws(a=ppl.Normal(a0, sa), e=ppl.Normal(0.0, sb))
    ppl.rows(ppl.Normal(a[c] + (b[diet][c] + e[c]) * t, s), y)


def _exam() -> tuple:
    d = table("mlmRev", "Exam")
    return levels(d.school), floats(d.standLRT), floats(d.sex == "M"), floats(d.normexam)


@everyday(_exam)
def exam(ppl, g, x, male, y):
    """Exam scores in 65 schools, Student-t."""
    a0, b0 = ppl.draws(a0=ppl.Normal(0.0, 1.0), b0=ppl.Normal(0.0, 1.0))
    bm, sa, sb = ppl.draws(bm=ppl.Normal(0.0, 1.0), sa=ppl.HalfCauchy(1.0), sb=ppl.HalfCauchy(1.0))
    s, nu = ppl.draws(s=ppl.HalfNormal(1.0), nu=ppl.Gamma(2.0, 0.1))
    with ppl.plate("schools", 65):
        a, b = ppl.draws(a=ppl.Normal(a0, sa), b=ppl.Normal(b0, sb))
    ppl.rows(ppl.StudentT(nu, a[g] + b[g] * x + bm * male, s), y)


def _theoph() -> tuple:
    d = table("datasets", "Theoph")
    d = d[d.Time > 0]
    return (
        levels(d.Subject),
        floats(d.groupby("Subject", sort=False).Dose.first()),
        floats(d.Time),
        floats(d.conc),
    )


@everyday(_theoph)
def theoph(ppl, g, dose, t, y):
    """Theophylline, one compartment, not centred."""
    ka, ke = ppl.draws(ka=ppl.Normal(0.5, 1.0), ke=ppl.Normal(-2.5, 1.0))
    cl = ppl.sample("cl", ppl.Normal(-3.0, 1.0))
    with ppl.plate("pars", 2):
        sd = ppl.sample("sd", ppl.HalfNormal(0.5))
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    with ppl.plate("subjects", 12):
        za, zc = ppl.draws(za=ppl.Normal(0.0, 1.0), zc=ppl.Normal(0.0, 1.0))
    A = ppl.exp(ka + sd[0] * za)[g]
    C = ppl.exp(cl + sd[1] * zc)[g]
    K = ppl.exp(ke)
    ppl.rows(
        ppl.Normal(dose[g] * K * A / (C * (A - K)) * (ppl.exp(-K * t) - ppl.exp(-A * t)), sigma), y
    )


def _sleep_lkj() -> tuple:
    d = table("lme4", "sleepstudy")
    return levels(d.Subject), floats(d.Days), floats(d.Reaction)


@everyday(_sleep_lkj)
def sleep_lkj(ppl, g, x, y):
    """Sleep deprivation, correlated effects."""
    m = ppl.sample(
        "m",
        ppl.Normal(ppl.array(np.array([250.0, 10.0])), ppl.array(np.array([100.0, 10.0]))).to_event(
            1
        ),
    )
    sd = ppl.sample("sd", ppl.HalfNormal(ppl.array(np.array([50.0, 10.0]))).to_event(1))
    L, sigma = ppl.draws(L=ppl.LKJCholesky(2, ppl.array(np.array(2.0))), sigma=ppl.HalfNormal(50.0))
    with ppl.plate("subjects", 18):
        z = ppl.sample("z", ppl.MultivariateNormal(m, scale_tril=sd[:, None] * L))
    ppl.rows(ppl.Normal(z[g, 0] + z[g, 1] * x, sigma), y)


def _oxboys_mm() -> tuple:
    d = table("nlme", "Oxboys")
    return levels(d.Subject), floats(d.age), floats(d.height) * 10  # millimetres


@everyday(_oxboys_mm)
def oxboys_mm(ppl, g, age, y):
    """Boys' heights in millimetres, two effects each."""
    m, b0 = ppl.draws(m=ppl.Normal(1500.0, 500.0), b0=ppl.Normal(0.0, 100.0))
    sa, sb, s = ppl.draws(sa=ppl.HalfNormal(200.0), sb=ppl.HalfNormal(50.0), s=ppl.HalfNormal(50.0))
    with ppl.plate("boys", 26):
        a, b = ppl.draws(a=ppl.Normal(m, sa), b=ppl.Normal(b0, sb))
    ppl.rows(ppl.Normal(a[g] + b[g] * age, s), y)


def _sprays() -> tuple:
    d = table("datasets", "InsectSprays")
    return levels(d.spray), floats(d["count"])


@everyday(_sprays)
def sprays(ppl, g, y):
    """Insects by spray, negative binomial."""
    m, s, c = ppl.draws(m=ppl.Normal(0.0, 3.0), s=ppl.HalfNormal(2.0), c=ppl.Exponential(0.1))
    with ppl.plate("sprays", 6):
        a = ppl.sample("a", ppl.Normal(m, s))
    r = ppl.exp(a[g])
    ppl.rows(ppl.GammaPoisson(c, c / r), y)


def _seizures() -> tuple:
    d = table("MASS", "epil")
    return levels(d.subject), floats(d.trt == "progabide"), floats(np.log(d.base / 4)), floats(d.y)


@everyday(_seizures)
def seizures(ppl, g, t, b, y):
    """Seizures by patient."""
    b0, bt = ppl.draws(b0=ppl.Normal(0.0, 2.0), bt=ppl.Normal(0.0, 1.0))
    bb, s = ppl.draws(bb=ppl.Normal(0.0, 1.0), s=ppl.HalfCauchy(1.0))
    with ppl.plate("subjects", 59):
        a = ppl.sample("a", ppl.Normal(0.0, s))
    ppl.rows(ppl.Poisson(ppl.exp(b0 + bt * t + bb * b + a[g])), y)
