"""Draws of the posterior itself, from those of a Gaussian by their importance weights.

The bound is blind to where the Gaussian is and the posterior is not: between the scale of some
effects and zero there is a tail that a Gaussian in the scale's logarithm does not have. So the
latents outside of plates, if they are few, are drawn from a Student's t with the Gaussian's
location and scale, and all others from the Gaussian given them. Weights are Pareto smoothed
(Vehtari, Simpson, Gelman, Yao and Gabry, 2024, JMLR 25), and draws resampled systematically
(Kitagawa, 1996).
"""

from __future__ import annotations

import math
import warnings
from typing import Protocol

import numpy as np

from ngvi.fit.diagnostics import EQUAL, USABLE
from ngvi.fit.pareto import smoothed_weights
from ngvi.structure.layout import Site

#: Draws to resample from: with as many, errors of moments are below 0.05 standard deviations on
#: eight schools, seeds, radon, sleep and epilepsy (``examples/benchmarks/corrected.py``).
NUM_DRAWS = 20_000
#: Of Student's t, which has a variance and a third moment, and its most dimensions: in many all
#: its draws are far from where the Gaussian's are.
DEGREES, MOST = 5.0, 20


class Posterior(Protocol):
    """A fitted Gaussian beside its model, in double precision.

    :ivar sites: that the coordinates belong to.
    :ivar mean: of the Gaussian, shape ``(d,)``.
    :ivar log_det_scale: the log determinant of its scale.
    """

    sites: tuple[Site, ...]
    mean: np.ndarray
    log_det_scale: float

    def sample(self, noise: np.ndarray) -> np.ndarray:
        """The Gaussian's draws from standard normal noise, shape ``(n, d)``."""

    def covariance(self, indices: np.ndarray) -> np.ndarray:
        """Columns of its covariance, shape ``(d, len(indices))``."""

    def log_density(self, latents: np.ndarray) -> np.ndarray:
        """``log p(y, theta)`` at latent vectors of shape ``(n, d)``."""


def corrected(posterior: Posterior, num_samples: int, rng: np.random.Generator) -> np.ndarray:
    """Draws of the model's posterior, shape ``(num_samples, d)``; some are the same.

    Warns where the weights' tail has a k-hat above 0.7.

    :param posterior: what it is drawn from, and weighed by.
    :param num_samples: how many.
    :param rng: of all random numbers.
    :raises ValueError: if the log density is finite at no draw.
    """
    count = max(NUM_DRAWS, num_samples)
    noise = rng.standard_normal((count, len(posterior.mean)))
    latents = posterior.sample(noise)
    log_q = -0.5 * (np.square(noise) + math.log(2 * math.pi)).sum(1) - posterior.log_det_scale
    few = [site for site in posterior.sites if not site.plates]
    indices = np.array([i for site in few for i in range(site.start, site.start + site.size)], int)
    if 0 < len(indices) <= MOST:
        latents, log_q = _with_tails(posterior, latents, log_q, indices, rng)
    log_weights = posterior.log_density(latents) - log_q
    finite = np.flatnonzero(np.isfinite(log_weights))
    if not len(finite):
        raise ValueError(
            "corrected=True weighs draws by the model's density, which is finite at none of them: "
            "leave it out, and look at result.diagnostics."
        )
    varies = log_weights[finite].std() > EQUAL
    log_weights, shape = smoothed_weights(log_weights[finite])
    if varies and shape > USABLE:
        warnings.warn(
            f"corrected=True resamples by importance weights, whose k-hat is {shape:.2f}: above "
            f"{USABLE} they may miss a part of the posterior. Where it matters run NUTS.",
            stacklevel=5,
        )
    # One uniform number for all: a draw is there as often as its weight says, but for one.
    places = (np.arange(num_samples) + rng.uniform()) / num_samples
    cumulative = np.cumsum(np.exp(log_weights))
    chosen = np.searchsorted(cumulative / cumulative[-1], places)
    return latents[finite[rng.permutation(chosen)]]


def _with_tails(
    posterior: Posterior,
    latents: np.ndarray,
    log_q: np.ndarray,
    indices: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Draws whose coordinates at ``indices`` have Student's t, and their log densities."""
    columns, size = posterior.covariance(indices), len(indices)
    root = np.linalg.cholesky(columns[indices])
    deviations = latents[:, indices] - posterior.mean[indices]
    standard = np.linalg.solve(root, deviations.T).T
    factors = np.sqrt(DEGREES / rng.chisquare(DEGREES, len(latents)))
    # The others' mean given these is linear in them.
    pull = np.linalg.solve(columns[indices], columns.T)
    latents = latents + ((factors - 1.0)[:, None] * deviations) @ pull
    squares = np.square(standard).sum(1)
    normal = -0.5 * (squares + size * math.log(2 * math.pi))
    student = (
        math.lgamma(0.5 * (DEGREES + size))
        - math.lgamma(0.5 * DEGREES)
        - 0.5 * size * math.log(DEGREES * math.pi)
        - 0.5 * (DEGREES + size) * np.log1p(squares * factors**2 / DEGREES)
    )
    return latents, log_q - normal + student
