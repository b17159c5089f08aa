"""Gaussian processes with two length scales, which can take each other's place."""

from typing import Any

import numpy as np

from .entries import columns, entry, standard

GROUP = "processes"


def _kernel(np_: Any, x: Any, length: Any) -> Any:
    return np_.exp(-0.5 * ((x[:, None] - x) / length) ** 2)


def _observe(ppl, covariance, sigma, y):
    """``y`` with the process integrated out."""
    eye = ppl.array(np.eye(len(y)))
    tril = ppl.linalg.cholesky(covariance + (sigma**2 + 1e-5) * eye)
    zero = ppl.array(np.zeros(len(y)))
    ppl.sample("y", ppl.MultivariateNormal(zero, scale_tril=tril), obs=y)


def _two_scales(seed: int, lengths: tuple, num: int = 30) -> tuple:
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 10, num))
    K = sum(
        a**2 * np.exp(-0.5 * ((x[:, None] - x) / length) ** 2)
        for a, length in zip((1.0, 0.6), lengths, strict=True)
    )
    return x, np.linalg.cholesky(K + 0.04 * np.eye(num)) @ rng.normal(size=num)


def _two_lengths(ppl, x, y, scale=1.0):
    np = ppl
    length = ppl.sample("length", ppl.LogNormal(0.0, 1.5).expand([2]).to_event(1))
    amplitude = ppl.sample("amplitude", ppl.HalfNormal(2.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfNormal(1.0))
    K = sum(amplitude[k] ** 2 * _kernel(np, x, length[k]) for k in range(2))
    _observe(ppl, K, sigma, y)


entry(GROUP, lambda: _two_scales(31, (4.0, 0.4)), "long_and_short")(_two_lengths)
entry(GROUP, lambda: _two_scales(32, (2.0, 0.25), 25), "near_scales")(_two_lengths)


def _lake() -> tuple:
    (level,) = columns("datasets", "LakeHuron", "value")
    return np.arange(33.0) / 4, standard(level[::3])


entry(GROUP, _lake, "lake")(_two_lengths)


def _inputs() -> tuple:
    rng = np.random.default_rng(33)
    X = rng.uniform(-2, 2, size=(30, 2))
    return X, np.sin(3 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.normal(size=30)


@entry(GROUP, _inputs)
def two_inputs(ppl, X, y):
    """One length scale for each input, one of which hardly matters."""
    np = ppl
    length = ppl.sample("length", ppl.InverseGamma(2.0, 2.0).expand([2]).to_event(1))
    amplitude, sigma = ppl.draws(amplitude=ppl.HalfNormal(2.0), sigma=ppl.HalfNormal(1.0))
    K = amplitude**2 * _kernel(np, X[:, 0], length[0]) * _kernel(np, X[:, 1], length[1])
    _observe(ppl, K, sigma, y)


def _spots() -> tuple:
    (spots,) = columns("datasets", "sunspot.year", "value")
    return np.arange(36.0) / 10, standard(np.sqrt(spots[100:136]))


@entry(GROUP, _spots)
def spots(ppl, x, y):
    """A periodic part that decays, and a smooth one."""
    np = ppl
    period = ppl.sample("period", ppl.LogNormal(0.0, 0.7))
    length = ppl.sample("length", ppl.LogNormal(0.0, 1.0).expand([3]).to_event(1))
    amplitude = ppl.sample("amplitude", ppl.HalfNormal(1.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", ppl.HalfNormal(0.5))
    wave = ppl.sin(3.1415927 * (x[:, None] - x) / period) ** 2
    K = amplitude[0] ** 2 * ppl.exp(-2 * wave / length[0] ** 2) * _kernel(np, x, 5 * length[1])
    _observe(ppl, K + amplitude[1] ** 2 * _kernel(np, x, length[2]), sigma, y)


def _counts() -> tuple:
    rng = np.random.default_rng(34)
    x = np.linspace(0, 6, 15)
    return x, rng.poisson(np.exp(1 + np.sin(2 * x) + 0.1 * x)).astype(float)


@entry(GROUP, _counts)
def counts(ppl, x, y):
    """Two processes in the log rate, not integrated out: 34 latents."""
    np = ppl
    length = ppl.sample("length", ppl.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    amplitude = ppl.sample("amplitude", ppl.HalfNormal(1.0).expand([2]).to_event(1))
    white = ppl.stack([ppl.normals(name, 15) for name in ("slow", "fast")])
    # One call for both: XLA's two threads can wait for each other in two at once.
    K = ppl.stack([_kernel(np, x, length[k]) for k in range(2)]) + 1e-4 * ppl.array(_EYE)
    log_rate = (amplitude[:, None] * (ppl.linalg.cholesky(K) @ white[..., None])[..., 0]).sum(0)
    ppl.rows(ppl.Poisson(ppl.exp(log_rate)), y)


_EYE = np.eye(15)
