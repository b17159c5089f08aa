"""Controls: ordinary models with ordinary data, and a few in raw units."""

from __future__ import annotations

from typing import Any

import numpy as np

from .data import codes, columns, design, standard
from .registry import entry

GROUP = "plain"


def _schools() -> tuple:
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    return y, np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


@entry(GROUP, _schools)
def eight_schools(ppl: Any, y: Any, sigma: Any) -> None:
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(0.0, 5.0))
    tau = ppl.sample("tau", dist.HalfCauchy(5.0))
    with ppl.plate("schools", len(y)):
        z = ppl.sample("z", dist.Normal(0.0, 1.0))
        ppl.sample("y", dist.Normal(mu + tau * z, sigma), obs=y)


def _sleep() -> tuple:
    reaction, days, subject = columns("lme4", "sleepstudy", "Reaction", "Days", "Subject")
    return codes(subject), days / 10, (reaction - 300) / 50


@entry(GROUP, _sleep)
def sleep(ppl: Any, subject: Any, days: Any, y: Any) -> None:
    dist = ppl.dist
    mean = ppl.normals("mean", 2, 5.0)
    tau = ppl.sample("tau", dist.HalfNormal(2.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfNormal(2.0))
    with ppl.plate("subjects", 18):
        z = ppl.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with ppl.plate("rows", len(y)):
        effect = mean + tau * z
        mu = effect[subject, 0] + effect[subject, 1] * days
        ppl.sample("y", dist.Normal(mu, sigma), obs=y)


def _infertility() -> tuple:
    case, age, parity, induced, spontaneous = columns(
        "datasets", "infert", "case", "age", "parity", "induced", "spontaneous"
    )
    X = standard(np.column_stack([age, parity, induced, spontaneous]))
    return np.column_stack([np.ones(len(X)), X]), case


@entry(GROUP, _infertility)
def logistic(ppl: Any, X: Any, y: Any) -> None:
    beta = ppl.normals("beta", X.shape[1], 2.5)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", ppl.dist.Bernoulli(logits=X @ beta), obs=y)


def _breaks() -> tuple:
    breaks, wool, tension = columns("datasets", "warpbreaks", "breaks", "wool", "tension")
    return codes(wool), codes(tension), breaks


@entry(GROUP, _breaks)
def overdispersed(ppl: Any, wool: Any, tension: Any, y: Any) -> None:
    """A negative binomial with effects of two factors."""
    dist, np = ppl.dist, ppl.np
    base = ppl.sample("base", dist.Normal(0.0, 5.0))
    of_wool, of_tension = ppl.normals("of_wool", 2, 1.0), ppl.normals("of_tension", 3, 1.0)
    shape = ppl.sample("shape", dist.Exponential(0.1))
    with ppl.plate("rows", len(y)):
        mean = np.exp(base + of_wool[wool] + of_tension[tension])
        ppl.sample("y", dist.GammaPoisson(shape, shape / mean), obs=y)


def _longley() -> tuple:
    names = ("GNP.deflator", "GNP", "Unemployed", "Armed.Forces", "Population", "Year")
    X = np.column_stack(columns("datasets", "longley", *names))
    (employed,) = columns("datasets", "longley", "Employed")
    return np.column_stack([np.ones(16), X]), employed


@entry(GROUP, _longley)
def longley(ppl: Any, X: Any, y: Any) -> None:
    """The columns that broke the regression programs of 1967, as they are."""
    dist = ppl.dist
    beta = ppl.normals("beta", 7, 100.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(10.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def _seeds() -> tuple:
    rng = np.random.default_rng(131)
    return rng.integers(5, 60, 21).astype(float), design(21, 3, 132)


@entry(GROUP, lambda: (*_seeds(), _germinated()), held_out=True)
def germination(ppl: Any, total: Any, X: Any, y: Any) -> None:
    dist = ppl.dist
    beta = ppl.normals("beta", 3, 3.0)
    tau = ppl.sample("tau", dist.HalfNormal(1.0))
    with ppl.plate("plates", len(y)):
        z = ppl.sample("z", dist.Normal(0.0, 1.0))
        ppl.sample("y", dist.Binomial(total, logits=X @ beta + tau * z), obs=y)


def _germinated() -> np.ndarray:
    total, X = _seeds()
    rng = np.random.default_rng(133)
    eta = X @ np.array([-0.3, 0.6, 0.9]) + 0.4 * rng.normal(size=21)
    return rng.binomial(total.astype(int), 1 / (1 + np.exp(-eta))).astype(float)


def _lifetimes() -> tuple:
    rng = np.random.default_rng(134)
    x = rng.normal(size=60)
    time = np.exp(2 + 0.5 * x) * rng.weibull(1.5, 60)
    return x, np.minimum(time, 15.0), (time < 15).astype(float)


@entry(GROUP, _lifetimes, held_out=True)
def survival(ppl: Any, x: Any, time: Any, died: Any) -> None:
    """A Weibull regression with censoring."""
    dist, np = ppl.dist, ppl.np
    shape = ppl.sample("shape", dist.LogNormal(0.0, 0.5))
    beta = ppl.normals("beta", 2, 2.0)
    log_scale = beta[0] + beta[1] * x
    log_hazard = np.log(shape) - log_scale + (shape - 1) * (np.log(time) - log_scale)
    hazard_so_far = np.exp(shape * (np.log(time) - log_scale))
    ppl.factor("time", (died * log_hazard - hazard_so_far).sum())


def _orange() -> tuple:
    tree, age, girth = columns("datasets", "Orange", "Tree", "age", "circumference")
    return codes(tree), age / 1000, girth / 100


@entry(GROUP, _orange)
def orange_trees(ppl: Any, tree: Any, age: Any, y: Any) -> None:
    """Logistic growth with a limit for every tree."""
    dist, np = ppl.dist, ppl.np
    limit = ppl.sample("limit", dist.Normal(2.0, 1.0))
    tau = ppl.sample("tau", dist.HalfNormal(0.5))
    middle = ppl.sample("middle", dist.LogNormal(0.0, 0.5))
    width = ppl.sample("width", dist.LogNormal(-1.0, 0.5))
    sigma = ppl.sample("sigma", dist.HalfNormal(0.5))
    with ppl.plate("trees", 5):
        z = ppl.sample("z", dist.Normal(0.0, 1.0))
    with ppl.plate("rows", len(y)):
        mean = (limit + tau * z[tree]) / (1 + np.exp(-(age - middle) / width))
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)
