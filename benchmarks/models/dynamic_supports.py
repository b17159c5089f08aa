"""Supports that depend on other latents."""

import numpy as np

from .entries import entry

GROUP = "dynamic_supports"


@entry(GROUP, lambda: (np.array([12.0, 30.0, 58.0]),))
def shares(ppl, counts):
    """Three shares by what is left."""
    a = ppl.sample("a", ppl.Uniform(0.0, 1.0))
    b = ppl.sample("b", ppl.Uniform(0.0, 1 - a))
    logs = ppl.log(ppl.stack([a, b, 1 - a - b]))
    ppl.factor("counts", (counts * logs).sum())


@entry(GROUP, lambda: (np.array([40.0, 9.0, 3.0, 25.0, 23.0]),))
def more_shares(ppl, counts):
    left, parts = ppl.array(1.0), []
    for k in range(4):
        parts.append(ppl.sample(f"part{k}", ppl.Uniform(0.0, left)))
        left = left - parts[-1]
    ppl.factor("counts", (counts * ppl.log(ppl.stack([*parts, left]))).sum())


@entry(GROUP, lambda: (np.random.default_rng(91).normal(4.0, 1.0, 20),))
def interval(ppl, y):
    """A location between two ends, the upper of which is above the lower."""
    low = ppl.sample("low", ppl.Normal(0.0, 2.0))
    high = ppl.sample("high", ppl.Uniform(low, low + 10.0))
    centre = ppl.sample("centre", ppl.Uniform(low, high))
    ppl.rows(ppl.Normal(centre, 1.0), y)


def _autoregression() -> tuple:
    rng = np.random.default_rng(92)
    y = [0.0, 0.0]
    for _ in range(80):
        y.append(0.5 * y[-1] + 0.4 * y[-2] + rng.normal())
    return (np.array(y),)


@entry(GROUP, _autoregression)
def stationary(ppl, y):
    """An autoregression with the second coefficient where the process is stationary."""
    second = ppl.sample("second", ppl.Uniform(-1.0, 1.0))
    first, sigma = ppl.draws(first=ppl.Uniform(second - 1, 1 - second), sigma=ppl.HalfNormal(2.0))
    with ppl.plate("times", len(y) - 2):
        mean = first * y[1:-1] + second * y[:-2]
        ppl.sample("y", ppl.Normal(mean, sigma), obs=y[2:])


def _incomes() -> tuple:
    rng = np.random.default_rng(93)
    return (2.0 * (1 - rng.uniform(size=30)) ** (-1 / 2.5),)


@entry(GROUP, _incomes)
def incomes(ppl, y):
    """Thresholds in increasing order, by power laws that start at the one before."""
    low = ppl.sample("low", ppl.LogNormal(0.0, 0.5))
    high, sigma = ppl.draws(high=ppl.Pareto(low, 2.0), sigma=ppl.HalfNormal(1.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", ppl.Normal(0.5 * (ppl.log(low) + ppl.log(high)), sigma), obs=ppl.log(y))


def _cuts() -> tuple:
    rng = np.random.default_rng(94)
    x = rng.normal(size=120)
    z = 0.8 * x + rng.logistic(size=120)
    return x, np.digitize(z, [-1.0, 0.2, 1.5]).astype(int)


@entry(GROUP, _cuts)
def cuts(ppl, x, y):
    """An ordinal regression, each cut uniform above the one before."""
    slope = ppl.sample("slope", ppl.Normal(0.0, 2.0))
    cuts = [ppl.sample("c0", ppl.Normal(0.0, 3.0))]
    for k in (1, 2):
        cuts.append(ppl.sample(f"c{k}", ppl.Uniform(cuts[-1], cuts[-1] + 5.0)))
    below = 1 / (1 + ppl.exp(-(ppl.stack(cuts) - slope * x[:, None])))
    edges = ppl.concatenate([0 * below[:, :1], below, 1 + 0 * below[:, :1]], -1)
    probs = (edges[:, 1:] - edges[:, :-1]).clip(1e-12)
    ppl.rows(ppl.Categorical(probs), y)
