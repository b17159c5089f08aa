"""New models with several modes, kinks, jumps, funnels, waves, networks; simulated data."""

from __future__ import annotations

from typing import Any

import numpy as np

from .registry import log_sigmoid, log_sum_exp, new, special


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(750_000 + seed)


@new(lambda: (np.array([2.1, 1.3, 3.2]),), "modes")
def eight_modes(ppl: Any, y: Any) -> None:
    """The squares of three latents are known, and hardly their signs."""
    x = ppl.normals("x", 3, 2.0, loc=0.1)
    ppl.factor("sum", -0.1 * (x.sum() - 1.0) ** 2)
    with ppl.plate("rows", 3):
        ppl.sample("y", ppl.dist.Normal(x**2, 0.4), obs=y)


def _blobs() -> tuple:
    rng = _rng(1)
    centres = np.array([[0.0, 0.0], [4.0, 1.0], [1.0, 5.0]])
    return (np.concatenate([c + rng.normal(size=(20, 2)) for c in centres]),)


@new(_blobs, "modes")
def three_blobs(ppl: Any, y: Any) -> None:
    """Three clouds in the plane, each of a width of its own, with six orders."""
    dist, np = ppl.dist, ppl.np
    weights = ppl.sample("weights", dist.Dirichlet(ppl.array(_ONES)))
    loc = ppl.normals("loc", 6, 4.0).reshape((3, 2))
    scale = ppl.sample("scale", dist.LogNormal(0.0, 0.5).expand([3]).to_event(1))
    terms = dist.Normal(loc, scale[:, None]).log_prob(y[:, None]).sum(-1)
    ppl.factor("rows", log_sum_exp(ppl, np.log(weights) + terms).sum())


_ONES = np.ones(3)


@new(lambda: (3.0 * _rng(2).standard_t(3, 10),), "tails", held_out=True)
def weak_funnel(ppl: Any, y: Any) -> None:
    """A funnel over ten latents, each seen once with wide noise."""
    dist = ppl.dist
    v = ppl.sample("v", dist.Normal(0.0, 3.0))
    with ppl.plate("rows", 10):
        x = ppl.sample("x", dist.Normal(0.0, ppl.np.exp(0.5 * v)))
        ppl.sample("y", dist.StudentT(4.0, x, 3.0), obs=y)


def _chirp() -> tuple:
    rng = _rng(3)
    t = np.sort(rng.uniform(0, 6, 70))
    return t, 2 * np.sin(3.1 * t + 0.4 * t**2 + 0.5) + 0.5 * rng.normal(size=70)


@new(_chirp, "dynamics", held_out=True)
def chirp(ppl: Any, t: Any, y: Any) -> None:
    """A wave that becomes faster."""
    dist, np = ppl.dist, ppl.np
    omega = ppl.sample("omega", dist.LogNormal(1.0, 0.7))
    faster = ppl.sample("faster", dist.Normal(0.0, 0.5))
    waves = ppl.normals("waves", 2, 2.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(2.0))
    angle = omega * t + faster * t**2
    with ppl.plate("rows", len(y)):
        mean = waves[0] * np.sin(angle) + waves[1] * np.cos(angle)
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


def _steps() -> tuple:
    rng = _rng(4)
    x, z = rng.uniform(0, 10, (2, 60))
    return x, z, 1 + 2.0 * (x > 6.2) - 1.5 * (z > 3.1) + rng.normal(size=60)


@new(_steps, "jumps")
def two_thresholds(ppl: Any, x: Any, z: Any, y: Any) -> None:
    """Each of two inputs matters only once it is above a threshold."""
    dist, np = ppl.dist, ppl.np
    at = ppl.sample("at", dist.Uniform(0.0, 10.0).expand([2]).to_event(1))
    beta = ppl.normals("beta", 3, 3.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(2.0))
    first = np.where(x > at[0], beta[1], 0 * beta[1])
    second = np.where(z > at[1], beta[2], 0 * beta[2])
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Normal(beta[0] + first + second, sigma), obs=y)


