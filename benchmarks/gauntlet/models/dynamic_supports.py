"""Supports that depend on other latents."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import entry

GROUP = "dynamic_supports"


@entry(GROUP, lambda: (np.array([12.0, 30.0, 58.0]),))
def shares(ppl: Any, counts: Any) -> None:
    """Three shares by what is left."""
    dist, np = ppl.dist, ppl.np
    a = ppl.sample("a", dist.Uniform(0.0, 1.0))
    b = ppl.sample("b", dist.Uniform(0.0, 1 - a))
    logs = np.log(np.stack([a, b, 1 - a - b]))
    ppl.factor("counts", (counts * logs).sum())


@entry(GROUP, lambda: (np.array([40.0, 9.0, 3.0, 25.0, 23.0]),), held_out=True)
def more_shares(ppl: Any, counts: Any) -> None:
    dist, np = ppl.dist, ppl.np
    left, parts = ppl.array(1.0), []
    for k in range(4):
        parts.append(ppl.sample(f"part{k}", dist.Uniform(0.0, left)))
        left = left - parts[-1]
    ppl.factor("counts", (counts * np.log(np.stack([*parts, left]))).sum())


def _interval() -> tuple:
    return (np.random.default_rng(91).normal(4.0, 1.0, 20),)


@entry(GROUP, _interval)
def interval(ppl: Any, y: Any) -> None:
    """A location between two ends, the upper of which is above the lower."""
    dist = ppl.dist
    low = ppl.sample("low", dist.Normal(0.0, 2.0))
    high = ppl.sample("high", dist.Uniform(low, low + 10.0))
    centre = ppl.sample("centre", dist.Uniform(low, high))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(centre, 1.0), obs=y)


def _autoregression() -> tuple:
    rng = np.random.default_rng(92)
    y = [0.0, 0.0]
    for _ in range(80):
        y.append(0.5 * y[-1] + 0.4 * y[-2] + rng.normal())
    return (np.array(y),)


@entry(GROUP, _autoregression)
def stationary(ppl: Any, y: Any) -> None:
    """An autoregression with the second coefficient where the process is stationary."""
    dist = ppl.dist
    second = ppl.sample("second", dist.Uniform(-1.0, 1.0))
    first = ppl.sample("first", dist.Uniform(second - 1, 1 - second))
    sigma = ppl.sample("sigma", dist.HalfNormal(2.0))
    with ppl.plate("times", len(y) - 2):
        mean = first * y[1:-1] + second * y[:-2]
        ppl.sample("y", dist.Normal(mean, sigma), obs=y[2:])


def _incomes() -> tuple:
    rng = np.random.default_rng(93)
    return (2.0 * (1 - rng.uniform(size=30)) ** (-1 / 2.5),)


@entry(GROUP, _incomes)
def incomes(ppl: Any, y: Any) -> None:
    """Thresholds in increasing order, by power laws that start at the one before."""
    dist, np = ppl.dist, ppl.np
    low = ppl.sample("low", dist.LogNormal(0.0, 0.5))
    high = ppl.sample("high", dist.Pareto(low, 2.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(0.5 * (np.log(low) + np.log(high)), sigma), obs=np.log(y))


def _cuts() -> tuple:
    rng = np.random.default_rng(94)
    x = rng.normal(size=120)
    z = 0.8 * x + rng.logistic(size=120)
    return x, np.digitize(z, [-1.0, 0.2, 1.5]).astype(int)


@entry(GROUP, _cuts, held_out=True)
def cuts(ppl: Any, x: Any, y: Any) -> None:
    """An ordinal regression, each cut uniform above the one before."""
    dist, np = ppl.dist, ppl.np
    slope = ppl.sample("slope", dist.Normal(0.0, 2.0))
    cuts = [ppl.sample("c0", dist.Normal(0.0, 3.0))]
    for k in (1, 2):
        cuts.append(ppl.sample(f"c{k}", dist.Uniform(cuts[-1], cuts[-1] + 5.0)))
    below = 1 / (1 + np.exp(-(np.stack(cuts) - slope * x[:, None])))
    edges = np.concatenate([0 * below[:, :1], below, 1 + 0 * below[:, :1]], -1)
    probs = (edges[:, 1:] - edges[:, :-1]).clip(1e-12)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Categorical(probs), obs=y)
