"""Time, space, directions, mixtures, copulas and counts of the unseen, with real data."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import (
    labels,
    log_negative_binomial,
    log_sigmoid,
    log_sum_exp,
    numbers,
    real,
    special,
    table,
)

PI = float(np.pi)


def _column(package: str, item: str, name: str) -> np.ndarray:
    return numbers(table(package, item), name)[:, 0]


@real(lambda: (_column("datasets", "lh", "value"),))
def hormone(ppl: Any, y: Any) -> None:
    """An autoregression of third order."""
    dist = ppl.dist
    mean = ppl.sample("mean", dist.Normal(2.0, 2.0))
    keep = ppl.normals("keep", 3)
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    rest = y - mean
    after = mean + keep[0] * rest[2:-1] + keep[1] * rest[1:-2] + keep[2] * rest[:-3]
    with ppl.plate("rows", len(y) - 3):
        ppl.sample("y", dist.Normal(after, sigma), obs=y[3:])


@real(lambda: (_column("datasets", "nhtemp", "value"),), "process")
def new_haven(ppl: Any, y: Any) -> None:
    """Degrees of sixty years about a level that walks, centred: the levels are the latents."""
    dist = ppl.dist
    tau = ppl.sample("tau", dist.HalfNormal(1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(2.0))
    level = ppl.normals("level", 60, 5.0, loc=50.0)
    ppl.factor("walk", dist.Normal(0.0, tau).log_prob(level[1:] - level[:-1]).sum())
    with ppl.plate("rows", 60):
        ppl.sample("y", dist.Normal(level, sigma), obs=y)


def _species() -> tuple:
    count, species = numbers(table("vcd", "Butterfly"), "nTokens", "Freq").T
    every = np.arange(301.0)
    table_of = np.zeros(301)
    table_of[count.astype(int)] = species
    return every, table_of, (table_of == 0).astype(float)


@real(_species, "ridge")
def butterflies(ppl: Any, count: Any, species: Any, missing: Any) -> None:
    """Fisher's butterflies of Malaya: how many species are there, of which 501 were caught one
    to 24 times? Abundances are negative binomial.
    """
    dist, np, lib = ppl.dist, ppl.np, special(ppl)
    more = ppl.sample("more", dist.LogNormal(5.5, 1.0))
    phi = ppl.sample("phi", dist.LogNormal(-1.0, 1.0))
    mean = ppl.sample("mean", dist.LogNormal(1.5, 1.0))
    log_probs = log_negative_binomial(ppl, phi, mean, count)
    others = np.log((missing * np.exp(log_probs)).sum() + 1e-9)
    seen = (species * log_probs).sum()
    ways = lib.gammaln(more + 502.0) - lib.gammaln(more + 1.0)
    ppl.factor("table", ways + more * others + seen)


def _heights() -> tuple:
    t = table("MASS", "topo")
    xy = numbers(t, "x", "y")
    gaps = ((xy[:, None] - xy) ** 2).sum(-1)
    return gaps, np.eye(len(xy)), numbers(t, "z")[:, 0]


@real(_heights, "process")
def hills_and_valleys(ppl: Any, gaps: Any, eye: Any, y: Any) -> None:
    """A Gaussian process over a map, heights of 700 to 960 feet."""
    dist, np = ppl.dist, ppl.np
    mean = ppl.sample("mean", dist.Normal(800.0, 200.0))
    height = ppl.sample("height", dist.HalfNormal(200.0))
    length = ppl.sample("length", dist.LogNormal(0.5, 0.7))
    sigma = ppl.sample("sigma", dist.HalfNormal(30.0))
    cov = height**2 * np.exp(-0.5 * gaps / length**2) + (sigma**2 + 0.1) * eye
    ppl.sample("y", dist.MultivariateNormal(mean + 0 * y, covariance_matrix=cov), obs=y)


@real(lambda: (_column("boot", "paulsen", "y")[::2],), "modes")
def currents(ppl: Any, y: Any) -> None:
    """Three kinds of currents in a brain, which nothing orders."""
    dist, np = ppl.dist, ppl.np
    weights = ppl.sample("weights", dist.Dirichlet(ppl.array(_TWOS)))
    loc = ppl.normals("loc", 3, 8.0, loc=12.0)
    scale = ppl.sample("scale", dist.LogNormal(1.0, 0.7).expand([3]).to_event(1))
    terms = np.log(weights) + dist.Normal(loc, scale).log_prob(y[:, None])
    ppl.factor("rows", log_sum_exp(ppl, terms).sum())


_TWOS = np.full(3, 2.0)


@real(lambda: tuple(numbers(table("boot", "frets"), "l1", "l2").T), "ridge")
def brothers(ppl: Any, x: Any, y: Any) -> None:
    """Heads of brothers in millimetres: logistic margins joined by Clayton's copula."""
    dist, np = ppl.dist, ppl.np
    loc = ppl.normals("loc", 2, 50.0, loc=180.0)
    scale = ppl.sample("scale", dist.HalfNormal(20.0).expand([2]).to_event(1))
    theta = ppl.sample("theta", dist.LogNormal(0.0, 1.0))
    u = log_sigmoid(ppl, (x - loc[0]) / scale[0])
    v = log_sigmoid(ppl, (y - loc[1]) / scale[1])
    other_u = log_sigmoid(ppl, -(x - loc[0]) / scale[0])
    other_v = log_sigmoid(ppl, -(y - loc[1]) / scale[1])
    margins = u + other_u + v + other_v - np.log(scale[0]) - np.log(scale[1])
    a, b = -theta * u, -theta * v
    # log(e^a + e^b - 1), both at least zero.
    low, high = np.minimum(a, b), np.maximum(a, b)
    joint = high + np.log1p(np.exp(-high) * np.expm1(low))
    copula = np.log1p(theta) - (1 + theta) * (u + v) - (2 + 1 / theta) * joint
    ppl.factor("rows", (margins + copula).sum())


