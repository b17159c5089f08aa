"""Two latents on a curved and narrow ridge."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import entry

GROUP = "ridges"


def _nothing() -> tuple:
    return ()


def _banana(sigma: float) -> Any:
    def banana(ppl: Any) -> None:
        dist = ppl.dist
        x = ppl.sample("x", dist.Normal(0.0, 1.0))
        y = ppl.sample("y", dist.Normal(0.0, 3.0))
        ppl.sample("seen", dist.Normal(y - x**2, sigma), obs=ppl.array(0.0))

    return banana


entry(GROUP, _nothing, "banana")(_banana(0.1))
entry(GROUP, _nothing, "narrow_banana", held_out=True)(_banana(0.02))


@entry(GROUP, _nothing)
def product(ppl: Any) -> None:
    """Two factors whose product is known."""
    dist = ppl.dist
    a = ppl.sample("a", dist.Normal(1.0, 1.0))
    b = ppl.sample("b", dist.Normal(1.0, 1.0))
    ppl.sample("seen", dist.Normal(a * b, 0.05), obs=ppl.array(1.0))


@entry(GROUP, _nothing)
def ring(ppl: Any) -> None:
    dist = ppl.dist
    a = ppl.sample("a", dist.Normal(0.0, 1.0))
    b = ppl.sample("b", dist.Normal(0.0, 1.0))
    radius = ppl.np.sqrt(a**2 + b**2 + 1e-6)
    ppl.sample("seen", dist.Normal(radius, 0.05), obs=ppl.array(1.0))


def _decay() -> tuple:
    rng = np.random.default_rng(41)
    t = np.array([0.1, 0.2, 0.3, 0.5])
    return t, 5 * np.exp(-0.4 * t) + 0.02 * rng.normal(size=4)


@entry(GROUP, _decay)
def exponentials(ppl: Any, t: Any, y: Any) -> None:
    """A sum of two decays, seen too early to tell them apart."""
    dist, np = ppl.dist, ppl.np
    a = ppl.sample("a", dist.LogNormal(0.0, 1.0))
    b = ppl.sample("b", dist.LogNormal(0.0, 1.0))
    with ppl.plate("times", len(y)):
        mean = a * np.exp(-0.2 * t) + 5 * np.exp(-b * t) - a
        ppl.sample("y", dist.Normal(mean, 0.05), obs=y)


def _enzyme() -> tuple:
    rng = np.random.default_rng(42)
    dose = np.array([0.02, 0.05, 0.1, 0.2, 0.3])
    return dose, 40 * dose / (8 + dose) * np.exp(0.02 * rng.normal(size=5))


@entry(GROUP, _enzyme, held_out=True)
def enzyme(ppl: Any, dose: Any, y: Any) -> None:
    """Michaelis and Menten's curve far from saturation: a ratio is known."""
    dist = ppl.dist
    top = ppl.sample("top", dist.HalfNormal(50.0))
    half = ppl.sample("half", dist.HalfNormal(10.0))
    with ppl.plate("doses", len(y)):
        mean = ppl.np.log(top * dose / (half + dose))
        ppl.sample("y", dist.Normal(mean, 0.02), obs=ppl.np.log(y))


@entry(GROUP, _nothing)
def sine(ppl: Any) -> None:
    dist = ppl.dist
    x = ppl.sample("x", dist.Normal(0.0, 2.0))
    y = ppl.sample("y", dist.Normal(0.0, 2.0))
    ppl.sample("seen", dist.Normal(y - ppl.np.sin(2 * x), 0.1), obs=ppl.array(0.0))
