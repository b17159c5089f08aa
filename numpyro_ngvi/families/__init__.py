"""Gaussian families: coordinates of ``N(mu, Sigma)`` and their natural gradients."""

from ngvi.structure.picture import plot_structure
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.block_diagonal import BlockDiagonal
from numpyro_ngvi.families.covariance import Covariance
from numpyro_ngvi.families.covariance_cholesky import CovarianceCholesky
from numpyro_ngvi.families.diagonal import Diagonal
from numpyro_ngvi.families.low_rank_precision import LowRankPrecision
from numpyro_ngvi.families.precision import Precision
from numpyro_ngvi.families.precision_cholesky import PrecisionCholesky
from numpyro_ngvi.families.sparse_precision import SparsePrecision

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
