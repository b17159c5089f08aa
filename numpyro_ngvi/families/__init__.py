"""Gaussian families: coordinates of ``N(mu, Sigma)`` and their natural gradients."""

from numpyro_ngvi.families.base import Family
from numpyro_ngvi.families.covariance_cholesky import CovarianceCholesky
from numpyro_ngvi.families.diagonal import Diagonal

__all__ = ["CovarianceCholesky", "Diagonal", "Family"]
