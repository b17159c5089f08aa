"""Curves that come round again: dynamics in a few fixed steps, and phases with aliases."""

from typing import Any

import numpy as np

from .entries import columns, entry

GROUP = "dynamics"


def _rk4(slope: Any, state: np.ndarray, dt: float, count: int) -> np.ndarray:
    states = []
    for _ in range(count):
        k1 = slope(state)
        k2 = slope(state + 0.5 * dt * k1)
        k3 = slope(state + 0.5 * dt * k2)
        state = state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + slope(state + dt * k3))
        states.append(state)
    return np.array(states)


def _oscillator() -> tuple:
    rng = np.random.default_rng(21)
    path = _rk4(
        lambda s: np.array([s[1], -(2.2**2) * s[0] - 0.15 * s[1]]), np.array([1.0, 0.0]), 0.1, 80
    )
    return (path[3::4, 0] + 0.1 * rng.normal(size=20),)


@entry(GROUP, _oscillator)
def oscillator(ppl, y):
    omega, damping = ppl.draws(omega=ppl.LogNormal(0.5, 1.0), damping=ppl.LogNormal(-1.0, 1.0))
    sigma = ppl.sample("sigma", ppl.LogNormal(-1.0, 1.0))

    def slope(s: Any) -> Any:
        return ppl.stack([s[1], -(omega**2) * s[0] - damping * s[1]])

    path = ppl.runge_kutta(slope, ppl.array([1.0, 0.0]), 0.1, 80)
    ppl.rows(ppl.Normal(path[3::4, 0], sigma), y, "times")


def _hares() -> tuple:
    rng = np.random.default_rng(22)
    a, b, c, d = 0.9, 0.5, 0.9, 0.35

    def slope(s: np.ndarray) -> np.ndarray:
        return np.array([a * s[0] - b * s[0] * s[1], -c * s[1] + d * s[0] * s[1]])

    path = _rk4(slope, np.array([3.0, 1.0]), 0.25, 72)[3::4]
    return (np.log(path) + 0.2 * rng.normal(size=path.shape),)


@entry(GROUP, _hares)
def hares(ppl, y):
    """Lotka and Volterra's, in logs; rates and start unknown."""
    rates = ppl.sample("rates", ppl.LogNormal(-0.5, 0.8).expand([4]).to_event(1))
    start = ppl.normals("start", 2, 1.0)
    sigma = ppl.sample("sigma", ppl.LogNormal(-1.0, 1.0))

    def slope(s: Any) -> Any:
        hare, lynx = ppl.exp(s[0]), ppl.exp(s[1])
        return ppl.stack([rates[0] - rates[1] * lynx, -rates[2] + rates[3] * hare])

    path = ppl.runge_kutta(slope, start, 0.25, 72)[3::4]
    with ppl.plate("times", y.shape[0]):
        ppl.sample("y", ppl.Normal(path, sigma).to_event(1), obs=y)


def _sinusoid() -> tuple:
    rng = np.random.default_rng(23)
    t = np.sort(rng.uniform(0, 12, 30))
    return t, 1.3 * np.sin(2.1 * t + 0.7) + 0.3 * rng.normal(size=30)


@entry(GROUP, _sinusoid)
def sinusoid(ppl, t, y):
    """A frequency that the prior hardly knows, a phase whose sign the amplitude may take over."""
    amplitude = ppl.sample("amplitude", ppl.Normal(0.0, 2.0))
    frequency, phase = ppl.draws(frequency=ppl.Uniform(0.2, 5.0), phase=ppl.Normal(0.0, 1.0))
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    mean = amplitude * ppl.sin(frequency * t + phase)
    ppl.rows(ppl.Normal(mean, sigma), y, "times")


def _spikes() -> tuple:
    rng = np.random.default_rng(24)

    def slope(s: np.ndarray) -> np.ndarray:
        return np.array([3 * (s[0] - s[0] ** 3 / 3 + s[1]), -(s[0] - 0.2 + 0.2 * s[1]) / 3])

    path = _rk4(slope, np.array([-1.0, 1.0]), 0.2, 100)[3::4]
    return (path + 0.25 * rng.normal(size=path.shape),)


