"""Densities that jump: where they do, gradients say nothing of the values."""

from __future__ import annotations

from typing import Any

import numpy as np

from .data import columns
from .registry import entry

GROUP = "jumps"


def _step() -> tuple:
    rng = np.random.default_rng(51)
    t = np.linspace(0, 1, 40)
    return t, np.where(t < 0.62, 0.5, 1.6) + 0.5 * rng.normal(size=40)


@entry(GROUP, _step)
def change_point(ppl: Any, t: Any, y: Any) -> None:
    dist = ppl.dist
    tau = ppl.sample("tau", dist.Uniform(0.0, 1.0))
    levels = ppl.normals("levels", 2, 2.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    with ppl.plate("times", len(y)):
        mean = ppl.np.where(t < tau, levels[0], levels[1])
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


def _coal() -> tuple:
    (date,) = columns("boot", "coal", "date")
    counts = np.histogram(date, bins=np.arange(1851, 1963, 4))[0]
    return np.arange(len(counts)) / len(counts), counts.astype(float)


@entry(GROUP, _coal)
def coal(ppl: Any, t: Any, y: Any) -> None:
    """Disasters in coal mines; two rates, one change."""
    dist = ppl.dist
    tau = ppl.sample("tau", dist.Beta(2.0, 2.0))
    early = ppl.sample("early", dist.Gamma(2.0, 0.2))
    late = ppl.sample("late", dist.Gamma(2.0, 0.2))
    with ppl.plate("times", len(y)):
        ppl.sample("y", dist.Poisson(ppl.np.where(t < tau, early, late)), obs=y)


def _floors() -> tuple:
    rng = np.random.default_rng(52)
    x = rng.uniform(0, 6, 40)
    return x, np.floor(0.8 * x + 0.3) + 0.6 * rng.normal(size=40)


@entry(GROUP, _floors)
def floors(ppl: Any, x: Any, y: Any) -> None:
    """A line in whole numbers."""
    dist, np = ppl.dist, ppl.np
    slope = ppl.sample("slope", dist.Normal(0.0, 1.0))
    shift = ppl.sample("shift", dist.Normal(0.0, 1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(np.floor(slope * x + shift), sigma), obs=y)


@entry(GROUP, lambda: (np.array([0.4]),))
def bar(ppl: Any, y: Any) -> None:
    """A normal latent whose density falls by a factor of e^4 beyond one."""
    x = ppl.sample("x", ppl.dist.Normal(0.0, 1.0))
    ppl.sample("y", ppl.dist.Normal(x, 1.0), obs=y[0])
    ppl.factor("bar", ppl.np.where(x > 1.0, -4.0, 0.0))


def _doses() -> tuple:
    rng = np.random.default_rng(53)
    dose = rng.uniform(0, 3, 60)
    return dose, (rng.uniform(size=60) < np.where(dose > 1.3, 0.8, 0.2)).astype(float)


@entry(GROUP, _doses, held_out=True)
def threshold(ppl: Any, dose: Any, y: Any) -> None:
    dist = ppl.dist
    limit = ppl.sample("limit", dist.LogNormal(0.0, 0.7))
    logits = ppl.normals("logits", 2, 1.5)
    with ppl.plate("rows", len(y)):
        eta = ppl.np.where(dose > limit, logits[1], logits[0])
        ppl.sample("y", dist.Bernoulli(logits=eta), obs=y)


def _prices() -> tuple:
    rng = np.random.default_rng(54)
    x = rng.normal(size=50)
    return x, 1 + 0.5 * x + np.where(x > 0.4, 1.0, 0.0) + 0.4 * rng.normal(size=50)


@entry(GROUP, _prices, held_out=True)
def broken_line(ppl: Any, x: Any, y: Any) -> None:
    """A line with a jump somewhere."""
    dist = ppl.dist
    beta = ppl.normals("beta", 3, 2.0)
    at = ppl.sample("at", dist.Normal(0.0, 1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    with ppl.plate("rows", len(y)):
        mean = beta[0] + beta[1] * x + ppl.np.where(x > at, 1.0, 0.0) * beta[2]
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)
