"""Small networks, and parameters of the model's own."""

from typing import Any

import numpy as np

from .entries import columns, entry, helmet, standard


@entry("networks", lambda: tuple(standard(values) for values in helmet(3)))
def five_units(ppl, x, y):
    """Accelerations in a crash, five units with tanh."""
    first, bias = ppl.normals("first", 5, 2.0), ppl.normals("bias", 5, 2.0)
    second = ppl.normals("second", 5)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    ppl.rows(ppl.Normal(ppl.tanh(x[:, None] * first + bias) @ second, sigma), y)


def _diabetes() -> tuple:
    X = np.column_stack(columns("MASS", "Pima.tr", "glu", "bmi", "age"))
    (kind,) = columns("MASS", "Pima.tr", "type")
    return standard(X), np.asarray(kind, float)


@entry("networks", _diabetes)
def diabetes(ppl, X, y):
    """Three inputs, four units."""
    first = ppl.normals("first", 12).reshape((3, 4))
    bias, second = ppl.normals("bias", 4), ppl.normals("second", 4)
    shift = ppl.sample("shift", ppl.Normal(0.0, 2.0))
    logits = ppl.tanh(X @ first + bias) @ second + shift
    ppl.rows(ppl.Bernoulli(logits=logits), y)


def _circle() -> tuple:
    X = np.random.default_rng(3814).normal(size=(120, 2))
    return X, ((X**2).sum(1) > 1.4).astype(float)


@entry("networks", _circle)
def two_layers(ppl, X, y):
    """A circle by two layers of rectified units."""

    def rectified(x: Any) -> Any:
        return ppl.where(x > 0, x, 0 * x)

    first, one = ppl.normals("first", 8).reshape((2, 4)), ppl.normals("one", 4)
    second, two = ppl.normals("second", 12).reshape((4, 3)), ppl.normals("two", 3)
    third = ppl.normals("third", 3)
    shift = ppl.sample("shift", ppl.Normal(0.0, 1.0))
    logits = rectified(rectified(X @ first + one) @ second + two) @ third + shift
    ppl.rows(ppl.Bernoulli(logits=logits), y)


@entry("own_parameters", lambda: helmet(3))
def bumps(ppl, t, y):
    """Ten bumps, whose width and scale and noise are parameters that begin far from the data."""
    positive = ppl.constraints.positive
    width = ppl.param("width", ppl.array(5.0), constraint=positive)
    sigma = ppl.param("sigma", ppl.array(1.0), constraint=positive)
    scale = ppl.param("scale", ppl.array(1.0), constraint=positive)
    heights = ppl.sample("heights", ppl.Normal(0.0, scale).expand([10]).to_event(1))
    knots = ppl.array(np.linspace(2, 58, 10))
    bumps = ppl.exp(-0.5 * ((t[:, None] - knots) / width) ** 2)
    ppl.rows(ppl.Normal(bumps @ heights, sigma), y)


def _factor() -> tuple:
    rng = np.random.default_rng(3806)
    z = rng.normal(size=(40, 1))
    means = np.array([10.0, 20.0, 30.0, 5.0])
    return (z @ np.array([[2.0, -1.0, 0.5, 1.5]]) + means + rng.normal(size=(40, 4)),)


@entry("own_parameters", _factor)
def one_factor(ppl, y):
    """Loadings, means and noise are parameters."""
    loadings = ppl.param("loadings", ppl.array([1.0] * 4))
    mean = ppl.param("mean", ppl.array([0.0] * 4))
    noise = ppl.param("noise", ppl.array([1.0] * 4), constraint=ppl.constraints.positive)
    with ppl.plate("rows", 40):
        z = ppl.sample("z", ppl.Normal(0.0, 1.0))
        ppl.sample("y", ppl.Normal(mean + z[:, None] * loadings, noise).to_event(1), obs=y)
