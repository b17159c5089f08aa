"""What changes in time: waves of unknown periods, growth, processes; R's data in raw units."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gauntlet.models.data import codes, columns
from benchmarks.gauntlet.models.registry import latest

PI = float(np.pi)


def _sunspots() -> tuple:
    year, count = columns("datasets", "sunspot.year", "time", "value")
    return year[::3] - year[::3].mean(), count[::3]


@latest("dynamics", _sunspots)
def sunspots(ppl: Any, t: Any, y: Any) -> None:
    """A wave through counts of every third year: hardly any ascent leads to its period."""
    dist, np = ppl.dist, ppl.np
    period = ppl.sample("period", dist.Uniform(4.0, 60.0))
    waves = ppl.normals("waves", 2, 100.0)
    base = ppl.sample("base", dist.Normal(0.0, 200.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(100.0))
    angle = 2 * PI * t / period
    with ppl.plate("rows", len(y)):
        mean = base + waves[0] * np.sin(angle) + waves[1] * np.cos(angle)
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


@latest("dynamics", lambda: tuple(columns("datasets", "lynx", "time", "value")))
def lynx_wave(ppl: Any, t: Any, y: Any) -> None:
    """A height and a phase, through logarithms of trappings; calendar years."""
    dist, np = ppl.dist, ppl.np
    period = ppl.sample("period", dist.Gamma(4.0, 0.3))
    height = ppl.sample("height", dist.HalfNormal(3.0))
    phase = ppl.sample("phase", dist.Normal(0.0, 2.0))
    base = ppl.sample("base", dist.Normal(0.0, 10.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(2.0))
    with ppl.plate("rows", len(y)):
        mean = base + height * np.cos(2 * PI * (t - 1870.0) / period + phase)
        ppl.sample("y", dist.LogNormal(mean, sigma), obs=y)


def _months() -> tuple:
    month, degrees = columns("datasets", "nottem", "time", "value")
    return 12 * (month[:90:2] - month[0]), degrees[:90:2]


@latest("dynamics", _months)
def temperatures(ppl: Any, t: Any, y: Any) -> None:
    """Every second month of Nottingham, in degrees Fahrenheit; the year's length is not known."""
    dist, np = ppl.dist, ppl.np
    omega = ppl.sample("omega", dist.Uniform(0.05, 1.5))
    waves = ppl.normals("waves", 2, 30.0)
    base = ppl.sample("base", dist.Normal(0.0, 100.0))
    sigma = ppl.sample("sigma", dist.HalfCauchy(10.0))
    with ppl.plate("rows", len(y)):
        mean = base + waves[0] * np.sin(omega * t) + waves[1] * np.cos(omega * t)
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


def _beats() -> tuple:
    rng = np.random.default_rng(5001)
    t = np.linspace(0, 20, 80)
    return t, 300 * np.sin(2.1 * t) + 200 * np.sin(2.6 * t + 1) + 80 * rng.normal(size=80)


@latest("dynamics", _beats)
def beats(ppl: Any, t: Any, y: Any) -> None:
    """Two waves whose frequencies lie near to each other, the second above the first."""
    dist, np = ppl.dist, ppl.np
    first = ppl.sample("first", dist.LogNormal(0.5, 0.7))
    gap = ppl.sample("gap", dist.Exponential(1.0))
    waves = ppl.normals("waves", 4, 300.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(200.0))
    one, two = first * t, (first + gap) * t
    with ppl.plate("rows", len(y)):
        mean = waves[0] * np.sin(one) + waves[1] * np.cos(one)
        mean = mean + waves[2] * np.sin(two) + waves[3] * np.cos(two)
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


