"""The bound of a full-covariance Gaussian, to a few thousandths of a nat."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from .target import Target

# Draws whose log densities are evaluated at once.
CHUNK = 256
LOG_2_PI = float(np.log(2 * np.pi))


class Bound(NamedTuple):
    """Nats, and their standard error over randomisations of the draws."""

    value: float
    error: float


def normal_draws(num: int, dim: int, seed: int) -> np.ndarray:
    """Standard normal draws, `num` x `dim`: scrambled Sobol points and their negatives.

    :param num: a power of two.
    """
    points = qmc.Sobol(dim, scramble=True, rng=np.random.default_rng(seed)).random(num // 2)
    half = ndtri(np.clip(points, 1e-12, 1 - 1e-12))
    return np.concatenate([half, -half])


class BoundEvaluator:
    """`E_q[log p - log q]`, from the same draws for every Gaussian.

    `log q` is not replaced by its mean, the negative entropy: the variance of `log p - log q`
    vanishes where the Gaussian is exact.

    :param num_draws: quasi-random draws in each randomisation, a power of two.
    :param num_randomisations: independent scramblings, whose spread is the standard error.
    """

    def __init__(
        self, target: Target, num_draws: int = 2**14, num_randomisations: int = 8, seed: int = 0
    ) -> None:
        self.dim = target.dim
        self.draws = [
            jnp.asarray(normal_draws(num_draws, target.dim, seed + index))
            for index in range(num_randomisations)
        ]

        @jax.jit
        def log_ratios(loc: jax.Array, scale_tril: jax.Array, noise: jax.Array) -> jax.Array:
            def log_ratio(noise: jax.Array) -> jax.Array:
                return target.log_prob(loc + scale_tril @ noise) + 0.5 * noise @ noise

            entropy = 0.5 * target.dim * LOG_2_PI + jnp.log(jnp.diag(scale_tril)).sum()
            return jax.lax.map(log_ratio, noise, batch_size=CHUNK) + entropy

        self._log_ratios = log_ratios

    def log_ratios(self, mean: np.ndarray, cov: np.ndarray, index: int = 0) -> np.ndarray:
        """`log p - log q` of the draws of one randomisation."""
        scale_tril = np.linalg.cholesky(cov)
        return np.asarray(self._log_ratios(mean, scale_tril, self.draws[index]))

    def samples(self, mean: np.ndarray, cov: np.ndarray, index: int = 0) -> np.ndarray:
        """The draws of one randomisation."""
        return mean + np.asarray(self.draws[index]) @ np.linalg.cholesky(cov).T

    def __call__(self, mean: np.ndarray, cov: np.ndarray) -> Bound:
        """The bound; minus infinity for a Gaussian that is none or has draws without density."""
        if not (np.isfinite(mean).all() and np.isfinite(cov).all()):
            return Bound(-np.inf, np.inf)
        try:
            values = [self.log_ratios(mean, cov, i).mean() for i in range(len(self.draws))]
        except np.linalg.LinAlgError:
            return Bound(-np.inf, np.inf)
        if not np.isfinite(values).all():
            return Bound(-np.inf, np.inf)
        error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
        return Bound(float(np.mean(values)), float(error))
