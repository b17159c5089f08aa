"""The families by name; see :mod:`ngvi.structure.choice`."""

from __future__ import annotations

from ngvi.structure.choice import Registry
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.dense import (
    Covariance,
    CovarianceCholesky,
    Precision,
    PrecisionCholesky,
)
from pyro_ngvi.families.diagonal import Diagonal
from pyro_ngvi.families.forest import BlockDiagonal, SparsePrecision
from pyro_ngvi.families.low_rank_precision import LowRankPrecision
from pyro_ngvi.families.matrix_normal import MatrixNormal

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
