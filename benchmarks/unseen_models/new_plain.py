"""New models whose densities are log-concave or nearly so; data simulated, or real where said."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import labels, new, numbers, scaled, special, table, with_ones


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(730_000 + seed)


def _inputs(num: int, dim: int, seed: int) -> np.ndarray:
    """Correlated columns, the first of them ones."""
    rng = _rng(seed)
    mixing = np.eye(dim - 1) + 0.3 * rng.normal(size=(dim - 1, dim - 1))
    return with_ones(rng.normal(size=(num, dim - 1)) @ mixing)


@new(lambda: (_rng(1).exponential(0.004, 25),), "raw")
def arrivals(ppl: Any, y: Any) -> None:
    """Seconds between arrivals, some thousandths."""
    rate = ppl.sample("rate", ppl.dist.Gamma(1.0, 0.01))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", ppl.dist.Exponential(rate), obs=y)


def _probit() -> tuple:
    X = _inputs(70, 6, 2)
    return X, np.where(X @ [0.3, 1, -1, 0, 0.5, 0] + _rng(3).normal(size=70) > 0, 1.0, -1.0)


@new(_probit)
def probit(ppl: Any, X: Any, sign: Any) -> None:
    """Ones and minus ones by the normal distribution function."""
    beta = ppl.normals("beta", 6, 2.0)
    ppl.factor("rows", special(ppl).log_ndtr(sign * (X @ beta)).sum())


def _grades() -> tuple:
    X = _inputs(120, 5, 4)[:, 1:]
    eta = X @ [0.8, -0.5, 0.0, 0.3] + _rng(5).normal(size=120)
    return X, np.searchsorted([-1.5, -0.4, 0.5, 1.4], eta)


@new(_grades, held_out=True)
def ordinal_probit(ppl: Any, X: Any, y: Any) -> None:
    """Five ordered grades."""
    dist, np, lib = ppl.dist, ppl.np, special(ppl)
    first = ppl.sample("first", dist.Normal(0.0, 3.0))
    gaps = ppl.sample("gaps", dist.Exponential(1.0).expand([3]).to_event(1))
    beta = ppl.normals("beta", 4, 2.0)
    cuts = np.cumsum(np.concatenate([first[None], gaps]), 0)
    below = lib.ndtr(cuts - (X @ beta)[:, None])
    zero = 0 * below[:, :1]
    probs = np.concatenate([below, 1 + zero], 1) - np.concatenate([zero, below], 1) + 1e-7
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Categorical(probs=probs / probs.sum(-1)[:, None]), obs=y)


def _dollars() -> tuple:
    X = _inputs(90, 4, 6)
    return X, np.exp(X @ [7.5, 0.4, -0.3, 0.1]) * _rng(7).gamma(2.0, 0.5, 90)


@new(_dollars, "raw")
def claims(ppl: Any, X: Any, y: Any) -> None:
    """A gamma regression of dollars, with a logarithmic link."""
    dist = ppl.dist
    beta = ppl.normals("beta", 4, 10.0)
    shape = ppl.sample("shape", dist.Gamma(2.0, 0.5))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Gamma(shape, shape * ppl.np.exp(-(X @ beta))), obs=y)


def _spells() -> tuple:
    rng = _rng(8)
    rows = []
    for x in rng.normal(size=(45, 3)):
        for t in range(6):
            ends = rng.uniform() < -np.expm1(-np.exp(-1.8 + 0.15 * t + x @ [0.6, -0.4, 0.0]))
            rows.append((t, *x, ends))
            if ends:
                break
    found = np.array(rows)
    return found[:, 0].astype(int), found[:, 1:4], found[:, 4]


@new(_spells)
def hazard(ppl: Any, t: Any, X: Any, y: Any) -> None:
    """Spells of at most six months; complementary log-log hazards, one level a month."""
    np = ppl.np
    level, beta = ppl.normals("level", 6, 3.0), ppl.normals("beta", 3, 1.0)
    risk = np.exp(level[t] + X @ beta)
    ppl.factor("rows", (y * np.log(-np.expm1(-risk) + 1e-30) - (1 - y) * risk).sum())


def _tickets() -> tuple:
    rng = _rng(9)
    price, hours = rng.uniform(20, 300, (80, 4)), rng.uniform(1, 12, (80, 4))
    A = np.stack([price, hours, *(rng.uniform(size=(3, 80, 4)) < 0.5)], -1).astype(float)
    utility = A @ [-0.015, -0.3, 0.5, 0.0, 0.2] + rng.gumbel(size=(80, 4))
    return A, utility.argmax(1)


@new(_tickets, "raw", held_out=True)
def choices(ppl: Any, A: Any, y: Any) -> None:
    """Which of four tickets eighty people take, by euros, hours and three extras."""
    beta = ppl.normals("beta", 5)
    with ppl.plate("people", len(y)):
        ppl.sample("y", ppl.dist.Categorical(logits=A @ beta), obs=y)


def _walk() -> tuple:
    rng = _rng(10)
    return (rng.poisson(np.exp(1 + np.cumsum(0.3 * rng.normal(size=40)))).astype(float),)


@new(_walk, "process")
def walk_counts(ppl: Any, y: Any) -> None:
    """Counts whose logarithmic rate walks."""
    dist, np = ppl.dist, ppl.np
    first = ppl.sample("first", dist.Normal(0.0, 2.0))
    tau = ppl.sample("tau", dist.HalfNormal(0.5))
    rate = first + tau * np.cumsum(ppl.normals("steps", 40), 0)
    with ppl.plate("rows", 40):
        ppl.sample("y", dist.Poisson(np.exp(rate)), obs=y)


def _field() -> tuple:
    rng = _rng(11)
    x = np.sort(rng.uniform(0, 10, 40))
    root = np.linalg.cholesky(4 * np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-5 * np.eye(40))
    return root, (rng.uniform(size=40) < 1 / (1 + np.exp(-3 * np.sin(x)))).astype(float)


@new(_field, "process", held_out=True)
def gp_classes(ppl: Any, root: Any, y: Any) -> None:
    """A Gaussian process of a known kernel behind forty ones and zeros."""
    level = ppl.sample("level", ppl.dist.Normal(0.0, 1.0))
    f = level + root @ ppl.normals("white", 40)
    with ppl.plate("rows", 40):
        ppl.sample("y", ppl.dist.Bernoulli(logits=f), obs=y)


def _deaths() -> tuple:
    X = _inputs(70, 9, 12)[:, 1:]
    time = _rng(13).exponential(np.exp(-X @ [0.8, -0.5, 0.3, 0, 0, 0, 0, 0.2]))
    dead = (_rng(14).uniform(size=70) < 0.7).astype(float)
    return X, (time[None] >= time[:, None]).astype(float), dead


@new(_deaths)
def cox(ppl: Any, X: Any, at_risk: Any, died: Any) -> None:
    """Cox's partial likelihood of eight inputs."""
    eta = X @ ppl.normals("beta", 8, 1.0)
    highest = eta.max()
    total = highest + ppl.np.log(at_risk @ ppl.np.exp(eta - highest))
    ppl.factor("rows", (died * (eta - total)).sum())


