"""Responses in hundreds and thousands, priors as wide as that, and group scales: zero on the
unconstrained scale is far from everything.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .data import codes, columns
from .registry import entry

GROUP = "raw_scale"


def _salaries() -> tuple:
    rng = np.random.default_rng(11)
    group = np.repeat(np.arange(40), 6)
    effect = rng.normal(4200.0, 650.0, 40)
    return rng.normal(effect[group], 310.0), group


@entry(GROUP, _salaries)
def salaries_centred(ppl: Any, y: Any, group: Any) -> None:
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(0.0, 5000.0))
    tau = ppl.sample("tau", dist.HalfNormal(1000.0))
    sigma = ppl.sample("sigma", dist.HalfCauchy(500.0))
    with ppl.plate("groups", 40):
        effect = ppl.sample("effect", dist.Normal(mu, tau))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(effect[group], sigma), obs=y)


@entry(GROUP, _salaries, held_out=True)
def salaries_offsets(ppl: Any, y: Any, group: Any) -> None:
    """Effects around zero with a fixed wide prior each, and a common mean beside them."""
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(0.0, 10_000.0))
    sigma = ppl.sample("sigma", dist.Exponential(1 / 500.0))
    tau = ppl.sample("tau", dist.Exponential(1 / 500.0))
    with ppl.plate("groups", 40):
        z = ppl.sample("z", dist.Normal(0.0, 1.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(mu + tau * z[group], sigma), obs=y)


def _wages() -> tuple:
    wage, education, experience = columns("AER", "CPS1988", "wage", "education", "experience")
    rows = np.random.default_rng(3).choice(len(wage), 400, replace=False)
    X = np.column_stack([np.ones(400), education[rows], experience[rows], experience[rows] ** 2])
    return X, wage[rows]


@entry(GROUP, _wages)
def wages(ppl: Any, X: Any, y: Any) -> None:
    """Raw columns, up to the square of the experience."""
    dist = ppl.dist
    beta = ppl.normals("beta", X.shape[1], 1000.0)
    sigma = ppl.sample("sigma", dist.HalfCauchy(1000.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def _investments() -> tuple:
    firm, value, capital, inv = columns("plm", "Grunfeld", "firm", "value", "capital", "inv")
    return codes(firm), value, capital, inv


@entry(GROUP, _investments)
def investments(ppl: Any, firm: Any, value: Any, capital: Any, y: Any) -> None:
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(0.0, 500.0))
    tau = ppl.sample("tau", dist.HalfNormal(500.0))
    slopes = ppl.normals("slopes", 2, 10.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(500.0))
    with ppl.plate("firms", 10):
        effect = ppl.sample("effect", dist.Normal(mu, tau))
    with ppl.plate("rows", len(y)):
        mean = effect[firm] + slopes[0] * value + slopes[1] * capital
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


def _houses() -> tuple:
    names = ("crim", "nox", "rm", "age", "dis", "tax", "ptratio", "black", "lstat")
    X = np.column_stack(columns("MASS", "Boston", *names))
    (price,) = columns("MASS", "Boston", "medv")
    return np.column_stack([np.ones(len(X)), X]), 1000 * price


@entry(GROUP, _houses, held_out=True)
def houses(ppl: Any, X: Any, y: Any) -> None:
    dist = ppl.dist
    beta = ppl.normals("beta", X.shape[1], 10_000.0)
    sigma = ppl.sample("sigma", dist.LogNormal(8.0, 2.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(5.0, X @ beta, sigma), obs=y)


def _reactions() -> tuple:
    reaction, days, subject = columns("lme4", "sleepstudy", "Reaction", "Days", "Subject")
    return codes(subject), days, reaction


@entry(GROUP, _reactions)
def reactions(ppl: Any, subject: Any, days: Any, y: Any) -> None:
    """Milliseconds; intercepts and slopes by subject, centred."""
    dist = ppl.dist
    mean = ppl.normals("mean", 2, 500.0)
    tau = ppl.sample("tau", dist.HalfNormal(100.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfNormal(100.0))
    with ppl.plate("subjects", 18):
        intercept = ppl.sample("intercept", dist.Normal(mean[0], tau[0]))
        slope = ppl.sample("slope", dist.Normal(mean[1], tau[1]))
    with ppl.plate("rows", len(y)):
        mu = intercept[subject] + slope[subject] * days
        ppl.sample("y", dist.Normal(mu, sigma), obs=y)


def _census() -> tuple:
    (population,) = columns("datasets", "uspop", "value")
    return np.arange(len(population)) * 10.0 + 1790.0, population * 1000


@entry(GROUP, _census, held_out=True)
def census(ppl: Any, year: Any, y: Any) -> None:
    """Logistic growth, calendar years, people in thousands."""
    dist = ppl.dist
    capacity = ppl.sample("capacity", dist.LogNormal(12.0, 1.0))
    middle = ppl.sample("middle", dist.Normal(1900.0, 50.0))
    width = ppl.sample("width", dist.LogNormal(3.0, 1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(10_000.0))
    with ppl.plate("rows", len(y)):
        mean = capacity / (1 + ppl.np.exp(-(year - middle) / width))
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)
