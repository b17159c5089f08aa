"""Posteriors with several modes of real data, as people write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .everyday import everyday, floats
from .registry import table


def _flippers() -> tuple:
    return (floats(table("palmerpenguins", "penguins").flipper_length_mm.dropna()),)


@everyday(_flippers)
def flippers(ppl: Any, y):
    """Lengths of penguins' flippers, three components."""
    dist = ppl.dist
    w = ppl.sample("w", dist.Dirichlet(ppl.array(np.ones(3))))
    with ppl.plate("k", 3):
        mu = ppl.sample("mu", dist.Normal(200.0, 15.0))
        s = ppl.sample("s", dist.HalfNormal(10.0))
    with ppl.plate("rows", len(y)):
        ppl.sample(
            "y", dist.MixtureSameFamily(dist.Categorical(probs=w), dist.Normal(mu, s)), obs=y
        )


def _drivers() -> tuple:
    d = table("datasets", "UKDriverDeaths")
    return floats(d.time), floats(d.value)


@everyday(_drivers)
def drivers(ppl: Any, year, y):
    """Drivers killed, a step in time."""
    dist = ppl.dist
    tau = ppl.sample("tau", dist.Uniform(1969.0, 1985.0))
    a = ppl.sample("a", dist.Normal(1500.0, 500.0))
    b = ppl.sample("b", dist.Normal(1500.0, 500.0))
    s = ppl.sample("s", dist.HalfNormal(500.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(ppl.np.where(year < tau, a, b), s), obs=y)


def _accdeaths() -> tuple:
    d = table("datasets", "USAccDeaths")
    return np.arange(len(d)) * 1.0, floats(d.value)


@everyday(_accdeaths)
def accdeaths(ppl: Any, t, y):
    """Accidental deaths, a wave of unknown frequency."""
    dist = ppl.dist
    mu = ppl.sample("mu", dist.Normal(9000.0, 1000.0))
    om = ppl.sample("om", dist.Uniform(0.05, 3.0))
    A = ppl.sample("A", dist.Normal(0.0, 1000.0))
    B = ppl.sample("B", dist.Normal(0.0, 1000.0))
    s = ppl.sample("s", dist.HalfNormal(1000.0))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(mu + A * ppl.np.sin(om * t) + B * ppl.np.cos(om * t), s), obs=y)


def _faithful() -> tuple:
    d = table("datasets", "faithful")
    return (np.log(floats(d.eruptions)), floats(d.waiting))


@everyday(_faithful)
def faithful(ppl: Any, x, y):
    """Waiting times of Old Faithful, two components."""
    dist = ppl.dist
    w = ppl.sample("w", dist.Beta(2.0, 2.0))
    with ppl.plate("k", 2):
        m = ppl.sample("m", dist.Normal(70.0, 20.0))
        s = ppl.sample("s", dist.HalfNormal(15.0))
    with ppl.plate("rows", len(y)):
        ppl.sample(
            "y",
            dist.MixtureSameFamily(
                dist.Categorical(probs=ppl.np.stack([w, 1 - w])), dist.Normal(m, s)
            ),
            obs=y,
        )


def _factors() -> tuple:
    d = (
        table("psych", "bfi")[["N1", "N2", "N3", "N4", "N5", "E1", "E2", "E3", "E4", "E5"]]
        .dropna()
        .iloc[:200]
    )
    x = floats(d)
    return ((x - x.mean(0)) / x.std(0),)


@everyday(_factors)
def factors(ppl: Any, y):
    """One factor of ten items, its sign free."""
    dist = ppl.dist
    k = y.shape[1]
    with ppl.plate("items", k):
        load = ppl.sample("l", dist.Normal(0.0, 1.0))
        s = ppl.sample("s", dist.HalfNormal(1.0))
    eye = ppl.array(np.eye(k))
    with ppl.plate("rows", len(y)):
        ppl.sample(
            "y",
            dist.MultivariateNormal(
                ppl.array(np.zeros(k)), load[:, None] * load[None, :] + eye * s**2
            ),
            obs=y,
        )
