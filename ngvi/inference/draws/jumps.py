"""Jumps of chains between the Gaussians of several optima.

A NUTS chain stays at the optimum where it started, so the weights of optima would only be multiples
of one chain. After the warm-up, each transition therefore ends with a Metropolis-Hastings step,
which proposes a draw of the mixture of these Gaussians, weighted by their evidence (Tierney, 1994,
*Markov chains for exploring posterior distributions*, Annals of Statistics 22). The step leaves the
posterior invariant for any Gaussians; if they are good, at least half of the jumps are accepted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ngvi.inference.draws.coordinates import Coordinates


class Jumps(NamedTuple):
    """A mixture of Gaussians, in the coordinates of the chains."""

    weights: np.ndarray  #: Shape ``(K,)``.
    parts: list[Coordinates]  #: Those in which each Gaussian is ``N(0, I)``.

    def within(self, coordinates: Coordinates) -> Jumps:
        """Return the mixture of latent vectors in other coordinates."""
        parts = [
            Coordinates(
                coordinates.z(one.centre[None])[0], np.linalg.solve(coordinates.scale, one.scale)
            )
            for one in self.parts
        ]
        return self._replace(parts=parts)

    def proposed(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws, shape ``(count, d)``."""
        which = rng.choice(len(self.weights), count, p=self.weights)
        noise = rng.standard_normal((count, len(self.parts[0].centre)))
        pairs = zip(which, noise, strict=True)
        return np.stack([self.parts[one].theta(values) for one, values in pairs])

    def log_density(self, z: np.ndarray) -> np.ndarray:
        """Return log densities of points ``(n, d)`` in nats, up to a constant."""
        parts = [
            np.log(weight) - 0.5 * np.square(one.z(z)).sum(1) - np.linalg.slogdet(one.scale)[1]
            for weight, one in zip(self.weights, self.parts, strict=True)
        ]
        return np.logaddexp.reduce(parts)
