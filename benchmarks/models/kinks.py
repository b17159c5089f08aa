"""Densities with kinks: gradients jump."""

import numpy as np

from .entries import columns, design, entry, standard

GROUP = "kinks"


def _sparse() -> tuple:
    X = design(60, 12, 61)
    beta = np.array([0.5, 2, -1.5, *[0.0] * 9])
    return X, X @ beta + np.random.default_rng(62).normal(size=60)


@entry(GROUP, _sparse)
def lasso(ppl, X, y):
    beta = ppl.sample("beta", ppl.Laplace(0.0, 0.3).expand([12]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfNormal(2.0))
    ppl.rows(ppl.Normal(X @ beta, sigma), y)


def _stack_loss() -> tuple:
    names = ("Air.Flow", "Water.Temp", "Acid.Conc.", "stack.loss")
    table = np.column_stack(columns("datasets", "stackloss", *names))
    return np.column_stack([np.ones(21), standard(table[:, :3])]), table[:, 3]


@entry(GROUP, _stack_loss)
def stack_loss(ppl, X, y):
    """A regression by least absolute deviations."""
    beta = ppl.normals("beta", 4, 20.0)
    scale = ppl.sample("scale", ppl.HalfCauchy(5.0))
    ppl.rows(ppl.Laplace(X @ beta, scale), y)


def _stick() -> tuple:
    rng = np.random.default_rng(63)
    x = np.sort(rng.uniform(-2, 2, 50))
    return x, 1 - 0.5 * x + 1.5 * np.clip(x - 0.3, 0, None) + 0.2 * rng.normal(size=50)


@entry(GROUP, _stick)
def broken_stick(ppl, x, y):
    beta = ppl.normals("beta", 3, 2.0)
    at, sigma = ppl.draws(at=ppl.Normal(0.0, 1.0), sigma=ppl.HalfNormal(1.0))
    mean = beta[0] + beta[1] * x + beta[2] * (x - at).clip(0.0)
    ppl.rows(ppl.Normal(mean, sigma), y)


def _walk() -> tuple:
    rng = np.random.default_rng(64)
    level = np.repeat([0.0, 2.0, -1.0], 10)
    return (level + 0.5 * rng.normal(size=30),)


@entry(GROUP, _walk)
def fused_walk(ppl, y):
    """A walk with Laplace steps under Laplace noise: 32 latents."""
    tau, sigma = ppl.draws(tau=ppl.HalfNormal(1.0), sigma=ppl.HalfNormal(1.0))
    steps = ppl.sample("steps", ppl.Laplace(0.0, 1.0).expand([30]).to_event(1))
    ppl.rows(ppl.Laplace(tau * ppl.cumsum(steps, 0), sigma), y, "times")


def _signs() -> tuple:
    rng = np.random.default_rng(65)
    X = design(40, 4, 66)
    return X, np.abs(X @ np.array([0.3, 1.0, -0.5, 0.2])) + 0.2 * rng.normal(size=40)


@entry(GROUP, _signs)
def magnitudes(ppl, X, y):
    """Only magnitudes of a linear predictor are seen: two signs, and kinks at zero."""
    beta = ppl.normals("beta", 4, 1.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    ppl.rows(ppl.Normal(abs(X @ beta), sigma), y)


def _quantile() -> tuple:
    names = ("education", "income", "women", "prestige")
    education, income, women, prestige = columns("carData", "Prestige", *names)
    X = np.column_stack([np.ones(102), standard(np.column_stack([education, income, women]))])
    return X, standard(prestige)


@entry(GROUP, _quantile)
def quantile(ppl, X, y):
    """The upper decile, by its check loss."""
    beta = ppl.sample("beta", ppl.Laplace(0.0, 1.0).expand([4]).to_event(1))
    scale = ppl.sample("scale", ppl.HalfNormal(1.0))
    residual = y - X @ beta
    loss = (0.9 * residual.clip(0.0) + 0.1 * (-residual).clip(0.0)) / scale
    ppl.factor("y", -loss.sum() - len(y) * ppl.log(scale / 0.09))


def _hinges() -> tuple:
    rng = np.random.default_rng(67)
    x = np.linspace(-2, 2, 60)
    return x, np.abs(x) - 0.5 * np.clip(x - 1, 0, None) + 0.15 * rng.normal(size=60)


@entry(GROUP, _hinges)
def hinges(ppl, x, y):
    """Six hinges at fixed places with Laplace weights, and Laplace noise."""
    at = ppl.array([-2.0, -1.2, -0.4, 0.4, 1.2, 1.8])
    weights = ppl.sample("weights", ppl.Laplace(0.0, 1.0).expand([6]).to_event(1))
    move = ppl.normals("move", 6, 0.2)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    mean = (x[:, None] - at - move).clip(0.0) @ weights
    ppl.rows(ppl.Laplace(1.0 + ppl.tanh(weights[0]) * x + mean, sigma), y)
