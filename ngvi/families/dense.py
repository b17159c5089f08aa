"""What the families with a dense covariance have in common."""

from __future__ import annotations

from ngvi.family import Array, Family


class DenseFamily(Family):
    """A Gaussian with ``d (d + 1) / 2`` free coordinates beside its mean.

    Its part of a Hessian is the whole of it, shape ``(d, d)``.
    """

    @property
    def num_parameters(self) -> int:
        return self.dim + self.dim * (self.dim + 1) // 2

    @property
    def lower_factor(self) -> Array:
        """The lower triangular ``C`` with a positive diagonal and ``Sigma = C C^T``."""
        raise NotImplementedError
