"""Mixtures, summed over their components, whose labels may change places."""

import numpy as np

from .entries import columns, entry, standard

GROUP = "mixtures"


def _mixture(ppl, weights, components):
    return ppl.MixtureSameFamily(ppl.Categorical(weights), components)


def _two() -> tuple:
    rng = np.random.default_rng(101)
    return (np.concatenate([rng.normal(-2, 1, 60), rng.normal(2.5, 1, 40)]),)


@entry(GROUP, _two)
def two(ppl, y):
    """Two normals with exchangeable priors."""
    share = ppl.sample("share", ppl.Beta(2.0, 2.0))
    loc = ppl.normals("loc", 2, 3.0)
    scale = ppl.sample("scale", ppl.LogNormal(0.0, 0.5).expand([2]).to_event(1))
    weights = ppl.stack([share, 1 - share])
    ppl.rows(_mixture(ppl, weights, ppl.Normal(loc, scale)), y)


@entry(GROUP, lambda: (columns("MASS", "galaxies", "dat")[0] / 1000,))
def galaxies(ppl, y):
    """Three components of velocities in thousands of km/s."""
    weights = ppl.sample("weights", ppl.Dirichlet(ppl.array(2 * np.ones(3))))
    loc = ppl.normals("loc", 3, 10.0, 20.0)
    scale = ppl.sample("scale", ppl.LogNormal(0.5, 0.7).expand([3]).to_event(1))
    ppl.rows(_mixture(ppl, weights, ppl.Normal(loc, scale)), y)


def _geyser() -> tuple:
    table = np.column_stack(columns("datasets", "faithful", "eruptions", "waiting"))
    return (standard(table),)


@entry(GROUP, _geyser)
def geyser(ppl, y):
    """Two clouds in the plane."""
    share = ppl.sample("share", ppl.Beta(2.0, 2.0))
    loc = ppl.normals("loc", 4, 2.0).reshape(2, 2)
    scale = ppl.sample("scale", ppl.LogNormal(-0.5, 0.7).expand([4]).to_event(1)).reshape(2, 2)
    with ppl.plate("rows", y.shape[0]):
        components = ppl.Normal(loc, scale).to_event(1)
        ppl.sample("y", _mixture(ppl, ppl.stack([share, 1 - share]), components), obs=y)


def _crossing() -> tuple:
    rng = np.random.default_rng(102)
    x = rng.uniform(-2, 2, 90)
    slope = np.where(np.arange(90) % 3 == 0, -1.5, 1.0)
    return x, 0.5 + slope * x + 0.3 * rng.normal(size=90)


@entry(GROUP, _crossing)
def crossing(ppl, x, y):
    """Two regression lines that cross."""
    share = ppl.sample("share", ppl.Beta(2.0, 2.0))
    intercept, slope = ppl.normals("intercept", 2, 2.0), ppl.normals("slope", 2, 2.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    mean = intercept + slope * x[:, None]
    components = ppl.Normal(mean, sigma)
    weights = ppl.stack([share, 1 - share]) + 0 * mean
    ppl.rows(_mixture(ppl, weights, components), y)


def _counts() -> tuple:
    rng = np.random.default_rng(103)
    return (rng.poisson(np.repeat([2.0, 10.0, 30.0], [50, 40, 30])).astype(float),)


@entry(GROUP, _counts)
def counts(ppl, y):
    """Three rates."""
    weights = ppl.sample("weights", ppl.Dirichlet(ppl.array(np.ones(3))))
    rate = ppl.sample("rate", ppl.LogNormal(2.0, 1.0).expand([3]).to_event(1))
    ppl.rows(_mixture(ppl, weights, ppl.Poisson(rate)), y)


def _clusters() -> tuple:
    rng = np.random.default_rng(104)
    return (rng.normal(np.repeat([-400.0, 0.0, 350.0, 900.0], 25), 60.0),)


@entry(GROUP, _clusters)
def raw_clusters(ppl, y):
    """Four components in hundreds, one common width."""
    loc = ppl.normals("loc", 4, 500.0)
    scale = ppl.sample("scale", ppl.HalfNormal(200.0))
    weights = ppl.array(np.full(4, 0.25))
    ppl.rows(_mixture(ppl, weights, ppl.Normal(loc, scale)), y)
