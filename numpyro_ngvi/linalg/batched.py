"""Batches of small matrices, of JAX; see :mod:`ngvi.linalg.batched`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ngvi.linalg import batched as shared
from numpyro_ngvi.linalg.matrices import matrices

_HIGHEST = jax.lax.Precision.HIGHEST  # a GPU's default (tf32) keeps ten bits


class Batched(shared.Batched):
    """Operations of JAX on batches of small matrices."""

    #: XLA's own reduction is sixty times slower on a CPU (10 arrays of length 10^5).
    few_terms = 32

    def tensordot(self, left: jax.Array, right: jax.Array, axes: Any) -> jax.Array:
        return jnp.tensordot(left, right, axes, precision=_HIGHEST)

    def zeros(self, shape: Sequence[int], like: jax.Array) -> jax.Array:
        return jnp.zeros(shape, like.dtype)

    def _matmul(self, left: jax.Array, right: jax.Array) -> jax.Array:
        left, right = jnp.moveaxis(left, -1, 0), jnp.moveaxis(right, -1, 0)
        return jnp.moveaxis(jnp.matmul(left, right, precision=_HIGHEST), 0, -1)

    def _times(self, matrix: jax.Array, vector: jax.Array) -> jax.Array:
        inner = matrix.shape[1]
        if inner <= self.few_terms:
            return sum(matrix[:, i] * vector[..., i, None, :] for i in range(inner))
        return jnp.einsum("pqn,...qn->...pn", matrix, vector, precision=_HIGHEST)

    def _transpose_times(self, matrix: jax.Array, vector: jax.Array) -> jax.Array:
        inner = len(matrix)
        if inner <= self.few_terms and (vector.shape[-1] > 1 or vector.ndim == 2):
            return sum(matrix[i] * vector[..., i, None, :] for i in range(inner))
        if vector.shape[-1] == 1:
            return self.tensordot(vector[..., 0], matrix, 1)
        return jnp.einsum("pqn,...pn->...qn", matrix, vector, precision=_HIGHEST)


batched = Batched(matrices)
