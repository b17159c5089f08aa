"""Densities that jump: where they do, gradients say nothing of the values."""

import numpy as np

from .entries import columns, entry

GROUP = "jumps"


def _step() -> tuple:
    rng = np.random.default_rng(51)
    t = np.linspace(0, 1, 40)
    return t, np.where(t < 0.62, 0.5, 1.6) + 0.5 * rng.normal(size=40)


@entry(GROUP, _step)
def change_point(ppl, t, y):
    tau = ppl.sample("tau", ppl.Uniform(0.0, 1.0))
    levels = ppl.normals("levels", 2, 2.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    mean = ppl.where(t < tau, levels[0], levels[1])
    ppl.rows(ppl.Normal(mean, sigma), y, "times")


def _coal() -> tuple:
    (date,) = columns("boot", "coal", "date")
    counts = np.histogram(date, bins=np.arange(1851, 1963, 4))[0]
    return np.arange(len(counts)) / len(counts), counts.astype(float)


@entry(GROUP, _coal)
def coal(ppl, t, y):
    """Disasters in coal mines; two rates, one change."""
    tau, early = ppl.draws(tau=ppl.Beta(2.0, 2.0), early=ppl.Gamma(2.0, 0.2))
    late = ppl.sample("late", ppl.Gamma(2.0, 0.2))
    ppl.rows(ppl.Poisson(ppl.where(t < tau, early, late)), y, "times")


def _floors() -> tuple:
    rng = np.random.default_rng(52)
    x = rng.uniform(0, 6, 40)
    return x, np.floor(0.8 * x + 0.3) + 0.6 * rng.normal(size=40)


@entry(GROUP, _floors)
def floors(ppl, x, y):
    """A line in whole numbers."""
    slope, shift = ppl.draws(slope=ppl.Normal(0.0, 1.0), shift=ppl.Normal(0.0, 1.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    ppl.rows(ppl.Normal(ppl.floor(slope * x + shift), sigma), y)


@entry(GROUP, lambda: (np.array([0.4]),))
def bar(ppl, y):
    """A normal latent whose density falls by a factor of e^4 beyond one."""
    x = ppl.sample("x", ppl.Normal(0.0, 1.0))
    ppl.sample("y", ppl.Normal(x, 1.0), obs=y[0])
    ppl.factor("bar", ppl.where(x > 1.0, -4.0, 0.0))


def _doses() -> tuple:
    rng = np.random.default_rng(53)
    dose = rng.uniform(0, 3, 60)
    return dose, (rng.uniform(size=60) < np.where(dose > 1.3, 0.8, 0.2)).astype(float)


@entry(GROUP, _doses)
def threshold(ppl, dose, y):
    limit = ppl.sample("limit", ppl.LogNormal(0.0, 0.7))
    logits = ppl.normals("logits", 2, 1.5)
    eta = ppl.where(dose > limit, logits[1], logits[0])
    ppl.rows(ppl.Bernoulli(logits=eta), y)


def _prices() -> tuple:
    rng = np.random.default_rng(54)
    x = rng.normal(size=50)
    return x, 1 + 0.5 * x + np.where(x > 0.4, 1.0, 0.0) + 0.4 * rng.normal(size=50)


@entry(GROUP, _prices)
def broken_line(ppl, x, y):
    """A line with a jump somewhere."""
    beta = ppl.normals("beta", 3, 2.0)
    at, sigma = ppl.draws(at=ppl.Normal(0.0, 1.0), sigma=ppl.HalfNormal(1.0))
    mean = beta[0] + beta[1] * x + ppl.where(x > at, 1.0, 0.0) * beta[2]
    ppl.rows(ppl.Normal(mean, sigma), y)
