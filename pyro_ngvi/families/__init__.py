"""Gaussian families: coordinates of ``N(mu, Sigma)`` and their natural gradients."""

from typing import TYPE_CHECKING, Any

from ngvi.latents.choice import found_later
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.gaussians import (
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
    __getattr__ = found_later("pyro_ngvi")