def _veterans() -> tuple:
    t = table("survival", "veteran")
    kind = labels(t["celltype"])
    X = np.column_stack([numbers(t, "trt", "karno", "age", "diagtime"), np.eye(4)[kind][:, 1:]])
    time, died = numbers(t, "time", "status").T
    X, y = with_ones(X), np.log(time)
    return X[died == 1], y[died == 1], X[died == 0], y[died == 0]


@new(_veterans, "raw")
def veterans(ppl: Any, X: Any, y: Any, X_alive: Any, y_alive: Any) -> None:
    """Real data: days of life are log-normal, some censored; inputs as they are."""
    dist = ppl.dist
    beta = ppl.normals("beta", 8, 5.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(3.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(X @ beta, sigma), obs=y)
    alive = special(ppl).log_ndtr((X_alive @ beta - y_alive) / sigma)
    ppl.factor("alive", alive.sum())


def _pairs() -> tuple:
    X, Z = _inputs(40, 3, 15), _inputs(40, 3, 16)
    noise = _rng(17).normal(size=(40, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    return X, Z, np.column_stack([X @ [1, 2, 0], Z @ [-1, 0.5, 1]]) + noise


@new(_pairs)
def two_equations(ppl: Any, X: Any, Z: Any, y: Any) -> None:
    """Seemingly unrelated regressions, their noise correlated."""
    dist, np = ppl.dist, ppl.np
    one, two = ppl.normals("one", 3, 5.0), ppl.normals("two", 3, 5.0)
    scale = ppl.sample("scale", dist.HalfNormal(2.0).expand([2]).to_event(1))
    root = ppl.sample("root", dist.LKJCholesky(2, 1.0))
    mean = np.stack([X @ one, Z @ two], -1)
    with ppl.plate("rows", y.shape[0]):
        noise = dist.MultivariateNormal(mean, scale_tril=scale[:, None] * root)
        ppl.sample("y", noise, obs=y)


def _columns() -> tuple:
    X = scaled(_rng(18).normal(size=(60, 100)))
    return X, X @ (0.2 * _rng(19).normal(size=100)) + 0.5 * _rng(20).normal(size=60)


@new(_columns)
def many_columns(ppl: Any, X: Any, y: Any) -> None:
    """More coefficients than rows, with a width in common: 102 latents."""
    dist = ppl.dist
    tau = ppl.sample("tau", dist.HalfNormal(1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    beta = ppl.normals("beta", 100)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(tau * (X @ beta), sigma), obs=y)


def _genes() -> tuple:
    X = with_ones(_rng(21).normal(size=(90, 119)))
    eta = X[:, 1:6] @ [1.5, -1, 1, 0.5, -0.5]
    return X, (_rng(22).uniform(size=90) < 1 / (1 + np.exp(-eta))).astype(float)


@new(_genes, held_out=True)
def wide_logistic(ppl: Any, X: Any, y: Any) -> None:
    """A logistic regression of 120 coefficients and 90 rows."""
    beta = ppl.normals("beta", 120, 0.4)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", ppl.dist.Bernoulli(logits=X @ beta), obs=y)


def _occupations() -> tuple:
    t = table("carData", "Duncan")
    return numbers(t, "income", "education"), numbers(t, "prestige")[:, 0]


@new(_occupations, "tails")
def occupations(ppl: Any, X: Any, y: Any) -> None:
    """Real data: prestige of 45 occupations, three of them out of line."""
    dist = ppl.dist
    start = ppl.sample("start", dist.Normal(0.0, 50.0))
    slopes = ppl.normals("slopes", 2, 2.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(20.0))
    nu = ppl.sample("nu", dist.Gamma(2.0, 0.1))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.StudentT(nu, start + X @ slopes, sigma), obs=y)


def _years() -> tuple:
    year = np.arange(1990.0, 2021.0)
    return year, _rng(23).poisson(np.exp(9.9 + 0.02 * (year - 2005))).astype(float)


@new(_years, "raw")
def calendar(ppl: Any, year: Any, y: Any) -> None:
    """Counts of 20,000 by the year, which nobody has centred."""
    dist = ppl.dist
    start = ppl.sample("start", dist.Normal(0.0, 20.0))
    slope = ppl.sample("slope", dist.Normal(0.0, 0.02))
    with ppl.plate("years", len(y)):
        ppl.sample("y", dist.Poisson(ppl.np.exp(start + slope * year)), obs=y)


def _grams() -> tuple:
    x = _rng(24).uniform(100, 900, 60)
    curve = 40 + 0.3 * x - 6e-4 * x**2 + 5e-7 * x**3
    return x, np.array([100.0, 1.0, 1e-2, 1e-5]), curve + 5 * _rng(25).normal(size=60)


@new(_grams, "raw")
def cubic_in_grams(ppl: Any, x: Any, widths: Any, y: Any) -> None:
    """A polynomial in raw units: columns of one to seven hundred million."""
    dist, np = ppl.dist, ppl.np
    beta = ppl.sample("beta", dist.Normal(0 * widths, widths).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfNormal(20.0))
    mean = np.stack([x**0, x, x**2, x**3], -1) @ beta
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)
