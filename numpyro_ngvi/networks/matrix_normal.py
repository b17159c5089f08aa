"""Matrices with a Kronecker covariance, of JAX; see :mod:`ngvi.networks.matrix_normal`."""

from ngvi.networks import matrix_normal
from numpyro_ngvi.families.base import Family, compiled
from numpyro_ngvi.pytree import register


@compiled(
    "stddev whiten sample draw_jvp natural_gradient euclidean_gradient outer_products "
    "bonnet_price natural_gradient_from_rows _isometric "
    "_trace_ratio retract"
)
@register
class MatrixNormal(matrix_normal.MatrixNormal, Family): ...
