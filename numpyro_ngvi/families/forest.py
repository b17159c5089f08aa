"""The families whose factor is a forest of blocks, of JAX; see :mod:`ngvi.families`."""

from ngvi.families import block_diagonal, sparse_precision
from numpyro_ngvi.families.base import Family, compiled
from numpyro_ngvi.families.dense import CovarianceCholesky
from numpyro_ngvi.linalg.arrow import Arrow
from numpyro_ngvi.pytree import register

#: What many small operations make: one program each.
_compiled = compiled(
    "stddev whiten sample draw_jvp natural_gradient euclidean_gradient assemble_hessian "
    "outer_products bonnet_price _trace_ratio retract"
)


@_compiled
@register
class BlockDiagonal(block_diagonal.BlockDiagonal, Family):
    _arrow = Arrow


@_compiled
@register
class SparsePrecision(sparse_precision.SparsePrecision, Family):
    _arrow, _dense = Arrow, CovarianceCholesky
