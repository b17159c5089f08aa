"""Two latents on a curved and narrow ridge."""

from typing import Any

import numpy as np

from .entries import entry

GROUP = "ridges"


def _nothing() -> tuple:
    return ()


def _banana(sigma: float) -> Any:
    def banana(ppl):
        x, y = ppl.draws(x=ppl.Normal(0.0, 1.0), y=ppl.Normal(0.0, 3.0))
        ppl.sample("seen", ppl.Normal(y - x**2, sigma), obs=ppl.array(0.0))

    return banana


entry(GROUP, _nothing, "banana")(_banana(0.1))
entry(GROUP, _nothing, "narrow_banana")(_banana(0.02))


@entry(GROUP, _nothing)
def product(ppl):
    """Two factors whose product is known."""
    a, b = ppl.draws(a=ppl.Normal(1.0, 1.0), b=ppl.Normal(1.0, 1.0))
    ppl.sample("seen", ppl.Normal(a * b, 0.05), obs=ppl.array(1.0))


@entry(GROUP, _nothing)
def ring(ppl):
    a, b = ppl.draws(a=ppl.Normal(0.0, 1.0), b=ppl.Normal(0.0, 1.0))
    radius = ppl.sqrt(a**2 + b**2 + 1e-6)
    ppl.sample("seen", ppl.Normal(radius, 0.05), obs=ppl.array(1.0))


def _decay() -> tuple:
    rng = np.random.default_rng(41)
    t = np.array([0.1, 0.2, 0.3, 0.5])
    return t, 5 * np.exp(-0.4 * t) + 0.02 * rng.normal(size=4)


@entry(GROUP, _decay)
def exponentials(ppl, t, y):
    """A sum of two decays, seen too early to tell them apart."""
    a, b = ppl.draws(a=ppl.LogNormal(0.0, 1.0), b=ppl.LogNormal(0.0, 1.0))
    mean = a * ppl.exp(-0.2 * t) + 5 * ppl.exp(-b * t) - a
    ppl.rows(ppl.Normal(mean, 0.05), y, "times")


def _enzyme() -> tuple:
    rng = np.random.default_rng(42)
    dose = np.array([0.02, 0.05, 0.1, 0.2, 0.3])
    return dose, 40 * dose / (8 + dose) * np.exp(0.02 * rng.normal(size=5))


@entry(GROUP, _enzyme)
def enzyme(ppl, dose, y):
    """Michaelis and Menten's curve far from saturation: a ratio is known."""
    top, half = ppl.draws(top=ppl.HalfNormal(50.0), half=ppl.HalfNormal(10.0))
    with ppl.plate("doses", len(y)):
        mean = ppl.log(top * dose / (half + dose))
        ppl.sample("y", ppl.Normal(mean, 0.02), obs=ppl.log(y))


@entry(GROUP, _nothing)
def sine(ppl):
    x, y = ppl.draws(x=ppl.Normal(0.0, 2.0), y=ppl.Normal(0.0, 2.0))
    ppl.sample("seen", ppl.Normal(y - ppl.sin(2 * x), 0.1), obs=ppl.array(0.0))
