"""Gaussian families: coordinates of ``N(mu, Sigma)`` and their natural gradients."""

from pyro_ngvi.families.base import Family
from pyro_ngvi.families.covariance_cholesky import CovarianceCholesky
from pyro_ngvi.families.diagonal import Diagonal

__all__ = ["CovarianceCholesky", "Diagonal", "Family"]
