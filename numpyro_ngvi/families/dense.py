"""The families with a dense covariance, of JAX; see :mod:`ngvi.families`."""

from ngvi.families import covariance_cholesky, precision_cholesky
from ngvi.families.dense import DenseFamily
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.pytree import register

__all__ = ["CovarianceCholesky", "DenseFamily", "PrecisionCholesky"]


@register
class CovarianceCholesky(covariance_cholesky.CovarianceCholesky, Family): ...


@register
class PrecisionCholesky(precision_cholesky.PrecisionCholesky, Family): ...
