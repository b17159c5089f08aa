"""The families by name; see :mod:`ngvi.structure.choice`."""

from __future__ import annotations

from ngvi.structure.choice import Registry
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.block_diagonal import BlockDiagonal
from pyro_ngvi.families.covariance import Covariance
from pyro_ngvi.families.covariance_cholesky import CovarianceCholesky
from pyro_ngvi.families.diagonal import Diagonal
from pyro_ngvi.families.low_rank_precision import LowRankPrecision
from pyro_ngvi.families.precision import Precision
from pyro_ngvi.families.precision_cholesky import PrecisionCholesky
from pyro_ngvi.families.sparse_precision import SparsePrecision

REGISTRY = Registry(
    Family,
    (
        CovarianceCholesky,
        PrecisionCholesky,
        Precision,
        Covariance,
        Diagonal,
        BlockDiagonal,
        SparsePrecision,
        LowRankPrecision,
    ),
)
requested, automatic = REGISTRY.requested, REGISTRY.automatic
