"""What changes in time: differential equations, sinusoids, processes."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.gauntlet.models.data import codes, columns, helmet
from benchmarks.gauntlet.models.registry import later

PI = float(np.pi)


def _eye(size: int) -> np.ndarray:
    return np.eye(size)


def _theophylline() -> tuple:
    subject, dose, t, y = columns("datasets", "Theoph", "Subject", "Dose", "Time", "conc")
    return codes(subject), dose, t, y


@later("dynamics", _theophylline)
def compartment(ppl: Any, subject: Any, dose: Any, t: Any, y: Any) -> None:
    """Twelve people take theophylline: one compartment, in which two rates can change places."""
    dist, np = ppl.dist, ppl.np
    mu = ppl.normals("mu", 3, 3.0)
    widths = ppl.sample("widths", dist.HalfNormal(1.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfNormal(2.0))
    with ppl.plate("subjects", 12):
        own_uptake = ppl.sample("own_uptake", dist.Normal(0.0, 1.0))
        own_clearance = ppl.sample("own_clearance", dist.Normal(0.0, 1.0))
    uptake = np.exp(mu[0] + widths[0] * own_uptake[subject])
    clearance = np.exp(mu[1] + widths[1] * own_clearance[subject])
    loss = np.exp(mu[2])
    with ppl.plate("rows", len(y)):
        scale = dose * loss * uptake / (clearance * (uptake - loss))
        mean = scale * (np.exp(-loss * t) - np.exp(-uptake * t))
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


def _damped() -> tuple:
    t = np.linspace(0, 12, 45)
    noise = 9 * np.random.default_rng(3801).normal(size=45)
    return t, 120 + 45 * np.exp(-0.18 * t) * np.cos(2.6 * t + 1.1) + noise


@later("dynamics", _damped)
def damped(ppl: Any, t: Any, y: Any) -> None:
    """A damped wave with an unknown phase, about 120."""
    dist, np = ppl.dist, ppl.np
    base = ppl.sample("base", dist.Normal(100.0, 100.0))
    height = ppl.sample("height", dist.HalfNormal(100.0))
    decay = ppl.sample("decay", dist.LogNormal(-1.5, 1.0))
    omega = ppl.sample("omega", dist.Gamma(2.0, 0.7))
    phase = ppl.sample("phase", dist.Normal(0.0, 2.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(50.0))
    with ppl.plate("rows", len(y)):
        mean = base + height * np.exp(-decay * t) * np.cos(omega * t + phase)
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


def _stock() -> tuple:
    rng, x, seen = np.random.default_rng(3802), 0.6, []
    for _ in range(30):
        x = x * np.exp(1.1 * (1 - x))
        seen.append(x * np.exp(0.15 * rng.normal()))
    return (5000 * np.array(seen),)


@later("dynamics", _stock)
def ricker(ppl: Any, y: Any) -> None:
    """Ricker's map, whose path is chaotic for some rates."""
    dist, np = ppl.dist, ppl.np
    rate = ppl.sample("rate", dist.LogNormal(0.0, 1.0))
    size = ppl.sample("size", dist.LogNormal(8.0, 1.0))
    first = ppl.sample("first", dist.LogNormal(8.0, 1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    path = ppl.iterate(lambda x: x * np.exp(rate * (1 - x / size)), first, len(y))
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.LogNormal(np.log(path + 1e-6), sigma), obs=y)


def _relaxation() -> tuple:
    rng, state, seen = np.random.default_rng(3815), np.array([1.0, 0.0]), []

    def slope(s: np.ndarray) -> np.ndarray:
        return np.array([s[1], 1.5 * (1 - s[0] ** 2) * s[1] - s[0]])

    for step in range(200):
        k1 = slope(state)
        k2 = slope(state + 0.05 * k1)
        k3 = slope(state + 0.05 * k2)
        k4 = slope(state + 0.1 * k3)
        state = state + 0.1 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        if step % 5 == 4:
            seen.append(state[0] + 0.2 * rng.normal())
    return (np.array(seen),)


@later("dynamics", _relaxation)
def van_der_pol(ppl: Any, y: Any) -> None:
    """Van der Pol's oscillator, its strength and its pace."""
    dist, np = ppl.dist, ppl.np
    strength = ppl.sample("strength", dist.LogNormal(0.0, 0.7))
    pace = ppl.sample("pace", dist.LogNormal(0.0, 0.5))
    first = ppl.normals("first", 2)
    sigma = ppl.sample("sigma", dist.HalfNormal(0.5))

    def slope(s: Any) -> Any:
        return np.stack([pace * s[1], pace * (strength * (1 - s[0] ** 2) * s[1] - s[0])])

    path = ppl.runge_kutta(slope, first, 0.1, 200)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(path[4::5, 0], sigma), obs=y)


