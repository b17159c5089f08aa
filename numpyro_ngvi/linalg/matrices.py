"""Matrices of JAX; see :mod:`ngvi.linalg.matrices` and :mod:`ngvi.linalg.definite`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax.linalg import cholesky_p, triangular_solve

from ngvi.linalg import definite

#: XLA's cumulative sum is slow on a CPU; products with triangles of this size are not.
CUMSUM_BLOCK = 32

#: Up to this dimension an identity, and a mask of a triangle, is a constant of a program.
SMALL_TRIANGLE = 128

#: On a GPU larger triangles are inverted from diagonal blocks of this size on: a call of its
#: library for a thousand rows takes four times as long.
INVERTED_BLOCK = 64

#: Sums of so few numbers are products with ones: of more than 32 XLA makes two kernels, and what is
#: summed is a third. Of many, sums are two to five times as fast.
SMALL_SUM = 2**15


class Sums(definite.Definite):
    """Sums of many numbers, of which XLA makes a kernel each."""

    xp = jnp

    def norm(self, tensors: Sequence[jax.Array]) -> jax.Array:
        # Squares of a float32 overflow from 1e19 on.
        largest = jnp.max(jnp.stack([jnp.max(jnp.abs(tensor)) for tensor in tensors]))
        unit = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)
        return unit * jnp.sqrt(sum(jnp.sum((tensor / unit) ** 2) for tensor in tensors))

    def products(
        self, left: Sequence[Sequence[jax.Array]], right: Sequence[Sequence[jax.Array]]
    ) -> list[list[jax.Array]]:
        def product(one: Sequence[jax.Array], other: Sequence[jax.Array]) -> jax.Array:
            return sum(jnp.sum(a * b) for a, b in zip(one, other, strict=True))

        return [[product(one, other) for other in right] for one in left]

    def all(self, flags: jax.Array, like: jax.Array) -> jax.Array:
        return self.total(jnp.where(flags, 0, 1).astype(like.dtype)) == 0

    def total(self, tensor: jax.Array) -> jax.Array:
        if tensor.ndim > 1:  # by rows, or rounding would add up
            tensor = self.row_products(tensor, jnp.ones_like(tensor)).reshape(-1)
        return self.row_products(tensor, jnp.ones_like(tensor))

    def row_products(self, left: jax.Array, right: jax.Array) -> jax.Array:
        if left.size > SMALL_SUM:
            return super().row_products(left, right)
        last, batch = left.ndim - 1, tuple(range(left.ndim - 1))
        dimensions = ((last,), (last,)), (batch, batch)
        return jax.lax.dot_general(left, right, dimensions, jax.lax.Precision.HIGHEST)

    def rows_of(self, inner: jax.Array, factor: jax.Array) -> jax.Array:
        # Its derivative needs no copy of the transpose.
        return jax.lax.dot_general(inner, factor, (((inner.ndim - 1,), (1,)), ((), ())))

    def sum_rows(self, matrix: jax.Array) -> jax.Array:
        return self.row_products(matrix.mT, jnp.ones_like(matrix.mT))


class Matrices(Sums):
    """Operations of JAX on matrices.

    Some functions are compiled: outside of a compiled step a ``cond`` is compiled at every call.
    """

    small_dim = 512  # under vmap the number of draws cannot be seen

    precision_root = jax.jit(
        definite.Definite.precision_root, static_argnames=("self", "is_definite")
    )
    covariance_root = jax.jit(
        definite.Definite.covariance_root, static_argnames=("self", "is_definite")
    )

    def on_cpu(self, tensor: jax.Array) -> bool:
        return jax.default_backend() == "cpu"  # a traced array says nothing of its device

    def tensor(self, values: Any, like: jax.Array) -> jax.Array:
        return jnp.asarray(values, like.dtype)

    def scatter(self, size: int, places: np.ndarray, values: jax.Array) -> jax.Array:
        return jnp.zeros(size, values.dtype).at[places].set(values)

    def eye(self, size: int, like: jax.Array) -> jax.Array:
        # A small one is a constant: to make it, and its layout for LAPACK, would take kernels.
        xp = np if size <= SMALL_TRIANGLE else jnp
        return jnp.asarray(xp.eye(size, dtype=like.dtype))

    def scaled(self, factor: jax.Array | float, tensor: jax.Array) -> jax.Array:
        return (factor * tensor).astype(tensor.dtype)

    def combined(
        self,
        amount: jax.Array | float,
        one: jax.Array,
        other_amount: jax.Array | float,
        other: jax.Array,
    ) -> jax.Array:
        return (amount * one + other_amount * other).astype(one.dtype)

    def at_least(self, values: jax.Array, floor: float) -> jax.Array:
        return jnp.maximum(values, floor)

    def select(self, flag: jax.Array, yes: jax.Array, no: jax.Array) -> jax.Array:
        return jnp.where(flag, yes, no)

    def likely(self, flag: jax.Array) -> jax.Array:
        return flag

    def cond(self, flag: jax.Array, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return jax.lax.cond(flag, yes, no)

    def while_loop(self, test: Callable, body: Callable, state: tuple) -> tuple:
        return jax.lax.while_loop(test, body, state)

    def split(self, tensor: jax.Array, sizes: list[int]) -> Sequence[jax.Array]:
        return jax.lax.split(tensor, sizes, tensor.ndim - 1)

    def with_diagonal(self, matrix: jax.Array, diagonal: jax.Array) -> jax.Array:
        return jnp.where(jnp.eye(len(matrix), dtype=bool), diagonal[:, None], matrix)

    def lower(self, matrix: jax.Array) -> jax.Array:
        # A small mask is a constant.
        size = matrix.shape[-1]
        if size > SMALL_TRIANGLE:
            return super().lower(matrix)
        return jnp.where(np.tri(size, dtype=bool), matrix, jnp.zeros((), matrix.dtype))

    def diagonals(self, matrix: jax.Array) -> jax.Array:
        # JAX gathers it: more kernels to compile, and a branch to read. A slice is part of another.
        size = matrix.shape[-1]
        return matrix.reshape(*matrix.shape[:-2], size**2)[..., :: size + 1]

    def halve_diagonal(self, matrix: jax.Array) -> jax.Array:
        size = matrix.shape[-1]
        if size > SMALL_TRIANGLE:
            return super().halve_diagonal(matrix)
        weights = np.tri(size) - 0.5 * np.eye(size)
        return jnp.where(weights > 0, weights.astype(matrix.dtype) * matrix, 0)

    def centred_cumsum(self, matrix: jax.Array) -> jax.Array:
        return row_cumsum(matrix) - 0.5 * matrix

    def cholesky(self, matrix: jax.Array) -> jax.Array:
        # The primitive leaves the upper triangle: JAX's function compiles a mask of its own.
        return self.lower(cholesky_p.bind(matrix.mT))

    def eigh(self, matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.linalg.eigh(matrix.mT, symmetrize_input=False)

    def upper_factor(self, matrix: jax.Array) -> jax.Array:
        return jnp.linalg.qr(matrix, "r")

    def solve_lower(self, tril: jax.Array, rhs: jax.Array, trans: bool = False) -> jax.Array:
        if rhs.ndim > 1 and not self.on_cpu(tril):
            return triangular_solve(tril, rhs, left_side=True, lower=True, transpose_a=trans)
        # LAPACK's matrices have columns where ours have rows: transposed ones it takes as they are.
        rows = rhs.mT if rhs.ndim > 1 else rhs[None]
        found = triangular_solve(tril.mT, rows, left_side=False, lower=False, transpose_a=trans)
        return found.mT if rhs.ndim > 1 else found[0]

    def inverse_small(self, tril: jax.Array) -> jax.Array:
        if tril.shape[-1] == 1:
            return 1.0 / tril
        if tril.shape[-1] > SMALL_TRIANGLE:  # on a GPU
            return _inverse_by_blocks(tril, self.inverse_small)
        eye = jnp.broadcast_to(self.eye(tril.shape[-1], tril), tril.shape)
        return triangular_solve(tril.mT, eye, left_side=True, lower=False).mT


def _bordered(tril: jax.Array, size: int) -> jax.Array:
    """Triangles ``(..., k, k)`` above an identity, shape ``(..., size, size)``."""
    dim = tril.shape[-1]
    edges = [(0, 0)] * (tril.ndim - 2) + [(0, size - dim)] * 2
    return jnp.pad(tril, edges) + jnp.diag((jnp.arange(size) >= dim).astype(tril.dtype))


def _inverse_by_blocks(tril: jax.Array, invert: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Return ``T^-1`` of triangles ``(..., k, k)``, by blocks.

    Diagonal blocks are inverted first, then those of twice their size, all of one size in one
    product.

    :param invert: of small triangles.
    """
    dim = tril.shape[-1]
    size = INVERTED_BLOCK
    while size < dim:
        size *= 2
    whole = _bordered(tril, size)

    def diagonal_blocks(size: int, part: Callable) -> jax.Array:
        starts = range(0, whole.shape[-1], size)
        return jnp.stack([part(whole[..., i : i + size, i : i + size]) for i in starts], -3)

    found = invert(diagonal_blocks(INVERTED_BLOCK, lambda block: block))
    while (half := found.shape[-1]) < size:
        below = diagonal_blocks(2 * half, lambda block, half=half: block[..., half:, :half])
        first, last = found[..., ::2, :, :], found[..., 1::2, :, :]
        # A GPU's default (tf32) would round to ten bits.
        times = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
        below = -times(times(last, below), first)
        top = jnp.concatenate([first, jnp.zeros_like(first)], -1)
        found = jnp.concatenate([top, jnp.concatenate([below, last], -1)], -2)
    return found[..., 0, :dim, :dim]


matrices = Matrices()


def row_cumsum(matrix: jax.Array) -> jax.Array:
    """``jnp.cumsum(matrix, -1)`` in two levels of blocks, each a small product."""
    *batch, size = matrix.shape
    num_blocks = -(-size // CUMSUM_BLOCK)
    if num_blocks == 1:
        return _times_triangle(matrix, 0)
    padding = [(0, 0)] * len(batch) + [(0, num_blocks * CUMSUM_BLOCK - size)]
    blocks = jnp.pad(matrix, padding).reshape(*batch, num_blocks, CUMSUM_BLOCK)
    within = _times_triangle(blocks, 0)
    before = _times_triangle(within[..., -1], 1)
    return (within + before[..., None]).reshape(*batch, -1)[..., :size]


def _times_triangle(matrix: jax.Array, diagonal: int) -> jax.Array:
    size = matrix.shape[-1]
    triangle = jnp.triu(jnp.ones((size, size), matrix.dtype), diagonal)
    # A GPU's default (tf32) would round the summands to ten bits.
    return jnp.matmul(matrix, triangle, precision=jax.lax.Precision.HIGHEST)
