"""Responses in hundreds and thousands, priors as wide as that, and group scales: zero on the
unconstrained scale is far from everything.
"""

import numpy as np

from .entries import codes, columns, entry

GROUP = "raw_scale"


def _salaries() -> tuple:
    rng = np.random.default_rng(11)
    group = np.repeat(np.arange(40), 6)
    effect = rng.normal(4200.0, 650.0, 40)
    return rng.normal(effect[group], 310.0), group


@entry(GROUP, _salaries)
def salaries_centred(ppl, y, group):
    mu, tau = ppl.draws(mu=ppl.Normal(0.0, 5000.0), tau=ppl.HalfNormal(1000.0))
    sigma = ppl.sample("sigma", ppl.HalfCauchy(500.0))
    with ppl.plate("groups", 40):
        effect = ppl.sample("effect", ppl.Normal(mu, tau))
    ppl.rows(ppl.Normal(effect[group], sigma), y)


@entry(GROUP, _salaries)
def salaries_offsets(ppl, y, group):
    """Effects around zero with a fixed wide prior each, and a common mean beside them."""
    mu, sigma = ppl.draws(mu=ppl.Normal(0.0, 10_000.0), sigma=ppl.Exponential(1 / 500.0))
    tau = ppl.sample("tau", ppl.Exponential(1 / 500.0))
    with ppl.plate("groups", 40):
        z = ppl.sample("z", ppl.Normal(0.0, 1.0))
    ppl.rows(ppl.Normal(mu + tau * z[group], sigma), y)


def _wages() -> tuple:
    wage, education, experience = columns("AER", "CPS1988", "wage", "education", "experience")
    rows = np.random.default_rng(3).choice(len(wage), 400, replace=False)
    X = np.column_stack([np.ones(400), education[rows], experience[rows], experience[rows] ** 2])
    return X, wage[rows]


@entry(GROUP, _wages)
def wages(ppl, X, y):
    """Raw columns, up to the square of the experience."""
    beta = ppl.normals("beta", X.shape[1], 1000.0)
    sigma = ppl.sample("sigma", ppl.HalfCauchy(1000.0))
    ppl.rows(ppl.Normal(X @ beta, sigma), y)


def _investments() -> tuple:
    firm, value, capital, inv = columns("plm", "Grunfeld", "firm", "value", "capital", "inv")
    return codes(firm), value, capital, inv


@entry(GROUP, _investments)
def investments(ppl, firm, value, capital, y):
    mu, tau = ppl.draws(mu=ppl.Normal(0.0, 500.0), tau=ppl.HalfNormal(500.0))
    slopes = ppl.normals("slopes", 2, 10.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(500.0))
    with ppl.plate("firms", 10):
        effect = ppl.sample("effect", ppl.Normal(mu, tau))
    mean = effect[firm] + slopes[0] * value + slopes[1] * capital
    ppl.rows(ppl.Normal(mean, sigma), y)


def _houses() -> tuple:
    names = ("crim", "nox", "rm", "age", "dis", "tax", "ptratio", "black", "lstat")
    X = np.column_stack(columns("MASS", "Boston", *names))
    (price,) = columns("MASS", "Boston", "medv")
    return np.column_stack([np.ones(len(X)), X]), 1000 * price


@entry(GROUP, _houses)
def houses(ppl, X, y):
    beta = ppl.normals("beta", X.shape[1], 10_000.0)
    sigma = ppl.sample("sigma", ppl.LogNormal(8.0, 2.0))
    ppl.rows(ppl.StudentT(5.0, X @ beta, sigma), y)


def _reactions() -> tuple:
    reaction, days, subject = columns("lme4", "sleepstudy", "Reaction", "Days", "Subject")
    return codes(subject), days, reaction


@entry(GROUP, _reactions)
def reactions(ppl, subject, days, y):
    """Milliseconds; intercepts and slopes by subject, centred."""
    mean = ppl.normals("mean", 2, 500.0)
    tau = ppl.sample("tau", ppl.HalfNormal(100.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfNormal(100.0))
    with ppl.plate("subjects", 18):
        intercept = ppl.sample("intercept", ppl.Normal(mean[0], tau[0]))
        slope = ppl.sample("slope", ppl.Normal(mean[1], tau[1]))
    mu = intercept[subject] + slope[subject] * days
    ppl.rows(ppl.Normal(mu, sigma), y)


def _census() -> tuple:
    (population,) = columns("datasets", "uspop", "value")
    return np.arange(len(population)) * 10.0 + 1790.0, population * 1000


@entry(GROUP, _census)
def census(ppl, year, y):
    """Logistic growth, calendar years, people in thousands."""
    capacity, middle = ppl.draws(capacity=ppl.LogNormal(12.0, 1.0), middle=ppl.Normal(1900.0, 50.0))
    width, sigma = ppl.draws(width=ppl.LogNormal(3.0, 1.0), sigma=ppl.HalfNormal(10_000.0))
    mean = capacity / (1 + ppl.exp(-(year - middle) / width))
    ppl.rows(ppl.Normal(mean, sigma), y)
