"""``E_q[grad l]`` and ``E_q[hess l]`` of a log density ``l``, from draws of ``q``."""

from numpyro_ngvi.curvature.draws import standard_normal
from numpyro_ngvi.curvature.gauss_newton import gauss_newton_moments
from numpyro_ngvi.curvature.hessian import hessian_moments, num_products
from numpyro_ngvi.curvature.moments import Moments
from numpyro_ngvi.curvature.spherical import spherical_direction
from numpyro_ngvi.curvature.stein import stein_direction

__all__ = [
    "Moments",
    "gauss_newton_moments",
    "hessian_moments",
    "num_products",
    "spherical_direction",
    "standard_normal",
    "stein_direction",
]
