"""Posteriors with several modes of real data, as people write them."""

import numpy as np

from .entries import everyday, floats, table


@everyday(lambda: (floats(table("palmerpenguins", "penguins").flipper_length_mm.dropna()),))
def flippers(ppl, y):
    """Lengths of penguins' flippers, three components."""
    w = ppl.sample("w", ppl.Dirichlet(ppl.array(np.ones(3))))
    with ppl.plate("k", 3):
        mu, s = ppl.draws(mu=ppl.Normal(200.0, 15.0), s=ppl.HalfNormal(10.0))
    ppl.rows(ppl.MixtureSameFamily(ppl.Categorical(probs=w), ppl.Normal(mu, s)), y)


def _drivers() -> tuple:
    d = table("datasets", "UKDriverDeaths")
    return floats(d.time), floats(d.value)


@everyday(_drivers)
def drivers(ppl, year, y):
    """Drivers killed, a step in time."""
    tau, a = ppl.draws(tau=ppl.Uniform(1969.0, 1985.0), a=ppl.Normal(1500.0, 500.0))
    b, s = ppl.draws(b=ppl.Normal(1500.0, 500.0), s=ppl.HalfNormal(500.0))
    ppl.rows(ppl.Normal(ppl.where(year < tau, a, b), s), y)


def _accdeaths() -> tuple:
    d = table("datasets", "USAccDeaths")
    return np.arange(len(d)) * 1.0, floats(d.value)


@everyday(_accdeaths)
def accdeaths(ppl, t, y):
    """Accidental deaths, a wave of unknown frequency."""
    mu, om = ppl.draws(mu=ppl.Normal(9000.0, 1000.0), om=ppl.Uniform(0.05, 3.0))
    A, B = ppl.draws(A=ppl.Normal(0.0, 1000.0), B=ppl.Normal(0.0, 1000.0))
    s = ppl.sample("s", ppl.HalfNormal(1000.0))
    ppl.rows(ppl.Normal(mu + A * ppl.sin(om * t) + B * ppl.cos(om * t), s), y)


def _faithful() -> tuple:
    d = table("datasets", "faithful")
    return (np.log(floats(d.eruptions)), floats(d.waiting))


@everyday(_faithful)
def faithful(ppl, x, y):
    """Waiting times of Old Faithful, two components."""
    w = ppl.sample("w", ppl.Beta(2.0, 2.0))
    with ppl.plate("k", 2):
        m, s = ppl.draws(m=ppl.Normal(70.0, 20.0), s=ppl.HalfNormal(15.0))
    ppl.rows(
        ppl.MixtureSameFamily(ppl.Categorical(probs=ppl.stack([w, 1 - w])), ppl.Normal(m, s)), y
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
def factors(ppl, y):
    """One factor of ten items, its sign free."""
    k = y.shape[1]
    with ppl.plate("items", k):
        load = ppl.sample("l", ppl.Normal(0.0, 1.0))
        s = ppl.sample("s", ppl.HalfNormal(1.0))
    eye = ppl.array(np.eye(k))
    ppl.rows(
        ppl.MultivariateNormal(ppl.array(np.zeros(k)), load[:, None] * load[None, :] + eye * s**2),
        y,
    )
