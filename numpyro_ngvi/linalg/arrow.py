"""Matrices with the arrow of Tan's eq. (4), of JAX; see :mod:`ngvi.linalg.arrow`."""

from __future__ import annotations

from collections.abc import Callable

import jax

from ngvi.linalg import arrow
from ngvi.linalg.forest_blocks import Vector
from numpyro_ngvi.linalg.batched import batched
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