def _orchard() -> tuple:
    t = table("datasets", "OrchardSprays").sort_values(["rowpos", "colpos"])
    place = np.arange(64)
    row, column = place // 8, place % 8
    near = abs(row[:, None] - row) + abs(column[:, None] - column) == 1
    W = near.astype(float)
    return W, np.diag(W.sum(1)), labels(t["treatment"]), np.log(numbers(t, "decrease")[:, 0])


@real(_orchard, "process")
def orchard(ppl: Any, W: Any, D: Any, treatment: Any, y: Any) -> None:
    """Eight sprays on a square of 64 plots, with a field that neighbours share."""
    dist = ppl.dist
    rho = ppl.sample("rho", dist.Beta(4.0, 1.0))
    tau = ppl.sample("tau", dist.HalfNormal(1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    level = ppl.normals("level", 8, 2.0, loc=3.0)
    precision = (D - 0.999 * rho * W) / (tau**2 + 1e-6)
    prior = dist.MultivariateNormal(0 * y, precision_matrix=precision)
    field = ppl.sample("field", prior)
    with ppl.plate("plots", 64):
        ppl.sample("y", dist.Normal(level[treatment] + field, sigma), obs=y)


@real(lambda: (_column("HistData", "Snow.dates", "attacks")[10:43],), "dynamics")
def cholera(ppl: Any, y: Any) -> None:
    """Attacks a day in Golden Square, 1854: an epidemic in steps of days."""
    dist, np = ppl.dist, ppl.np
    size = ppl.sample("size", dist.LogNormal(6.5, 1.0))
    contact = ppl.sample("contact", dist.LogNormal(0.0, 0.7))
    recovery = ppl.sample("recovery", dist.LogNormal(-1.0, 0.7))
    begin = ppl.sample("begin", dist.LogNormal(1.0, 1.0))
    phi = ppl.sample("phi", dist.LogNormal(1.0, 1.0))
    leave = -np.expm1(-recovery)

    def step(state: Any) -> Any:
        attacked = -state[0] * np.expm1(-contact * state[1] / size)
        return np.stack([state[0] - attacked, state[1] * (1 - leave) + attacked, attacked])

    path = ppl.iterate(step, np.stack([size, begin, 0 * begin]), len(y))
    mean = path[:, 2] + 0.3
    with ppl.plate("days", len(y)):
        ppl.sample("y", dist.GammaPoisson(phi, phi / mean), obs=y)


@real(lambda: (_column("boot", "islay", "theta") * PI / 180,))
def directions(ppl: Any, y: Any) -> None:
    """Von Mises's distribution of directions of a stream of old, in radians."""
    dist, np = ppl.dist, ppl.np
    loc = ppl.sample("loc", dist.Uniform(-PI, PI))
    kappa = ppl.sample("kappa", dist.Gamma(2.0, 0.5))
    normaliser = np.log(2 * PI * special(ppl).i0e(kappa)) + kappa
    ppl.factor("rows", (kappa * np.cos(y - loc)).sum() - len(y) * normaliser)


def _athletes() -> tuple:
    names = "hurdles", "highjump", "shot", "run200m", "longjump", "javelin", "run800m"
    return (numbers(table("HSAUR", "heptathlon"), *names),)


@real(_athletes, "raw")
def heptathlon(ppl: Any, y: Any) -> None:
    """Seven events in seconds and metres: a normal with means, widths and correlations."""
    dist = ppl.dist
    mean = ppl.normals("mean", 7, 100.0)
    scale = ppl.sample("scale", dist.HalfCauchy(10.0).expand([7]).to_event(1))
    root = ppl.sample("root", dist.LKJCholesky(7, 1.0))
    with ppl.plate("athletes", y.shape[0]):
        noise = dist.MultivariateNormal(mean, scale_tril=scale[:, None] * root)
        ppl.sample("y", noise, obs=y)
