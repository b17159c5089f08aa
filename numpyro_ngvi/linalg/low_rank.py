"""Low rank plus a diagonal, of JAX; see :mod:`ngvi.linalg.low_rank`."""

from __future__ import annotations

import jax

from ngvi.linalg import low_rank
from numpyro_ngvi.linalg.matrices import matrices


class LowRank(low_rank.LowRank):
    """``U U^T + diag(D)``."""

    ops = matrices

    def rows_of(self, inner: jax.Array, factor: jax.Array) -> jax.Array:
        # Its derivative needs no copy of the transpose.
        return jax.lax.dot_general(inner, factor, (((inner.ndim - 1,), (1,)), ((), ())))
