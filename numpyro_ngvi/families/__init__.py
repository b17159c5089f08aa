"""Gaussian families: coordinates of ``N(mu, Sigma)`` and their natural gradients."""

from typing import TYPE_CHECKING, Any

from ngvi.latents.choice import found_later
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.dense import CovarianceCholesky, PrecisionCholesky
from numpyro_ngvi.families.diagonal import Diagonal
from numpyro_ngvi.families.forest import BlockDiagonal, SparsePrecision
from numpyro_ngvi.families.low_rank_precision import LowRankPrecision
from numpyro_ngvi.families.mixture import Mixture

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
]

if TYPE_CHECKING:
    MatrixNormal: Any
else:
    __getattr__ = found_later("numpyro_ngvi")
