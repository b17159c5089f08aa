"""Matrices with the arrow of Tan's eq. (4), of JAX; see :mod:`ngvi.linalg.arrow`."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ngvi.latents.forest import Forest
from ngvi.linalg import arrow
from ngvi.linalg.forest_blocks import Vector, diagonal_slices
from numpyro_ngvi.linalg.batched import batched
from numpyro_ngvi.linalg.matrices import matrices
from numpyro_ngvi.pytree import register


@register
class Arrow(arrow.Arrow):
    """A matrix of a structure; a pytree of its blocks."""

    ops = batched

    def solve_linear(self, vector: Vector) -> Vector:
        # A reversed program of many small operations is slower than solve_transpose.
        return self._linear(Arrow.times, Arrow.solve, Arrow.solve_transpose, vector)

    def solve_transpose_linear(self, vector: Vector) -> Vector:
        return self._linear(Arrow.transpose_times, Arrow.solve_transpose, Arrow.solve, vector)

    def _linear(
        self, product: Callable, solve: Callable, solve_transpose: Callable, vector: Vector
    ) -> Vector:
        def one(vector: Vector) -> Vector:
            return jax.lax.custom_linear_solve(
                lambda x: product(self, x),
                vector,
                lambda _, b: solve(self, b),
                lambda _, b: solve_transpose(self, b),
            )

        for _ in range(vector[0].ndim - 2):  # the primitive knows no batches of its own
            one = jax.vmap(one)
        return one(vector)

    @classmethod
    def add_keeping_off_zero(cls, structure: Forest, old: jax.Array, step: jax.Array) -> jax.Array:
        new = old + step
        start = 0
        for size, num, total in diagonal_slices(structure):
            stop = start + size * size * num
            before, after = (x[start:stop].reshape(size, size, num) for x in (old, new))
            on_diagonal = jnp.eye(size, dtype=bool)[..., None]
            kept = jnp.where(on_diagonal, matrices.keep_off_zero(before, after), after)
            new = new.at[start:stop].set(kept.reshape(-1))
            start += total
        return new
