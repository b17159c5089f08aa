"""The families with a dense covariance, of torch; see :mod:`ngvi.families`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from ngvi.families import covariance_cholesky, precision_cholesky
from ngvi.families.dense import DenseFamily
from pyro_ngvi.families.base import Family

__all__ = ["CovarianceCholesky", "DenseFamily", "PrecisionCholesky"]


class CovarianceCholesky(covariance_cholesky.CovarianceCholesky, Family):
    def fisher_products(
        self, directions: Sequence[Self], others: Sequence[Self] = ()
    ) -> tuple[Tensor, Tensor]:
        # In whitened coordinates X = C^-1 dC, lower triangular, the metric of (1) is
        # <dC, dC'> = sum_ij (1 + [i = j]) X_ij X'_ij: one solve for all directions together.
        columns = [torch.column_stack([one.scale_tril, one.loc]) for one in (*directions, *others)]
        whitened = self.ops.solve_lower(self._bound().scale_tril, torch.cat(columns, 1))
        whitened = whitened.reshape(self.dim, len(columns), self.dim + 1).movedim(1, 0)
        means, scales = whitened[..., -1], whitened[..., :-1].contiguous()
        scales.diagonal(dim1=-2, dim2=-1).mul_(math.sqrt(2.0))
        scales, num = scales.reshape(len(columns), -1), len(directions)
        return means[:num] @ means.mT, scales[:num] @ scales.mT


class PrecisionCholesky(precision_cholesky.PrecisionCholesky, Family): ...
