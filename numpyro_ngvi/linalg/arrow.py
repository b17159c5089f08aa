"""Lower triangular matrices with the arrow of Tan's eq. (4); see :mod:`ngvi.structure.arrow`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ngvi.structure import arrow
from ngvi.structure.arrow import Vector, diagonal_slices
from ngvi.structure.forest import Forest
from numpyro_ngvi.linalg import batched
from numpyro_ngvi.linalg.triangular import keep_off_zero


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["blocks"], meta_fields=["structure"]
)
@dataclasses.dataclass(frozen=True)
class Arrow(arrow.Arrow):
    """A matrix of a structure; a pytree of its blocks."""

    ops = batched

    def solve_linear(self, vector: Vector) -> Vector:
        """:meth:`solve`, whose derivative in the vector is written out as well.

        A reversed program of many small operations is slower than :meth:`solve_transpose`.
        """
        return self._linear(Arrow.times, Arrow.solve, Arrow.solve_transpose, vector)

    def solve_transpose_linear(self, vector: Vector) -> Vector:
        """:meth:`solve_transpose`, whose derivative in the vector is written out as well."""
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


def add_keeping_off_zero(structure: Forest, old: jax.Array, step: jax.Array) -> jax.Array:
    """Two packed matrices' sum, its diagonal kept off zero as :func:`keep_off_zero` does.

    On the packed arrays, because for a step it is the traffic of memory that counts.
    """
    new = old + step
    start = 0
    for size, num, total in diagonal_slices(structure):
        stop = start + size * size * num
        rows = old[start:stop].reshape(size, size, num), new[start:stop].reshape(size, size, num)
        on_diagonal = jnp.eye(size, dtype=bool)[..., None]
        kept = jnp.where(on_diagonal, keep_off_zero(*rows), rows[1])
        new = new.at[start:stop].set(kept.reshape(-1))
        start += total
    return new
