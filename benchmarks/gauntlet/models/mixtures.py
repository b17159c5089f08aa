"""Mixtures, summed over their components, whose labels may change places."""

from __future__ import annotations

from typing import Any

import numpy as np

from .data import columns, standard
from .registry import entry

GROUP = "mixtures"


def _mixture(ppl: Any, weights: Any, components: Any) -> Any:
    return ppl.dist.MixtureSameFamily(ppl.dist.Categorical(weights), components)


def _two() -> tuple:
    rng = np.random.default_rng(101)
    return (np.concatenate([rng.normal(-2, 1, 60), rng.normal(2.5, 1, 40)]),)


@entry(GROUP, _two)
def two(ppl: Any, y: Any) -> None:
    """Two normals with exchangeable priors."""
    dist, np = ppl.dist, ppl.np
    share = ppl.sample("share", dist.Beta(2.0, 2.0))
    loc = ppl.normals("loc", 2, 3.0)
    scale = ppl.sample("scale", dist.LogNormal(0.0, 0.5).expand([2]).to_event(1))
    with ppl.plate("rows", len(y)):
        weights = np.stack([share, 1 - share])
        ppl.sample("y", _mixture(ppl, weights, dist.Normal(loc, scale)), obs=y)


def _galaxies() -> tuple:
    return (columns("MASS", "galaxies", "dat")[0] / 1000,)


@entry(GROUP, _galaxies)
def galaxies(ppl: Any, y: Any) -> None:
    """Three components of velocities in thousands of km/s."""
    dist = ppl.dist
    weights = ppl.sample("weights", dist.Dirichlet(ppl.array(2 * np.ones(3))))
    loc = ppl.normals("loc", 3, 10.0, 20.0)
    scale = ppl.sample("scale", dist.LogNormal(0.5, 0.7).expand([3]).to_event(1))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", _mixture(ppl, weights, dist.Normal(loc, scale)), obs=y)


def _geyser() -> tuple:
    table = np.column_stack(columns("datasets", "faithful", "eruptions", "waiting"))
    return (standard(table),)


@entry(GROUP, _geyser)
def geyser(ppl: Any, y: Any) -> None:
    """Two clouds in the plane."""
    dist, np = ppl.dist, ppl.np
    share = ppl.sample("share", dist.Beta(2.0, 2.0))
    loc = ppl.normals("loc", 4, 2.0).reshape(2, 2)
    scale = ppl.sample("scale", dist.LogNormal(-0.5, 0.7).expand([4]).to_event(1)).reshape(2, 2)
    with ppl.plate("rows", y.shape[0]):
        components = dist.Normal(loc, scale).to_event(1)
        ppl.sample("y", _mixture(ppl, np.stack([share, 1 - share]), components), obs=y)


def _crossing() -> tuple:
    rng = np.random.default_rng(102)
    x = rng.uniform(-2, 2, 90)
    slope = np.where(np.arange(90) % 3 == 0, -1.5, 1.0)
    return x, 0.5 + slope * x + 0.3 * rng.normal(size=90)


@entry(GROUP, _crossing, held_out=True)
def crossing(ppl: Any, x: Any, y: Any) -> None:
    """Two regression lines that cross."""
    dist, np = ppl.dist, ppl.np
    share = ppl.sample("share", dist.Beta(2.0, 2.0))
    intercept, slope = ppl.normals("intercept", 2, 2.0), ppl.normals("slope", 2, 2.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    with ppl.plate("rows", len(y)):
        mean = intercept + slope * x[:, None]
        components = dist.Normal(mean, sigma)
        weights = np.stack([share, 1 - share]) + 0 * mean
        ppl.sample("y", _mixture(ppl, weights, components), obs=y)


def _counts() -> tuple:
    rng = np.random.default_rng(103)
    return (rng.poisson(np.repeat([2.0, 10.0, 30.0], [50, 40, 30])).astype(float),)


@entry(GROUP, _counts)
def counts(ppl: Any, y: Any) -> None:
    """Three rates."""
    dist = ppl.dist
    weights = ppl.sample("weights", dist.Dirichlet(ppl.array(np.ones(3))))
    rate = ppl.sample("rate", dist.LogNormal(2.0, 1.0).expand([3]).to_event(1))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", _mixture(ppl, weights, dist.Poisson(rate)), obs=y)


def _clusters() -> tuple:
    rng = np.random.default_rng(104)
    return (rng.normal(np.repeat([-400.0, 0.0, 350.0, 900.0], 25), 60.0),)


@entry(GROUP, _clusters, held_out=True)
def raw_clusters(ppl: Any, y: Any) -> None:
    """Four components in hundreds, one common width."""
    dist = ppl.dist
    loc = ppl.normals("loc", 4, 500.0)
    scale = ppl.sample("scale", dist.HalfNormal(200.0))
    with ppl.plate("rows", len(y)):
        weights = ppl.array(np.full(4, 0.25))
        ppl.sample("y", _mixture(ppl, weights, dist.Normal(loc, scale)), obs=y)
