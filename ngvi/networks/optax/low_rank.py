"""The weights of SLANG as one vector, and the precision of their posterior."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ngvi.families.low_rank_precision import LowRankPrecision
from ngvi.linalg.definite import Definite


class _Matrices(Definite):
    """Operations of JAX for a precision of low rank."""

    xp = jnp

    def eye(self, size: int, like: jax.Array) -> jax.Array:
        return jnp.eye(size, dtype=like.dtype)

    def combined(self, amount: Any, one: jax.Array, other_amount: Any, other: Any) -> jax.Array:
        return (amount * one + other_amount * other).astype(one.dtype)

    def at_least(self, values: jax.Array, floor: float) -> jax.Array:
        return jnp.maximum(values, floor)

    def cholesky(self, matrix: jax.Array) -> jax.Array:
        return jnp.linalg.cholesky(matrix)

    def solve_lower(self, tril: jax.Array, rhs: jax.Array, trans: bool = False) -> jax.Array:
        return jax.scipy.linalg.solve_triangular(tril, rhs, int(trans), lower=True)


class _Precision(LowRankPrecision):
    ops: ClassVar[Any] = _Matrices()
    xp: ClassVar[Any] = jnp


def precision(hess: jax.Array, factor: list[jax.Array], weight_decay: Any) -> _Precision:
    """Return the posterior's precision, divided by ``ess``."""
    rank = len(factor[0])
    whole = jnp.concatenate([leaf.reshape(rank, -1) for leaf in factor], 1).T
    return _Precision(jnp.zeros_like(hess), whole, hess + weight_decay, rank=rank)


def joined(leaves: list[jax.Array]) -> jax.Array:
    """Return leaves as one vector."""
    return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])


def split(vectors: jax.Array, like: list[jax.Array]) -> list[jax.Array]:
    """Return vectors ``(..., d)`` by leaves, ``(..., *leaf.shape)``."""
    pieces = jnp.split(vectors, np.cumsum([leaf.size for leaf in like])[:-1], -1)
    pairs = zip(pieces, like, strict=True)
    return [piece.reshape(*vectors.shape[:-1], *leaf.shape) for piece, leaf in pairs]
