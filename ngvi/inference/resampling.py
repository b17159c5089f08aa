"""Draws of the posterior itself, from those of a Gaussian by their importance weights.

The bound is blind to where the Gaussian is and the posterior is not: between the scale of some
effects and zero there is a tail that a Gaussian in the scale's logarithm does not have. So the
latents outside of plates, if they are few, are drawn from a Student's t, and all others from the
Gaussian given them. The t has the Gaussian's location and scale, or where weights of a few draws
have too heavy a tail the moments by these (Paananen et al., 2021, *Implicitly adaptive importance
sampling*, Statistics and Computing 31). Weights are Pareto smoothed
(Vehtari, Simpson, Gelman, Yao and Gabry, 2024, JMLR 25), and draws resampled systematically
(Kitagawa, 1996).
"""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Protocol

import numpy as np

from ngvi.inference.diagnostics import EQUAL, USABLE
from ngvi.inference.pareto import smoothed_weights
from ngvi.latents.layout import Site

#: Draws to resample from: with as many, errors of moments are below 0.05 standard deviations on
#: eight schools, seeds, radon, sleep and epilepsy (``benchmarks/corrected.py``).
NUM_DRAWS = 20_000
#: Before them, to see where the globals are and how wide: rounds, as long as k-hat is too large.
ROUNDS, NUM_PILOTS = 2, 4000
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
    proposal = _Proposal(posterior)
    for _ in range(ROUNDS if proposal.indices.size else 0):
        latents, log_weights, shape = proposal.weighed(NUM_PILOTS, rng)
        if shape <= USABLE:
            break
        proposal.adapt(latents[:, proposal.indices], np.exp(log_weights))
    latents, log_weights, shape = proposal.weighed(max(NUM_DRAWS, num_samples), rng)
    if shape > USABLE:
        warnings.warn(
            f"corrected=True resamples by importance weights, whose k-hat is {shape:.2f}: above "
            f"{USABLE} they may miss a part of the posterior. Where it matters run NUTS.",
            stacklevel=5,
        )
    # One uniform number for all: a draw is there as often as its weight says, but for one.
    places = (np.arange(num_samples) + rng.uniform()) / num_samples
    cumulative = np.cumsum(np.exp(log_weights))
    return latents[rng.permutation(np.searchsorted(cumulative / cumulative[-1], places))]


class _Proposal:
    """The Gaussian, but for the globals: Student's t, whose location and scale may be others'.

    :ivar indices: of the globals; none where they are many.
    """

    def __init__(self, posterior: Posterior) -> None:
        self._posterior = posterior
        sites = [site for site in posterior.sites if not site.plates]
        found = [i for site in sites for i in range(site.start, site.start + site.size)]
        self.indices = np.array(found if len(found) <= MOST else [], int)
        self._mean = self._location = posterior.mean[self.indices]
        if self.indices.size:
            columns = posterior.covariance(self.indices)
            self._root = self._scale = np.linalg.cholesky(columns[self.indices])
            # The others' mean given these is linear in them.
            self._pull = np.linalg.solve(columns[self.indices], columns.T)

    def adapt(self, values: np.ndarray, weights: np.ndarray) -> None:
        """Take location and scale from weighted draws."""
        location = weights @ values
        deviations = values - location
        covariance = (weights * deviations.T) @ deviations
        with contextlib.suppress(np.linalg.LinAlgError):  # of too few draws
            self._scale, self._location = np.linalg.cholesky(covariance), location

    def weighed(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
        """Draws with a finite density, their smoothed normalised log weights, and k-hat.

        :raises ValueError: if there is none.
        """
        noise = rng.standard_normal((count, len(self._posterior.mean)))
        latents = self._posterior.sample(noise)
        log_q = -0.5 * (np.square(noise) + math.log(2 * math.pi)).sum(1)
        log_q -= self._posterior.log_det_scale
        if self.indices.size:
            latents, log_q = self._with_tails(latents, log_q, rng)
        log_weights = self._posterior.log_density(latents) - log_q
        finite = np.isfinite(log_weights)
        if not finite.any():
            raise ValueError(
                "corrected=True weighs draws by the model's density, which is finite at none of "
                "them: leave it out, and look at result.diagnostics."
            )
        varies = log_weights[finite].std() > EQUAL
        log_weights, shape = smoothed_weights(log_weights[finite])
        return latents[finite], log_weights, shape if varies else 0.0

    def _with_tails(
        self, latents: np.ndarray, log_q: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        deviations = latents[:, self.indices] - self._mean
        standard = np.linalg.solve(self._root, deviations.T).T
        factors = np.sqrt(DEGREES / rng.chisquare(DEGREES, len(latents)))[:, None]
        moved = self._location + factors * standard @ self._scale.T
        latents = latents + (moved - latents[:, self.indices]) @ self._pull
        squares, size = np.square(standard), len(self.indices)
        normal = -0.5 * (squares.sum(1) + size * math.log(2 * math.pi)) - _log_det(self._root)
        student = (
            math.lgamma(0.5 * (DEGREES + size))
            - math.lgamma(0.5 * DEGREES)
            - 0.5 * size * math.log(DEGREES * math.pi)
            - 0.5 * (DEGREES + size) * np.log1p((factors**2 * squares).sum(1) / DEGREES)
            - _log_det(self._scale)
        )
        return latents, log_q - normal + student


def _log_det(root: np.ndarray) -> float:
    return float(np.log(np.diag(root)).sum())
