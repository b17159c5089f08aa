"""What a family says of itself as a PPL's distribution, without a dense matrix."""

from __future__ import annotations

from typing import Any

from ngvi.families.base import Array


class StructuredNormal:
    """``N(mu, Sigma)`` of a structured family, at the cost of its structure.

    :param family: the Gaussian, with coordinates.
    """

    family: Any
    batch_shape: Any
    shape: Any

    def log_prob(self, value: Array) -> Array:
        return self.family.log_prob(value)

    @property
    def mean(self) -> Array:
        return self.family.xp.broadcast_to(self.family.mean, self.shape())

    @property
    def variance(self) -> Array:
        return self.family.xp.broadcast_to(self.family.variance, self.shape())

    @property
    def covariance_matrix(self) -> Array:
        """Dense, for small ``d``; raises ``ValueError`` beyond."""
        return self.family.covariance_matrix

    @property
    def precision_matrix(self) -> Array:
        """Dense, for small ``d``; raises ``ValueError`` beyond."""
        return self.family.precision_matrix

    def entropy(self) -> Array:
        return self.family.xp.broadcast_to(self.family.entropy(), self.batch_shape)
