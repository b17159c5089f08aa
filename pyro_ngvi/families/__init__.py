"""Gaussian families: coordinates of ``N(mu, Sigma)`` and their natural gradients."""

from ngvi.latents.picture import plot_structure
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.dense import CovarianceCholesky, PrecisionCholesky
from pyro_ngvi.families.diagonal import Diagonal
from pyro_ngvi.families.forest import BlockDiagonal, SparsePrecision
from pyro_ngvi.families.low_rank_precision import LowRankPrecision
from pyro_ngvi.families.matrix_normal import MatrixNormal
from pyro_ngvi.families.mixture import Mixture

__all__ = [
    "BlockDiagonal",
    "CovarianceCholesky",
    "Diagonal",
    "Family",
    "LowRankPrecision",
    "MatrixNormal",
    "Mixture",
    "PrecisionCholesky",
    "SparsePrecision",
    "plot_structure",
]
