"""Bayesian networks with one hidden layer and 19 to 41 weights."""

from typing import Any

import numpy as np

from .entries import entry, helmet, standard

GROUP = "networks"


def _layers(ppl, X, hidden, activation, scale=1.0):
    """The output, one number a row; sites ``w1``, ``b1``, ``w2`` and ``b2``."""
    dim = X.shape[1]
    first = ppl.normals("w1", dim * hidden, scale).reshape(dim, hidden)
    bias = ppl.normals("b1", hidden, scale)
    second = ppl.normals("w2", hidden, scale)
    return activation(X @ first + bias) @ second + ppl.sample("b2", ppl.Normal(0.0, scale))


def _relu(x: Any) -> Any:
    return x.clip(0.0)


def _wave() -> tuple:
    rng = np.random.default_rng(71)
    x = rng.uniform(-2, 2, 80)
    return x[:, None], np.sin(2 * x) + 0.1 * rng.normal(size=80)


@entry(GROUP, _wave)
def wave(ppl, X, y):
    """Known, small noise: 25 weights."""
    mean = _layers(ppl, X, 8, ppl.tanh)
    ppl.rows(ppl.Normal(mean, 0.1), y, "data")


@entry(GROUP, _wave)
def wave_relu(ppl, X, y):
    mean = _layers(ppl, X, 10, _relu, 2.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    ppl.rows(ppl.Normal(mean, sigma), y, "data")


def _moons() -> tuple:
    rng = np.random.default_rng(72)
    angle = rng.uniform(0, np.pi, 100)
    upper = np.column_stack([np.cos(angle), np.sin(angle)])
    lower = np.column_stack([1 - np.cos(angle), 0.5 - np.sin(angle)])
    label = np.arange(100) % 2
    X = np.where(label[:, None] == 0, upper, lower) + 0.15 * rng.normal(size=(100, 2))
    return standard(X), label.astype(float)


@entry(GROUP, _moons)
def moons(ppl, X, y):
    eta = _layers(ppl, X, 6, ppl.tanh, 2.0)
    ppl.rows(ppl.Bernoulli(logits=eta), y, "data")


def _crash() -> tuple:
    times, accel = helmet()
    return standard(times)[:, None], accel


@entry(GROUP, _crash)
def crash(ppl, X, y):
    """Accelerations in g up to 75, priors of the output as wide."""
    first, bias = ppl.normals("w1", 8, 3.0), ppl.normals("b1", 8, 3.0)
    second = ppl.normals("w2", 8, 50.0)
    shift = ppl.sample("b2", ppl.Normal(0.0, 50.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(50.0))
    mean = ppl.tanh(X * first + bias) @ second + shift
    ppl.rows(ppl.Normal(mean, sigma), y, "data")


def _rates() -> tuple:
    rng = np.random.default_rng(73)
    X = rng.normal(size=(120, 3))
    return X, rng.poisson(np.exp(1 + np.tanh(X[:, 0] * X[:, 1]) + 0.3 * X[:, 2])).astype(float)


@entry(GROUP, _rates)
def rates(ppl, X, y):
    eta = _layers(ppl, X, 5, ppl.tanh)
    ppl.rows(ppl.Poisson(ppl.exp(eta.clip(-10.0, 10.0))), y, "data")


@entry(GROUP, _moons)
def learned_width(ppl, X, y):
    """The scale of the weights is a latent too."""
    width = ppl.sample("width", ppl.HalfCauchy(1.0))
    first = ppl.normals("w1", 10).reshape(2, 5)
    bias, second = ppl.normals("b1", 5), ppl.normals("w2", 5)
    eta = width * (ppl.tanh(width * (X @ first + bias)) @ second)
    ppl.rows(ppl.Bernoulli(logits=eta), y, "data")
