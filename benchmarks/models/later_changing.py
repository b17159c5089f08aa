"""What changes in time: differential equations, sinusoids, processes."""

from typing import Any

import numpy as np

from .entries import codes, columns, entry, helmet

PI = float(np.pi)


def _eye(size: int) -> np.ndarray:
    return np.eye(size)


def _theophylline() -> tuple:
    subject, dose, t, y = columns("datasets", "Theoph", "Subject", "Dose", "Time", "conc")
    return codes(subject), dose, t, y


@entry("dynamics", _theophylline)
def compartment(ppl, subject, dose, t, y):
    """Twelve people take theophylline: one compartment, in which two rates can change places."""
    mu = ppl.normals("mu", 3, 3.0)
    widths = ppl.sample("widths", ppl.HalfNormal(1.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfNormal(2.0))
    with ppl.plate("subjects", 12):
        own_uptake = ppl.sample("own_uptake", ppl.Normal(0.0, 1.0))
        own_clearance = ppl.sample("own_clearance", ppl.Normal(0.0, 1.0))
    uptake = ppl.exp(mu[0] + widths[0] * own_uptake[subject])
    clearance = ppl.exp(mu[1] + widths[1] * own_clearance[subject])
    loss = ppl.exp(mu[2])
    scale = dose * loss * uptake / (clearance * (uptake - loss))
    mean = scale * (ppl.exp(-loss * t) - ppl.exp(-uptake * t))
    ppl.rows(ppl.Normal(mean, sigma), y)


def _damped() -> tuple:
    t = np.linspace(0, 12, 45)
    noise = 9 * np.random.default_rng(3801).normal(size=45)
    return t, 120 + 45 * np.exp(-0.18 * t) * np.cos(2.6 * t + 1.1) + noise


@entry("dynamics", _damped)
def damped(ppl, t, y):
    """A damped wave with an unknown phase, about 120."""
    base, height = ppl.draws(base=ppl.Normal(100.0, 100.0), height=ppl.HalfNormal(100.0))
    decay, omega = ppl.draws(decay=ppl.LogNormal(-1.5, 1.0), omega=ppl.Gamma(2.0, 0.7))
    phase, sigma = ppl.draws(phase=ppl.Normal(0.0, 2.0), sigma=ppl.HalfNormal(50.0))
    mean = base + height * ppl.exp(-decay * t) * ppl.cos(omega * t + phase)
    ppl.rows(ppl.Normal(mean, sigma), y)


def _stock() -> tuple:
    rng, x, seen = np.random.default_rng(3802), 0.6, []
    for _ in range(30):
        x = x * np.exp(1.1 * (1 - x))
        seen.append(x * np.exp(0.15 * rng.normal()))
    return (5000 * np.array(seen),)


@entry("dynamics", _stock)
def ricker(ppl, y):
    """Ricker's map, whose path is chaotic for some rates."""
    rate, size = ppl.draws(rate=ppl.LogNormal(0.0, 1.0), size=ppl.LogNormal(8.0, 1.0))
    first, sigma = ppl.draws(first=ppl.LogNormal(8.0, 1.0), sigma=ppl.HalfNormal(1.0))
    path = ppl.iterate(lambda x: x * ppl.exp(rate * (1 - x / size)), first, len(y))
    ppl.rows(ppl.LogNormal(ppl.log(path + 1e-6), sigma), y)


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


@entry("dynamics", _relaxation)
def van_der_pol(ppl, y):
    """Van der Pol's oscillator, its strength and its pace."""
    strength, pace = ppl.draws(strength=ppl.LogNormal(0.0, 0.7), pace=ppl.LogNormal(0.0, 0.5))
    first = ppl.normals("first", 2)
    sigma = ppl.sample("sigma", ppl.HalfNormal(0.5))

    def slope(s: Any) -> Any:
        return ppl.stack([pace * s[1], pace * (strength * (1 - s[0] ** 2) * s[1] - s[0])])

    path = ppl.runge_kutta(slope, first, 0.1, 200)
    ppl.rows(ppl.Normal(path[4::5, 0], sigma), y)


def _fast() -> tuple:
    rng = np.random.default_rng(3816)
    t = np.sort(rng.uniform(0, 10, 60))
    return t, 3 * np.sin(7.3 * t) + rng.normal(size=60)


@entry("dynamics", _fast)
def high_frequency(ppl, t, y):
    """One of the frequencies up to 20, with dozens of modes between."""
    omega = ppl.sample("omega", ppl.Uniform(0.0, 20.0))
    waves = ppl.normals("waves", 2, 3.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(3.0))
    mean = waves[0] * ppl.sin(omega * t) + waves[1] * ppl.cos(omega * t)
    ppl.rows(ppl.Normal(mean, sigma), y)


@entry("processes", lambda: helmet(3))
def crash_process(ppl, t, y):
    """A Gaussian process over milliseconds, heights of a hundred."""
    length, height = ppl.draws(length=ppl.LogNormal(1.5, 1.0), height=ppl.HalfNormal(100.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(50.0))
    distance = (t[:, None] - t[None, :]) / length
    noise = (sigma**2 + 1e-3) * ppl.array(_eye(len(y)))
    kernel = height**2 * ppl.exp(-0.5 * distance**2) + noise
    ppl.sample("y", ppl.MultivariateNormal(ppl.array([0.0] * len(y)), kernel), obs=y)


def _passengers() -> tuple:
    t, y = columns("datasets", "AirPassengers", "time", "value")
    return t[:96] - 1949, y[:96]


@entry("processes", _passengers)
def passengers(ppl, t, y):
    """A trend and a season of a year, thousands of passengers."""
    lengths = ppl.sample("lengths", ppl.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    heights = ppl.sample("heights", ppl.HalfNormal(100.0).expand([2]).to_event(1))
    mean, sigma = ppl.draws(mean=ppl.Normal(300.0, 50.0), sigma=ppl.HalfNormal(30.0))
    apart = t[:, None] - t[None, :]
    trend = heights[0] ** 2 * ppl.exp(-0.5 * (apart / lengths[0]) ** 2)
    season = heights[1] ** 2 * ppl.exp(-2 * ppl.sin(PI * apart) ** 2 / lengths[1] ** 2)
    kernel = trend + season + (sigma**2 + 1e-4) * ppl.array(_eye(len(y)))
    ppl.sample("y", ppl.MultivariateNormal(mean * ppl.array([1.0] * len(y)), kernel), obs=y)


def _returns() -> tuple:
    rng, level = np.random.default_rng(3811), np.zeros(80)
    for t in range(1, 80):
        level[t] = 0.95 * level[t - 1] + 0.25 * rng.normal()
    return (0.01 * np.exp(level / 2) * rng.normal(size=80),)


@entry("processes", _returns)
def volatility(ppl, y):
    """Returns of a percent whose width is a process of first order."""
    mu, keep = ppl.draws(mu=ppl.Normal(-8.0, 4.0), keep=ppl.Beta(20.0, 1.5))
    width = ppl.sample("width", ppl.HalfNormal(0.5))
    with ppl.plate("times", len(y)):
        z = ppl.sample("z", ppl.Normal(0.0, 1.0))
    levels = [z[0] * width / ppl.sqrt(1 - keep**2)]
    for t in range(1, len(y)):
        levels.append(keep * levels[-1] + width * z[t])
    ppl.rows(ppl.Normal(0.0, ppl.exp((mu + ppl.stack(levels)) / 2)), y)


@entry("plain", lambda: tuple(columns("datasets", "lynx", "value")))
def lynx(ppl, y):
    """An autoregression of second order, of numbers up to 7,000."""
    mean = ppl.sample("mean", ppl.Normal(0.0, 3000.0))
    keep = ppl.normals("keep", 2)
    sigma = ppl.sample("sigma", ppl.HalfNormal(3000.0))
    with ppl.plate("rows", len(y) - 2):
        next_one = mean + keep[0] * (y[1:-1] - mean) + keep[1] * (y[:-2] - mean)
        ppl.sample("y", ppl.Normal(next_one, sigma), obs=y[2:])
