"""Low rank plus a diagonal, of JAX; see :mod:`ngvi.linalg.low_rank`."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from ngvi.linalg import low_rank
from ngvi.linalg.matrices import symmetric
from numpyro_ngvi.linalg.matrices import matrices

#: Rows of a factor that a CPU handles together, so that what is made of them stays in the cache.
ROWS_AT_ONCE = 4096

#: The rank up to which a product is written out as its sums.
MAX_WRITTEN_OUT = 32


class LowRank(low_rank.LowRank):
    """``U U^T + diag(D)``."""

    ops = matrices

    def strength(self) -> jax.Array:
        return symmetric(_weighted_products(self.factor, 1.0 / self.diagonal))

    def rows_of(self, inner: jax.Array, factor: jax.Array) -> jax.Array:
        # Its derivative needs no copy of the transpose.
        return jax.lax.dot_general(inner, factor, (((inner.ndim - 1,), (1,)), ((), ())))

    def products(self, left: jax.Array, right: jax.Array) -> jax.Array:
        rank = left.shape[-1]
        if rank > MAX_WRITTEN_OUT:
            return left.T @ right
        # The transpose of these sums joins the loop that makes the rest of a gradient; that of a
        # matrix product is an array of size d r of its own, and a slow one.
        return jnp.stack([jnp.sum(left[:, k, None] * right, 0) for k in range(rank)])


@jax.custom_jvp
def _weighted_products(factor: jax.Array, weights: jax.Array) -> jax.Array:
    """``factor^T diag(weights) factor``, shape ``(r, r)``."""
    if len(factor) <= ROWS_AT_ONCE:
        return _at_once(factor, weights)
    return jax.lax.platform_dependent(factor, weights, cpu=_in_pieces, default=_at_once)


def _at_once(factor: jax.Array, weights: jax.Array) -> jax.Array:
    return (factor.T * weights) @ factor


def _in_pieces(factor: jax.Array, weights: jax.Array) -> jax.Array:
    dim, rank = factor.shape

    def add(index: jax.Array, total: jax.Array) -> jax.Array:
        start = jnp.minimum(index * ROWS_AT_ONCE, dim - ROWS_AT_ONCE)
        rows = jax.lax.dynamic_slice_in_dim(factor, start, ROWS_AT_ONCE).T
        weight = jax.lax.dynamic_slice_in_dim(weights, start, ROWS_AT_ONCE)
        # The last piece begins within the one before.
        new = start + jnp.arange(ROWS_AT_ONCE) >= index * ROWS_AT_ONCE
        return total + (rows * jnp.where(new, weight, 0.0)) @ rows.T

    zero = jnp.zeros((rank, rank), factor.dtype)
    return jax.lax.fori_loop(0, -(-dim // ROWS_AT_ONCE), add, zero)


# Its own derivative also keeps the loop whole: JAX would take it apart, in one place of a step
# and not in another, and XLA could not see that they are the same.
@_weighted_products.defjvp
def _weighted_products_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (factor, weights), (change, change_of_weights) = primals, tangents
    half = (change.T * weights) @ factor
    return _weighted_products(factor, weights), half + half.T + (
        factor.T * change_of_weights
    ) @ factor
