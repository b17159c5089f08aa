"""Jumps of chains between the Gaussians of several optima.

A chain of NUTS stays at the optimum that it has begun at, so that a few chains know weights to one
chain. After the warm-up each transition therefore ends with a Metropolis-Hastings step whose
proposal is a draw of the mixture of these Gaussians, by their evidence (Tierney, 1994, *Markov
chains for exploring posterior distributions*, Annals of Statistics 22). The posterior stays as it
is whatever the Gaussians are; where they are good, half of the jumps and more are taken.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Jumps(NamedTuple):
    """A mixture of Gaussians, in the coordinates of the chains."""

    log_weights: Any  #: Shape ``(K,)``.
    centres: Any  #: Shape ``(K, d)``.
    factors: Any  #: Factors of the covariances, shape ``(K, d, d)``.
    inverses: Any  #: Inverses of the factors.
    log_dets: Any  #: Log dets of the factors, shape ``(K,)``.

    @classmethod
    def of(cls, weights: np.ndarray, draws: np.ndarray) -> Jumps:
        """Return the mixture.

        :param weights: of the Gaussians.
        :param draws: of each Gaussian for the noise ``0`` and for each unit vector, shape
            ``(K, 1 + d, d)``.
        """
        centres = draws[:, 0]
        factors = (draws[:, 1:] - centres[:, None]).swapaxes(1, 2)
        log_dets = np.linalg.slogdet(factors)[1]
        return cls(np.log(weights), centres, factors, np.linalg.inv(factors), log_dets)

    def log_density(self, z: Any, xp: Any) -> Any:
        """Return the log density of one point, in nats and up to a constant.

        :param xp: ``torch`` or ``jax.numpy``, whose arrays these are.
        """
        noise = xp.einsum("kij,kj->ki", self.inverses, z - self.centres)
        parts = self.log_weights - 0.5 * (noise**2).sum(-1) - self.log_dets
        highest = parts.max()
        return highest + xp.log(xp.exp(parts - highest).sum())
