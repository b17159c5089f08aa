"""What the families with a dense covariance have in common."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from pyro_ngvi.families.base import Family
from pyro_ngvi.linalg.triangular import symmetric


class DenseFamily(Family):
    """A Gaussian with ``d (d + 1) / 2`` free coordinates beside its mean.

    Its part of a Hessian is the whole of it, shape ``(d, d)``.
    """

    @property
    def num_parameters(self) -> int:
        return self.dim + self.dim * (self.dim + 1) // 2

    @property
    def lower_factor(self) -> Tensor:
        """The lower triangular ``C`` with a positive diagonal and ``Sigma = C C^T``."""
        raise NotImplementedError

    def hessian_probes(self) -> np.ndarray:
        return np.arange(self.dim)

    def assemble_hessian(self, products: Tensor) -> Tensor:
        return symmetric(products)

    def outer_products(self, left: Tensor, right: Tensor) -> Tensor:
        return symmetric(left.mT @ right)