@entry(GROUP, _spikes)
def spikes(ppl, y):
    """FitzHugh and Nagumo's."""
    a, b, c = ppl.draws(a=ppl.Normal(0.0, 0.5), b=ppl.Normal(0.0, 0.5), c=ppl.LogNormal(0.5, 0.7))
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))

    def slope(s: Any) -> Any:
        voltage = s[0].clip(-5.0, 5.0)
        return ppl.stack([c * (voltage - voltage**3 / 3 + s[1]), -(voltage - a + b * s[1]) / c])

    path = ppl.runge_kutta(slope, ppl.array([-1.0, 1.0]), 0.2, 100)[3::4]
    with ppl.plate("times", y.shape[0]):
        ppl.sample("y", ppl.Normal(path, sigma).to_event(1), obs=y)


def _two_tones() -> tuple:
    rng = np.random.default_rng(25)
    t = np.arange(36) * 0.4
    y = np.sin(1.1 * t) + 0.6 * np.cos(2.9 * t) + 0.25 * rng.normal(size=36)
    return t, y


@entry(GROUP, _two_tones)
def two_tones(ppl, t, y):
    """Two frequencies that may change places, sampled at a fixed rate."""
    frequency = ppl.sample("frequency", ppl.LogNormal(0.5, 0.7).expand([2]).to_event(1))
    weights = ppl.normals("weights", 4, 1.0)
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    mean = sum(
        weights[2 * k] * ppl.sin(frequency[k] * t) + weights[2 * k + 1] * ppl.cos(frequency[k] * t)
        for k in range(2)
    )
    ppl.rows(ppl.Normal(mean, sigma), y, "times")


def _epidemic() -> tuple:
    rng = np.random.default_rng(26)
    s, i, cases = 0.999, 0.001, []
    for _ in range(30):
        new = 0.0
        for _ in range(2):
            infected = 0.5 * 0.7 * s * i
            s, i = s - infected, i + infected - 0.5 * 0.25 * i
            new += infected
        cases.append(new)
    return (rng.poisson(3000 * np.array(cases)).astype(float),)


@entry(GROUP, _epidemic)
def epidemic(ppl, cases):
    """Susceptible, infected, cured: Euler's steps of half a day, cases of a day."""
    beta, gamma = ppl.draws(beta=ppl.LogNormal(0.0, 1.0), gamma=ppl.LogNormal(-1.0, 1.0))
    first, reported = ppl.draws(first=ppl.Beta(1.0, 100.0), reported=ppl.LogNormal(8.0, 1.0))

    def half(s: Any) -> Any:
        infected = 0.5 * beta * s[0] * s[1]
        infected = s[0] * (1 - ppl.exp(-infected / s[0]))  # at most those who still can be
        cured = s[1] * (1 - ppl.exp(-0.5 * gamma))
        return ppl.stack([s[0] - infected, s[1] + infected - cured, s[2] + infected])

    path = ppl.iterate(half, ppl.stack([1 - first, first, 0 * first]), 60)[1::2, 2]
    new = path - ppl.concatenate([0 * path[:1], path[:-1]])
    with ppl.plate("days", len(cases)):
        ppl.sample("cases", ppl.Poisson(reported * new + 1e-3), obs=cases)


def _tides() -> tuple:
    (temperature,) = columns("datasets", "nottem", "value")
    y = temperature[:48]
    return np.arange(48.0), (y - y.mean()) / y.std()


@entry(GROUP, _tides)
def seasons(ppl, t, y):
    """Months of temperatures; the period's prior has its mean at the half of it."""
    period, shift = ppl.draws(period=ppl.LogNormal(1.8, 0.5), shift=ppl.Uniform(-3.2, 3.2))
    amplitude, sigma = ppl.draws(amplitude=ppl.LogNormal(0.0, 0.5), sigma=ppl.HalfNormal(1.0))
    mean = amplitude * ppl.sin(6.2831853 * t / period + shift)
    ppl.rows(ppl.Normal(mean, sigma), y, "months")
