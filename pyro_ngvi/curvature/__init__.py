"""``E_q[grad l]`` and ``E_q[hess l]`` of a log density ``l``, from draws of ``q``."""

from pyro_ngvi.curvature.draws import standard_normal
from pyro_ngvi.curvature.gauss_newton import GaussNewton
from pyro_ngvi.curvature.hessian import HessianProducts, Hessians, num_products
from pyro_ngvi.curvature.spherical import spherical_direction
from pyro_ngvi.curvature.stein import stein_direction

__all__ = [
    "GaussNewton",
    "HessianProducts",
    "Hessians",
    "num_products",
    "spherical_direction",
    "standard_normal",
    "stein_direction",
]
