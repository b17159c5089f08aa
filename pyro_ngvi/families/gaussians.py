"""Gaussian families and their mixtures, of torch; see :mod:`ngvi.families`."""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
from torch import Tensor

from ngvi.families import (
    block_diagonal,
    covariance_cholesky,
    diagonal,
    low_rank_precision,
    mixture,
    precision_cholesky,
    sparse_precision,
)
from ngvi.linalg.low_rank import LowRank
from pyro_ngvi.families.base import Family, Reparametrised
from pyro_ngvi.linalg.arrow import Arrow


class CovarianceCholesky(covariance_cholesky.CovarianceCholesky, Family): ...


class PrecisionCholesky(precision_cholesky.PrecisionCholesky, Family): ...


class Diagonal(diagonal.Diagonal, Family): ...


class BlockDiagonal(block_diagonal.BlockDiagonal, Family):
    _arrow = Arrow


class SparsePrecision(sparse_precision.SparsePrecision, Family):
    _arrow, _dense = Arrow, CovarianceCholesky


class LowRankPrecision(low_rank_precision.LowRankPrecision, Family):
    def reparametrised(self, noise: Tensor) -> Tensor:
        return Reparametrised.apply(noise, *self.coordinates().values(), self.detach())

    def _plus_product(self, factor: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return factor.addmm_(left.mT, right)

    def detach(self) -> LowRankPrecision:
        return self._detached

    @functools.cached_property
    def _matrix(self) -> LowRank:
        return super()._matrix

    @functools.cached_property
    def _detached(self) -> LowRankPrecision:
        # A step asks for it several times: with what it keeps of itself it costs one pass
        # through the factor, not one each time.
        return super().detach()


_BASES = CovarianceCholesky, PrecisionCholesky, Diagonal, BlockDiagonal, SparsePrecision


class Mixture(mixture.Mixture, Family):
    bases: ClassVar = {one.name: one for one in (*_BASES, LowRankPrecision)}

    _ndtr = staticmethod(torch.special.ndtr)
    _log_sum_exp = staticmethod(functools.partial(torch.logsumexp, dim=0))
