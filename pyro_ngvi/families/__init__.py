"""Gaussian families: coordinates of ``N(mu, Sigma)`` and their natural gradients."""

import importlib
from typing import TYPE_CHECKING, Any

from pyro_ngvi.families.base import Family
from pyro_ngvi.families.dense import CovarianceCholesky, PrecisionCholesky
from pyro_ngvi.families.diagonal import Diagonal
from pyro_ngvi.families.forest import BlockDiagonal, SparsePrecision
from pyro_ngvi.families.low_rank_precision import LowRankPrecision
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
]

#: Families of networks, by name, which are imported when they are asked for.
IN_NETWORKS = {"matrix_normal": "MatrixNormal"}


if TYPE_CHECKING:
    MatrixNormal: Any
else:

    def __getattr__(name: str) -> Any:
        if name in IN_NETWORKS.values():
            return getattr(importlib.import_module("pyro_ngvi.networks.matrix_normal"), name)
        if name == "plot_structure":
            raise AttributeError("plot_structure is gone: print(guide) says which are coupled.")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
