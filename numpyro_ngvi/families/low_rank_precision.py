"""A precision of low rank plus a diagonal, of JAX; see :mod:`ngvi.families`."""

from ngvi.families import low_rank_precision
from numpyro_ngvi.families.base import Family, compiled
from numpyro_ngvi.pytree import register


@compiled(
    "variance whiten sample draw_jvp draw_vjp log_det_jvp natural_gradient euclidean_gradient "
    "bonnet_price natural_step _trace_ratio retract"
)
@register
class LowRankPrecision(low_rank_precision.LowRankPrecision, Family): ...
