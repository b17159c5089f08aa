"""Mixtures of Gaussians, of torch; see :mod:`ngvi.families.mixture`."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import torch

from ngvi.families import mixture
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.dense import CovarianceCholesky, PrecisionCholesky
from pyro_ngvi.families.diagonal import Diagonal
from pyro_ngvi.families.forest import BlockDiagonal, SparsePrecision
from pyro_ngvi.families.low_rank_precision import LowRankPrecision

_BASES = CovarianceCholesky, PrecisionCholesky, Diagonal, BlockDiagonal, SparsePrecision


class Mixture(mixture.Mixture, Family):
    bases: ClassVar = {one.name: one for one in (*_BASES, LowRankPrecision)}

    _ndtr = staticmethod(torch.special.ndtr)
    _log_sum_exp = staticmethod(partial(torch.logsumexp, dim=0))
