"""The families by name; see :mod:`ngvi.structure.choice`."""

from __future__ import annotations

from ngvi.structure.choice import Registry
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.dense import (
    Covariance,
    CovarianceCholesky,
    Precision,
    PrecisionCholesky,
)
from numpyro_ngvi.families.diagonal import Diagonal
from numpyro_ngvi.families.forest import BlockDiagonal, SparsePrecision
from numpyro_ngvi.families.low_rank_precision import LowRankPrecision
from numpyro_ngvi.families.matrix_normal import MatrixNormal

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
        MatrixNormal,
    ),
)
