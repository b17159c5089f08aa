"""The families with a dense covariance, of torch; see :mod:`ngvi.families`."""

from __future__ import annotations

from ngvi.families import covariance_cholesky, precision_cholesky
from ngvi.families.dense import DenseFamily
from pyro_ngvi.families.base import Family

__all__ = ["CovarianceCholesky", "DenseFamily", "PrecisionCholesky"]


class CovarianceCholesky(covariance_cholesky.CovarianceCholesky, Family): ...


class PrecisionCholesky(precision_cholesky.PrecisionCholesky, Family): ...
