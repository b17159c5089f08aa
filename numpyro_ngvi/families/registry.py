"""The families by name; see :mod:`ngvi.structure.choice`."""

from __future__ import annotations

from ngvi.structure.choice import Registry
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.block_diagonal import BlockDiagonal
from numpyro_ngvi.families.covariance import Covariance
from numpyro_ngvi.families.covariance_cholesky import CovarianceCholesky
from numpyro_ngvi.families.diagonal import Diagonal
from numpyro_ngvi.families.low_rank_precision import LowRankPrecision
from numpyro_ngvi.families.precision import Precision
from numpyro_ngvi.families.precision_cholesky import PrecisionCholesky
from numpyro_ngvi.families.sparse_precision import SparsePrecision

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