def _fast() -> tuple:
    rng = np.random.default_rng(3816)
    t = np.sort(rng.uniform(0, 10, 60))
    return t, 3 * np.sin(7.3 * t) + rng.normal(size=60)


@later("dynamics", _fast)
def high_frequency(ppl: Any, t: Any, y: Any) -> None:
    """One of the frequencies up to 20, with dozens of modes between."""
    dist, np = ppl.dist, ppl.np
    omega = ppl.sample("omega", dist.Uniform(0.0, 20.0))
    waves = ppl.normals("waves", 2, 3.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(3.0))
    with ppl.plate("rows", len(y)):
        mean = waves[0] * np.sin(omega * t) + waves[1] * np.cos(omega * t)
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


@later("processes", lambda: helmet(3))
def crash_process(ppl: Any, t: Any, y: Any) -> None:
    """A Gaussian process over milliseconds, heights of a hundred."""
    dist, np = ppl.dist, ppl.np
    length = ppl.sample("length", dist.LogNormal(1.5, 1.0))
    height = ppl.sample("height", dist.HalfNormal(100.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(50.0))
    distance = (t[:, None] - t[None, :]) / length
    noise = (sigma**2 + 1e-3) * ppl.array(_eye(len(y)))
    kernel = height**2 * np.exp(-0.5 * distance**2) + noise
    ppl.sample("y", dist.MultivariateNormal(ppl.array([0.0] * len(y)), kernel), obs=y)


def _passengers() -> tuple:
    t, y = columns("datasets", "AirPassengers", "time", "value")
    return t[:96] - 1949, y[:96]


@later("processes", _passengers)
def passengers(ppl: Any, t: Any, y: Any) -> None:
    """A trend and a season of a year, thousands of passengers."""
    dist, np = ppl.dist, ppl.np
    lengths = ppl.sample("lengths", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    heights = ppl.sample("heights", dist.HalfNormal(100.0).expand([2]).to_event(1))
    mean = ppl.sample("mean", dist.Normal(300.0, 50.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(30.0))
    apart = t[:, None] - t[None, :]
    trend = heights[0] ** 2 * np.exp(-0.5 * (apart / lengths[0]) ** 2)
    season = heights[1] ** 2 * np.exp(-2 * np.sin(PI * apart) ** 2 / lengths[1] ** 2)
    kernel = trend + season + (sigma**2 + 1e-4) * ppl.array(_eye(len(y)))
    ppl.sample("y", dist.MultivariateNormal(mean * ppl.array([1.0] * len(y)), kernel), obs=y)


def _returns() -> tuple:
    rng, level = np.random.default_rng(3811), np.zeros(80)
    for t in range(1, 80):
        level[t] = 0.95 * level[t - 1] + 0.25 * rng.normal()
    return (0.01 * np.exp(level / 2) * rng.normal(size=80),)


@later("processes", _returns)
def volatility(ppl: Any, y: Any) -> None:
    """Returns of a percent whose width is a process of first order."""
    dist, np = ppl.dist, ppl.np
    mu = ppl.sample("mu", dist.Normal(-8.0, 4.0))
    keep = ppl.sample("keep", dist.Beta(20.0, 1.5))
    width = ppl.sample("width", dist.HalfNormal(0.5))
    with ppl.plate("times", len(y)):
        z = ppl.sample("z", dist.Normal(0.0, 1.0))
    levels = [z[0] * width / np.sqrt(1 - keep**2)]
    for t in range(1, len(y)):
        levels.append(keep * levels[-1] + width * z[t])
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(0.0, np.exp((mu + np.stack(levels)) / 2)), obs=y)


@later("plain", lambda: tuple(columns("datasets", "lynx", "value")))
def lynx(ppl: Any, y: Any) -> None:
    """An autoregression of second order, of numbers up to 7,000."""
    dist = ppl.dist
    mean = ppl.sample("mean", dist.Normal(0.0, 3000.0))
    keep = ppl.normals("keep", 2)
    sigma = ppl.sample("sigma", dist.HalfNormal(3000.0))
    with ppl.plate("rows", len(y) - 2):
        next_one = mean + keep[0] * (y[1:-1] - mean) + keep[1] * (y[:-2] - mean)
        ppl.sample("y", dist.Normal(next_one, sigma), obs=y[2:])