@latest("dynamics", lambda: tuple(columns("datasets", "uspop", "time", "value")))
def population(ppl: Any, t: Any, y: Any) -> None:
    """Logistic growth of the United States, in millions; calendar years."""
    dist, np = ppl.dist, ppl.np
    capacity = ppl.sample("capacity", dist.LogNormal(5.0, 1.0))
    rate = ppl.sample("rate", dist.LogNormal(-3.0, 1.0))
    middle = ppl.sample("middle", dist.Normal(1900.0, 100.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(10.0))
    with ppl.plate("rows", len(y)):
        mean = capacity / (1 + np.exp(-rate * (t - middle)))
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


def _pines() -> tuple:
    height, age, seed = columns("datasets", "Loblolly", "height", "age", "Seed")
    return height, age, codes(seed)


@latest("dynamics", _pines)
def pines(ppl: Any, y: Any, age: Any, seed: Any) -> None:
    """Heights of pines from fourteen seeds, which grow to heights of their own; feet and years."""
    dist, np = ppl.dist, ppl.np
    tallest = ppl.sample("tallest", dist.Normal(100.0, 50.0))
    rate = ppl.sample("rate", dist.LogNormal(-3.0, 1.0))
    start = ppl.sample("start", dist.Normal(0.0, 5.0))
    tau = ppl.sample("tau", dist.HalfNormal(20.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(5.0))
    with ppl.plate("seeds", 14):
        own = ppl.sample("own", dist.Normal(0.0, tau))
    with ppl.plate("rows", len(y)):
        mean = (tallest + own[seed]) * (1 - np.exp(-rate * (age - start)))
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


@latest("dynamics", lambda: tuple(columns("datasets", "Indometh", "time", "conc")))
def two_rates(ppl: Any, t: Any, y: Any) -> None:
    """Two rates of elimination, which can change places."""
    dist, np = ppl.dist, ppl.np
    amounts = ppl.sample("amounts", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    rates = ppl.sample("rates", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfNormal(0.5))
    with ppl.plate("rows", len(y)):
        mean = amounts[0] * np.exp(-rates[0] * t) + amounts[1] * np.exp(-rates[1] * t)
        ppl.sample("y", dist.LogNormal(np.log(mean), sigma), obs=y)


@latest("processes", lambda: tuple(columns("datasets", "LakeHuron", "time", "value")))
def levels_of_a_lake(ppl: Any, t: Any, y: Any) -> None:
    """An autoregression about a line, in feet above the sea and calendar years."""
    dist = ppl.dist
    start = ppl.sample("start", dist.Normal(500.0, 200.0))
    slope = ppl.sample("slope", dist.Normal(0.0, 1.0))
    rho = ppl.sample("rho", dist.Uniform(-1.0, 1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(5.0))
    line = start + slope * (t - 1900.0)
    with ppl.plate("rows", len(y) - 1):
        ppl.sample("y", dist.Normal(line[1:] + rho * (y - line)[:-1], sigma), obs=y[1:])


def _deaths() -> tuple:
    t, deaths = columns("datasets", "ldeaths", "time", "value")
    return t - t[0], deaths


@latest("processes", _deaths)
def deaths(ppl: Any, t: Any, y: Any) -> None:
    """A process that comes back after an unknown period, in deaths a month."""
    dist, np = ppl.dist, ppl.np
    base = ppl.sample("base", dist.Normal(0.0, 5000.0))
    scale = ppl.sample("scale", dist.HalfNormal(2000.0))
    length = ppl.sample("length", dist.LogNormal(0.0, 1.0))
    period = ppl.sample("period", dist.LogNormal(0.0, 1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(500.0))
    gaps = t[:, None] - t[None]
    kernel = scale**2 * np.exp(-2 * np.sin(PI * gaps / period) ** 2 / length**2)
    cov = kernel + (sigma**2 + 1e-4 * scale**2) * ppl.array(_eye(len(y)))
    mean = base + 0 * t
    ppl.sample("y", dist.MultivariateNormal(mean, covariance_matrix=cov), obs=y)


def _eye(size: int) -> np.ndarray:
    return np.eye(size)


@latest("processes", lambda: tuple(columns("datasets", "Nile", "value")))
def local_level(ppl: Any, y: Any) -> None:
    """The river's level walks, a hundred steps of their own."""
    dist, np = ppl.dist, ppl.np
    first = ppl.sample("first", dist.Normal(0.0, 2000.0))
    tau = ppl.sample("tau", dist.HalfNormal(100.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(300.0))
    steps = ppl.normals("steps", 99)
    walk = np.cumsum(tau * steps, 0)
    ppl.sample("y0", dist.Normal(first, sigma), obs=y[0])
    with ppl.plate("rows", 99):
        ppl.sample("y", dist.Normal(first + walk, sigma), obs=y[1:])
