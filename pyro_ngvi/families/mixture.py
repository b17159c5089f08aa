"""Mixtures of Gaussians, of torch; see :mod:`ngvi.families.mixture`."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ngvi.families import mixture
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.dense import CovarianceCholesky, PrecisionCholesky
from pyro_ngvi.families.diagonal import Diagonal
from pyro_ngvi.families.forest import BlockDiagonal, SparsePrecision
from pyro_ngvi.families.low_rank_precision import LowRankPrecision

_BASES = CovarianceCholesky, PrecisionCholesky, Diagonal, BlockDiagonal, SparsePrecision


class Mixture(mixture.Mixture, Family):
    bases: ClassVar = {one.name: one for one in (*_BASES, LowRankPrecision)}

    @staticmethod
    def ndtr(values: Tensor) -> Tensor:
        return torch.special.ndtr(values)

    @staticmethod
    def log_sum_exp(values: Tensor) -> Tensor:
        return torch.logsumexp(values, 0)
