"""Gaussian processes with two length scales, which can take each other's place."""

from __future__ import annotations

from typing import Any

import numpy as np

from .data import columns, standard
from .registry import entry

GROUP = "processes"


def _kernel(np_: Any, x: Any, length: Any) -> Any:
    return np_.exp(-0.5 * ((x[:, None] - x) / length) ** 2)


def _observe(ppl: Any, covariance: Any, sigma: Any, y: Any) -> None:
    """``y`` with the process integrated out."""
    eye = ppl.array(np.eye(len(y)))
    tril = ppl.np.linalg.cholesky(covariance + (sigma**2 + 1e-5) * eye)
    zero = ppl.array(np.zeros(len(y)))
    ppl.sample("y", ppl.dist.MultivariateNormal(zero, scale_tril=tril), obs=y)


def _two_scales(seed: int, lengths: tuple, num: int = 30) -> tuple:
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 10, num))
    K = sum(
        a**2 * np.exp(-0.5 * ((x[:, None] - x) / length) ** 2)
        for a, length in zip((1.0, 0.6), lengths, strict=True)
    )
    return x, np.linalg.cholesky(K + 0.04 * np.eye(num)) @ rng.normal(size=num)


def _two_lengths(ppl: Any, x: Any, y: Any, scale: float = 1.0) -> None:
    dist, np = ppl.dist, ppl.np
    length = ppl.sample("length", dist.LogNormal(0.0, 1.5).expand([2]).to_event(1))
    amplitude = ppl.sample("amplitude", dist.HalfNormal(2.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    K = sum(amplitude[k] ** 2 * _kernel(np, x, length[k]) for k in range(2))
    _observe(ppl, K, sigma, y)


entry(GROUP, lambda: _two_scales(31, (4.0, 0.4)), "long_and_short")(_two_lengths)
entry(GROUP, lambda: _two_scales(32, (2.0, 0.25), 25), "near_scales", held_out=True)(_two_lengths)


def _lake() -> tuple:
    (level,) = columns("datasets", "LakeHuron", "value")
    return np.arange(33.0) / 4, standard(level[::3])


entry(GROUP, _lake, "lake")(_two_lengths)


def _inputs() -> tuple:
    rng = np.random.default_rng(33)
    X = rng.uniform(-2, 2, size=(30, 2))
    return X, np.sin(3 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.normal(size=30)


@entry(GROUP, _inputs)
def two_inputs(ppl: Any, X: Any, y: Any) -> None:
    """One length scale for each input, one of which hardly matters."""
    dist, np = ppl.dist, ppl.np
    length = ppl.sample("length", dist.InverseGamma(2.0, 2.0).expand([2]).to_event(1))
    amplitude = ppl.sample("amplitude", dist.HalfNormal(2.0))
    sigma = ppl.sample("sigma", dist.HalfNormal(1.0))
    K = amplitude**2 * _kernel(np, X[:, 0], length[0]) * _kernel(np, X[:, 1], length[1])
    _observe(ppl, K, sigma, y)


def _spots() -> tuple:
    (spots,) = columns("datasets", "sunspot.year", "value")
    return np.arange(36.0) / 10, standard(np.sqrt(spots[100:136]))


@entry(GROUP, _spots, held_out=True)
def spots(ppl: Any, x: Any, y: Any) -> None:
    """A periodic part that decays, and a smooth one."""
    dist, np = ppl.dist, ppl.np
    period = ppl.sample("period", dist.LogNormal(0.0, 0.7))
    length = ppl.sample("length", dist.LogNormal(0.0, 1.0).expand([3]).to_event(1))
    amplitude = ppl.sample("amplitude", dist.HalfNormal(1.0).expand([2]).to_event(1))
    sigma = ppl.sample("sigma", dist.HalfNormal(0.5))
    wave = np.sin(3.1415927 * (x[:, None] - x) / period) ** 2
    K = amplitude[0] ** 2 * np.exp(-2 * wave / length[0] ** 2) * _kernel(np, x, 5 * length[1])
    _observe(ppl, K + amplitude[1] ** 2 * _kernel(np, x, length[2]), sigma, y)


def _counts() -> tuple:
    rng = np.random.default_rng(34)
    x = np.linspace(0, 6, 15)
    return x, rng.poisson(np.exp(1 + np.sin(2 * x) + 0.1 * x)).astype(float)


@entry(GROUP, _counts)
def counts(ppl: Any, x: Any, y: Any) -> None:
    """Two processes in the log rate, not integrated out: 34 latents."""
    dist, np = ppl.dist, ppl.np
    length = ppl.sample("length", dist.LogNormal(0.0, 1.0).expand([2]).to_event(1))
    amplitude = ppl.sample("amplitude", dist.HalfNormal(1.0).expand([2]).to_event(1))
    white = np.stack([ppl.normals(name, 15) for name in ("slow", "fast")])
    # One call for both: XLA's two threads can wait for each other in two at once.
    K = np.stack([_kernel(np, x, length[k]) for k in range(2)]) + 1e-4 * ppl.array(_EYE)
    log_rate = (amplitude[:, None] * (np.linalg.cholesky(K) @ white[..., None])[..., 0]).sum(0)
    with ppl.plate("rows", len(y)):
        ppl.sample("y", dist.Poisson(np.exp(log_rate)), obs=y)


_EYE = np.eye(15)