def _margins() -> tuple:
    rng = _rng(5)
    X = np.column_stack([np.ones(50), rng.normal(size=(50, 5))])
    return X, np.sign(X @ [0.2, 1.0, -1.0, 0.5, 0.0, 0.0] + 0.7 * rng.normal(size=50))


@new(_margins, "kinks")
def hinge_loss(ppl: Any, X: Any, sign: Any) -> None:
    """A support vector machine's loss as a likelihood, Laplace's prior."""
    beta = ppl.sample("beta", ppl.dist.Laplace(0.0, 1.0).expand([6]).to_event(1))
    ppl.factor("rows", -2.0 * (1 - sign * (X @ beta)).clip(0.0).sum())


def _curve() -> tuple:
    rng = _rng(6)
    x = np.sort(rng.uniform(-2, 2, 40))
    return x, np.tanh(3 * x) + 0.5 * np.sin(3 * x) + 0.2 * rng.normal(size=40)


@new(_curve, "network")
def four_units(ppl: Any, x: Any, y: Any) -> None:
    """Four units with tanh, which can change places and signs."""
    dist, np = ppl.dist, ppl.np
    first, bias = ppl.normals("first", 4, 2.0), ppl.normals("bias", 4)
    second = ppl.normals("second", 4)
    shift = ppl.sample("shift", dist.Normal(0.0, 1.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(0.5))
    with ppl.plate("rows", len(y)):
        mean = np.tanh(x[:, None] * first + bias) @ second + shift
        ppl.sample("y", dist.Normal(mean, sigma), obs=y)


def _circle() -> tuple:
    rng = _rng(7)
    X = rng.normal(size=(80, 2))
    return X, ((X**2).sum(1) + 0.3 * rng.normal(size=80) > 1.4).astype(float)


@new(_circle, "network", held_out=True)
def five_bent_units(ppl: Any, X: Any, y: Any) -> None:
    """Inside or outside of a circle, by five rectified units."""
    first, bias = ppl.normals("first", 10, 1.5).reshape((2, 5)), ppl.normals("bias", 5)
    second = ppl.normals("second", 5, 1.5)
    shift = ppl.sample("shift", ppl.dist.Normal(0.0, 2.0))
    logits = (X @ first + bias).clip(0.0) @ second + shift
    with ppl.plate("rows", len(y)):
        ppl.sample("y", ppl.dist.Bernoulli(logits=logits), obs=y)


def _pulses() -> tuple:
    rng, state, seen = _rng(8), np.array([-1.0, 1.0]), []
    for step in range(150):
        for _ in range(10):
            v, r = state
            state = state + 0.01 * np.array([3 * (v - v**3 / 3 + r), -(v - 0.2 + 0.2 * r) / 3])
        if step % 5 == 4:
            seen.append(state + 0.2 * rng.normal(size=2))
    return (np.array(seen),)


@new(_pulses, "dynamics", held_out=True)
def excitable(ppl: Any, y: Any) -> None:
    """FitzHugh's and Nagumo's nerve, both of its states seen."""
    dist, np = ppl.dist, ppl.np
    a = ppl.sample("a", dist.Normal(0.5, 0.5))
    b = ppl.sample("b", dist.Normal(0.5, 0.5))
    c = ppl.sample("c", dist.LogNormal(1.0, 0.5))
    first = ppl.normals("first", 2)
    sigma = ppl.sample("sigma", dist.HalfNormal(0.5))

    def slope(state: Any) -> Any:
        v, r = np.clip(state, -8.0, 8.0)
        return np.stack([c * (v - v**3 / 3 + r), -(v - a + b * r) / c])

    path = ppl.runge_kutta(slope, first, 0.1, 150)
    noise = dist.Normal(path[4::5], sigma)
    ppl.sample("y", noise.to_event(2), obs=y)


def _items() -> tuple:
    rng = _rng(9)
    kind = (rng.uniform(size=80) < 0.4).astype(int)
    probs = np.array([[0.8, 0.7, 0.9, 0.3, 0.2, 0.5], [0.2, 0.3, 0.3, 0.8, 0.7, 0.5]])
    return ((rng.uniform(size=(80, 6)) < probs[kind]).astype(float),)


@new(_items, "modes", enumerated=True)
def latent_classes(ppl: Any, y: Any) -> None:
    """Two classes of eighty people, six items; the classes are summed out."""
    dist, np = ppl.dist, ppl.np
    share = ppl.sample("share", dist.Beta(2.0, 2.0))
    probs = ppl.sample("probs", dist.Beta(1.0, 1.0).expand([12]).to_event(1)).reshape((2, 6))
    with ppl.plate("people", y.shape[0]):
        which = ppl.sample("which", dist.Bernoulli(share), infer={"enumerate": "parallel"})
        yes = np.where(which[..., None] == 1, probs[1], probs[0])
        ppl.sample("y", dist.Bernoulli(probs=yes).to_event(1), obs=y)


def _twins() -> tuple:
    rng = _rng(10)
    z = rng.normal(size=(60, 2)) @ np.array([[1.0, 0.6], [0.0, 0.8]])
    return (np.array([70.0, 75.0]) * _weibull(z),)


def _weibull(z: np.ndarray) -> np.ndarray:
    """Weibull variables of shape 5 from normal ones."""
    from scipy.special import log_ndtr

    return (-log_ndtr(-z)) ** 0.2


@new(_twins, "ridge")
def lives_of_twins(ppl: Any, y: Any) -> None:
    """Weibull margins in years, joined by a Gaussian copula."""
    dist, np, lib = ppl.dist, ppl.np, special(ppl)
    scale = ppl.sample("scale", dist.LogNormal(4.0, 0.5).expand([2]).to_event(1))
    shape = ppl.sample("shape", dist.LogNormal(1.0, 0.7).expand([2]).to_event(1))
    rho = np.tanh(ppl.sample("arc", dist.Normal(0.0, 1.0)))
    hazard = np.exp(shape * (np.log(y) - np.log(scale)))
    margins = np.log(shape) - np.log(y) + np.log(hazard) - hazard
    z = lib.ndtri(np.clip(-np.expm1(-hazard), 1e-6, 1 - 1e-6))
    rest = 1 - rho**2
    joint = -0.5 * (rho**2 * (z**2).sum(-1) - 2 * rho * z[:, 0] * z[:, 1]) / rest
    ppl.factor("rows", margins.sum() + (joint - 0.5 * np.log(rest)).sum())


def _two_lines() -> tuple:
    rng = _rng(11)
    x = rng.uniform(-3, 3, 70)
    left = rng.uniform(size=70) < 1 / (1 + np.exp(2 * x))
    return x, np.where(left, 1 - 0.8 * x, -1 + 1.2 * x) + 0.3 * rng.normal(size=70)


@new(_two_lines, "modes")
def experts(ppl: Any, x: Any, y: Any) -> None:
    """Two lines, and a gate that tells where each of them holds."""
    dist, np = ppl.dist, ppl.np
    gate = ppl.normals("gate", 2, 2.0)
    start, slope = ppl.normals("start", 2, 2.0), ppl.normals("slope", 2, 2.0)
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0).expand([2]).to_event(1))
    eta = gate[0] + gate[1] * x
    one = log_sigmoid(ppl, eta) + dist.Normal(start[0] + slope[0] * x, sigma[0]).log_prob(y)
    two = log_sigmoid(ppl, -eta) + dist.Normal(start[1] + slope[1] * x, sigma[1]).log_prob(y)
    ppl.factor("rows", np.logaddexp(one, two).sum())


def _plateaus() -> tuple:
    rng = _rng(12)
    level = np.repeat([20.0, 35.0, 31.0, 12.0], [8, 5, 10, 7])
    return (level + 1.5 * rng.standard_t(3, 30),)


@new(_plateaus, "kinks")
def plateaus(ppl: Any, y: Any) -> None:
    """Levels that mostly stay: Laplace's steps, centred, below heavy-tailed noise."""
    dist = ppl.dist
    tau = ppl.sample("tau", dist.HalfNormal(5.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(5.0))
    level = ppl.normals("level", 30, 50.0)
    ppl.factor("steps", dist.Laplace(0.0, tau + 0.05).log_prob(level[1:] - level[:-1]).sum())
    with ppl.plate("times", 30):
        ppl.sample("y", dist.StudentT(3.0, level, sigma), obs=y)
