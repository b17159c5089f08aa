"""Gaussian families: coordinates of ``N(mu, Sigma)`` and their natural gradients."""

from ngvi.structure.picture import plot_structure
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.block_diagonal import BlockDiagonal
from pyro_ngvi.families.covariance import Covariance
from pyro_ngvi.families.covariance_cholesky import CovarianceCholesky
from pyro_ngvi.families.diagonal import Diagonal
from pyro_ngvi.families.low_rank_precision import LowRankPrecision
from pyro_ngvi.families.precision import Precision
from pyro_ngvi.families.precision_cholesky import PrecisionCholesky
from pyro_ngvi.families.sparse_precision import SparsePrecision

__all__ = [
    "BlockDiagonal",
    "Covariance",
    "CovarianceCholesky",
    "Diagonal",
    "Family",
    "LowRankPrecision",
    "Precision",
    "PrecisionCholesky",
    "SparsePrecision",
    "plot_structure",
]
