"""Gaussian families: coordinates of ``N(mu, Sigma)`` and their natural gradients."""

from typing import TYPE_CHECKING, Any

from ngvi.latents.choice import found_later
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.gaussians import (
    BlockDiagonal,
    CovarianceCholesky,
    Diagonal,
    LowRankPrecision,
    Mixture,
    PrecisionCholesky,
    SparsePrecision,
)

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
