"""A precision of low rank plus a diagonal, of JAX; see :mod:`ngvi.families`."""

import jax

from ngvi.families import low_rank_precision
from numpyro_ngvi.families.base import Family, compiled
from numpyro_ngvi.linalg.low_rank import MAX_WRITTEN_OUT, LowRank
from numpyro_ngvi.pytree import register


@compiled(
    "variance whiten sample draw_jvp draw_vjp log_det_jvp natural_gradient euclidean_gradient "
    "bonnet_price natural_step _trace_ratio retract"
)
@register
class LowRankPrecision(low_rank_precision.LowRankPrecision, Family):
    _low_rank = LowRank

    def _plus_product(self, factor: jax.Array, left: jax.Array, right: jax.Array) -> jax.Array:
        if len(left) > MAX_WRITTEN_OUT:
            return super()._plus_product(factor, left, right)
        # Sums join the loop that uses them; a product is one more array of size d r.
        products = (one[:, None] * other for one, other in zip(left, right, strict=True))
        return sum(products, start=factor)
