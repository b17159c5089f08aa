"""New hierarchies, fields and factors, with simulated data."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import new


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(740_000 + seed)


def _clinics() -> tuple:
    rng = _rng(1)
    n = rng.integers(3, 60, 25)
    y = rng.binomial(n, 1 / (1 + np.exp(1.5 - 0.7 * rng.normal(size=25))))
    return n.astype(float), y.astype(float)


@new(_clinics, "groups")
def clinics(ppl: Any, n: Any, y: Any) -> None:
    """Successes in 25 clinics, their logits centred."""
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(0.0, 2.0))
    tau = ppl.sample("tau", dist.HalfCauchy(1.0))
    with ppl.plate("clinics", 25):
        own = ppl.sample("own", dist.Normal(mu, tau))
        ppl.sample("y", dist.Binomial(total_count=n, logits=own), obs=y)


def _pupils() -> tuple:
    rng = _rng(2)
    school = np.repeat(np.arange(30), 4)
    level = 500 + 30 * rng.normal(size=6)[school // 5] + 10 * rng.normal(size=30)[school]
    return school, school // 5, level + 40 * rng.normal(size=120)


@new(_pupils, "groups")
def schools_in_regions(ppl: Any, school: Any, region: Any, y: Any) -> None:
    """Points of pupils in thirty schools of six regions, not centred."""
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(500.0, 100.0))
    tau = ppl.sample("tau", dist.HalfNormal(50.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfNormal(100.0))
    with ppl.plate("regions", 6):
        of_region = ppl.sample("of_region", dist.Normal(0.0, 1.0))
    with ppl.plate("schools", 30):
        of_school = ppl.sample("of_school", dist.Normal(0.0, 1.0))
    mean = mu + tau[0] * of_region[region] + tau[1] * of_school[school]
    with ppl.plate("pupils", len(y)):
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


def _crossed() -> tuple:
    rng = _rng(3)
    eta = 0.4 + 1.2 * rng.normal(size=(12, 1)) + 0.8 * rng.normal(size=15)
    return ((rng.uniform(size=(12, 15)) < 1 / (1 + np.exp(-eta))).astype(float),)


@new(_crossed, "groups")
def crossed_answers(ppl: Any, y: Any) -> None:
    """Twelve people and fifteen questions, both centred."""
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(0.0, 2.0))
    tau = ppl.sample("tau", dist.HalfNormal(2.0).expand([2]).to_event(1))
    with ppl.plate("people", 12):
        person = ppl.sample("person", dist.Normal(mu, tau[0]))
    with ppl.plate("questions", 15):
        question = ppl.sample("question", dist.Normal(0.0, tau[1]))
    logits = person[:, None] + question
    ppl.sample("y", dist.Bernoulli(logits=logits).to_event(2), obs=y)


def _lines() -> tuple:
    rng = _rng(4)
    own = np.array([10.0, -2.0]) + rng.normal(size=(15, 2)) @ np.array([[3.0, -1.0], [0.0, 0.7]])
    group, x = np.repeat(np.arange(15), 5), rng.uniform(-1, 3, 75)
    return group, x, own[group, 0] + own[group, 1] * x + rng.normal(size=75)


@new(_lines, "groups", held_out=True)
def centred_lines(ppl: Any, group: Any, x: Any, y: Any) -> None:
    """Starts and slopes of fifteen groups, a bivariate normal each, centred."""
    dist = ppl.dist
    mean = ppl.normals("mean", 2, 10.0)
    tau = ppl.sample("tau", dist.HalfCauchy(2.0).expand([2]).to_event(1))
    root = ppl.sample("root", dist.LKJCholesky(2, 1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(2.0))
    with ppl.plate("groups", 15):
        prior = dist.MultivariateNormal(mean, scale_tril=tau[:, None] * root)
        own = ppl.sample("own", prior)
    with ppl.plate("rows", len(y)):
        line = own[group, 0] + own[group, 1] * x
        ppl.sample("y", dist.Normal(line, sigma), obs=y)


def _cells() -> tuple:
    rng = _rng(5)
    row, column = np.arange(36) // 6, np.arange(36) % 6
    expected = rng.uniform(2, 20, 36)
    risk = np.exp(0.6 * np.sin(row) + 0.4 * np.cos(column))
    near = np.argwhere(np.triu(abs(row[:, None] - row) + abs(column[:, None] - column) == 1))
    return near[:, 0], near[:, 1], expected, rng.poisson(expected * risk).astype(float)


@new(_cells, "groups")
def map_of_cells(ppl: Any, left: Any, right: Any, expected: Any, y: Any) -> None:
    """Cases on a map of 36 cells; only differences of neighbours are shrunk."""
    dist, np = ppl.dist, ppl.np
    tau = ppl.sample("tau", dist.HalfNormal(1.0))
    field = ppl.normals("field", 36, 3.0)
    rough = ((field[left] - field[right]) ** 2).sum()
    ppl.factor("smooth", -0.5 * rough / tau**2 - 35 * np.log(tau))
    with ppl.plate("cells", 36):
        ppl.sample("y", dist.Poisson(expected * np.exp(field)), obs=y)


def _machines() -> tuple:
    rng = _rng(6)
    mean, width = 3 + rng.normal(size=12), np.exp(-0.5 + 0.6 * rng.normal(size=12))
    return (mean[:, None] + width[:, None] * rng.normal(size=(12, 8)),)


@new(_machines, "groups")
def means_and_widths(ppl: Any, y: Any) -> None:
    """Twelve machines, each with a mean and a width of its own."""
    dist, np = ppl.dist, ppl.np
    mu = ppl.sample("mu", dist.Normal(0.0, 5.0))
    tau = ppl.sample("tau", dist.HalfNormal(2.0))
    log_width = ppl.sample("log_width", dist.Normal(0.0, 1.0))
    spread = ppl.sample("spread", dist.HalfNormal(1.0))
    with ppl.plate("machines", 12):
        mean = ppl.sample("mean", dist.Normal(mu, tau))
        width = ppl.sample("width", dist.Normal(log_width, spread))
        noise = dist.Normal(mean[:, None], np.exp(width)[:, None])
        ppl.sample("y", noise.to_event(1), obs=y)


def _animals() -> tuple:
    rng = _rng(7)
    who, t = np.repeat(np.arange(8), 9), np.tile(np.linspace(0, 40, 9), 8)
    size = 800 * np.exp(0.2 * rng.normal(size=8))[who]
    rate = 0.1 * np.exp(0.2 * rng.normal(size=8))[who]
    return who, t, size * np.exp(-3 * np.exp(-rate * t)) * np.exp(0.1 * rng.normal(size=72))


@new(_animals, "dynamics")
def gompertz(ppl: Any, who: Any, t: Any, y: Any) -> None:
    """Eight animals grow, in grams and days, to sizes and with rates of their own."""
    dist, np = ppl.dist, ppl.np
    log_size = ppl.sample("log_size", dist.Normal(6.0, 2.0))
    log_rate = ppl.sample("log_rate", dist.Normal(-2.0, 1.0))
    start = ppl.sample("start", dist.LogNormal(1.0, 0.7))
    tau = ppl.sample("tau", dist.HalfNormal(0.5).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfNormal(0.5))
    with ppl.plate("animals", 8):
        z = ppl.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    rate = np.exp(log_rate + tau[1] * z[who, 1])
    mean = log_size + tau[0] * z[who, 0] - start * np.exp(-rate * t)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.LogNormal(mean, sigma), obs=y)


def _months() -> tuple:
    rng = _rng(8)
    slope = 2 + np.cumsum(0.5 * rng.normal(size=30))
    return (100 + np.cumsum(slope) + 4 * rng.standard_t(4, 30),)


@new(_months, "process", held_out=True)
def moving_trend(ppl: Any, y: Any) -> None:
    """A level whose slope walks, both centred, below noise with outliers: 63 latents."""
    dist = ppl.dist
    tau = ppl.sample("tau", dist.HalfNormal(2.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfNormal(10.0))
    level = ppl.normals("level", 30, 50.0, loc=100.0)
    slope = ppl.normals("slope", 30, 10.0)
    ahead = level[:-1] + slope[:-1]
    moves = dist.Normal(ahead, tau[0] + 0.05).log_prob(level[1:]).sum()
    turns = dist.Normal(slope[:-1], tau[1] + 0.02).log_prob(slope[1:]).sum()
    ppl.factor("trend", moves + turns)
    with ppl.plate("months", 30):
        ppl.sample("y", dist.StudentT(4.0, level, sigma), obs=y)


def _blocks() -> tuple:
    rng = _rng(9)
    X = rng.normal(size=(50, 15))
    beta = np.repeat([0.2, 1.0, 3.0], 5) * rng.normal(size=15)
    return X, np.repeat(np.arange(3), 5), X @ beta + 0.7 * rng.normal(size=50)


@new(_blocks, "params")
def relevance(ppl: Any, X: Any, block: Any, y: Any) -> None:
    """Three blocks of coefficients; their widths and the noise are parameters of the model's."""
    dist = ppl.dist
    positive = dist.constraints.positive
    width = ppl.param("width", ppl.array(np.ones(3)), constraint=positive)
    sigma = ppl.param("sigma", ppl.array(3.0), constraint=positive)
    beta = ppl.sample("beta", dist.Normal(0.0, width[block]).to_event(1))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def _table() -> tuple:
    rng = _rng(10)
    eta = np.array([1.0, 0.5, 2.0, 1.5, 0.0]) + np.outer(
        rng.normal(size=15), [0.8, -0.6, 0.5, 0.9, -0.7]
    )
    return (rng.poisson(np.exp(eta)).astype(float),)


@new(_table, "modes")
def one_factor(ppl: Any, y: Any) -> None:
    """Counts of fifteen rows by five columns with one factor, whose sign is free."""
    dist, np = ppl.dist, ppl.np
    base, loading = ppl.normals("base", 5, 2.0), ppl.normals("loading", 5)
    factor = ppl.normals("factor", 15)
    rate = np.exp(base + factor[:, None] * loading)
    ppl.sample("y", dist.Poisson(rate).to_event(2), obs=y)
