"""Models that see a minibatch at a time."""

from typing import Any

import numpy as np

from .entries import codes, columns, design, entry

GROUP = "minibatches"


def _logistic(num: int, dim: int, seed: int) -> tuple:
    X = design(num, dim, seed)
    rng = np.random.default_rng(seed + 1)
    beta = rng.normal(size=dim) / np.sqrt(dim)
    return X, (rng.uniform(size=num) < 1 / (1 + np.exp(-2 * X @ beta))).astype(float)


def _glm(response: Any, scale: float = 2.0) -> Any:
    def glm(ppl: Any, X: Any, y: Any, batch: int | None = None) -> None:
        beta = ppl.normals("beta", X.shape[1], scale)
        with ppl.plate("rows", len(y), subsample_size=batch) as rows:
            ppl.sample("y", response(ppl, X[rows] @ beta), obs=y[rows])

    return glm


def _bernoulli(ppl, eta):
    return ppl.Bernoulli(logits=eta)


def _poisson(ppl, eta):
    return ppl.Poisson(ppl.exp(eta))


entry(GROUP, lambda: _logistic(2000, 20, 121), "logistic", batch=200)(_glm(_bernoulli))
entry(GROUP, lambda: _logistic(1000, 40, 122), "logistic_wide", batch=50)(_glm(_bernoulli, 1.0))


def _visits() -> tuple:
    X = design(1500, 8, 123)
    rng = np.random.default_rng(124)
    return X, rng.poisson(np.exp(1 + 0.3 * X[:, 1:] @ rng.normal(size=7))).astype(float)


entry(GROUP, _visits, "poisson", batch=100)(_glm(_poisson))


def _wages() -> tuple:
    wage, education, experience = columns("AER", "CPS1988", "wage", "education", "experience")
    rows = np.random.default_rng(125).choice(len(wage), 2000, replace=False)
    X = np.column_stack([np.ones(2000), education[rows] / 10, experience[rows] / 10])
    return np.column_stack([X, X[:, 2] ** 2]), np.log(wage[rows])


@entry(GROUP, _wages, batch=200)
def log_wages(ppl, X, y, batch=None):
    beta = ppl.normals("beta", 4, 10.0)
    sigma = ppl.sample("sigma", ppl.HalfCauchy(1.0))
    with ppl.plate("rows", len(y), subsample_size=batch) as rows:
        ppl.sample("y", ppl.Normal(X[rows] @ beta, sigma), obs=y[rows])


def _firms() -> tuple:
    rng = np.random.default_rng(126)
    group = rng.integers(0, 15, 900)
    x = rng.normal(size=900)
    return x, codes(group), 2 + rng.normal(size=15)[group] + 0.7 * x + 0.5 * rng.standard_t(4, 900)


@entry(GROUP, _firms, batch=90)
def firms(ppl, x, group, y, batch=None):
    """Effects of groups, outside of the plate of the rows."""
    mu, tau = ppl.draws(mu=ppl.Normal(0.0, 5.0), tau=ppl.HalfNormal(2.0))
    slope, sigma = ppl.draws(slope=ppl.Normal(0.0, 2.0), sigma=ppl.HalfNormal(2.0))
    with ppl.plate("groups", 15):
        effect = ppl.sample("effect", ppl.Normal(mu, tau))
    with ppl.plate("rows", len(y), subsample_size=batch) as rows:
        mean = effect[group[rows]] + slope * x[rows]
        ppl.sample("y", ppl.StudentT(4.0, mean, sigma), obs=y[rows])


def _raw() -> tuple:
    (dollars, education, experience) = columns("AER", "CPS1988", "wage", "education", "experience")
    rows = np.random.default_rng(127).choice(len(dollars), 1500, replace=False)
    return np.column_stack([np.ones(1500), education[rows], experience[rows]]), dollars[rows]


@entry(GROUP, _raw, batch=150)
def raw_wages(ppl, X, y, batch=None):
    beta = ppl.normals("beta", 3, 500.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1000.0))
    with ppl.plate("rows", len(y), subsample_size=batch) as rows:
        ppl.sample("y", ppl.Normal(X[rows] @ beta, sigma), obs=y[rows])
