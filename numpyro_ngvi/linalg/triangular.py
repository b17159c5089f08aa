"""Products, solutions and steps with triangles."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

#: From this many draws in one call on, or up to this dimension (under ``vmap`` the number of
#: draws cannot be seen), one O(d^3) product for all draws is cheaper than O(d^2) memory
#: traffic for each. Measured on two cores.
MANY_DRAWS = 4
SMALL_DIM = 512

#: XLA's cumulative sum is slow on a CPU; products with triangles of this size are not.
CUMSUM_BLOCK = 32

#: Up to this dimension :func:`solve_columns` takes blocks of so many rows. A call of BLAS for more
#: than a thousand numbers wakes other threads: 40 microseconds where the work takes 10, and on a
#: busy machine milliseconds.
SMALL_TRIANGLE = 128
BLAS_BLOCK = 16

#: The fraction of a standard deviation (or Cholesky diagonal) that a step leaves at least.
MIN_SHRINKAGE = 0.01


def symmetric(matrix: jax.Array) -> jax.Array:
    """The symmetric part. Keeping a triangle instead would drop half of the information."""
    return 0.5 * (matrix + jnp.swapaxes(matrix, -2, -1))


def times(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """``A x`` for each of a batch, ``(..., p, q)`` times ``(..., q)``."""
    return (matrix @ vector[..., None])[..., 0]


def halve_diagonal(matrix: jax.Array) -> jax.Array:
    """``Phi``: the lower triangle with its diagonal halved (Tan, Lemma 1)."""
    return jnp.tril(matrix) - 0.5 * jnp.diag(jnp.diagonal(matrix))


def solve_lower(tril: jax.Array, rhs: jax.Array, trans: bool = False) -> jax.Array:
    """``T^-1 b`` or ``T^-T b``, for a vector or for columns.

    :param tril: ``T``, lower triangular, shape ``(d, d)``.
    :param rhs: ``b``, shape ``(d,)`` or ``(d, n)``.
    """
    if tril.shape == (1, 1):  # a number: no LAPACK, whose solves of size one have failed in tests
        return rhs / tril[0]
    return jax.scipy.linalg.solve_triangular(tril, rhs, trans=int(trans), lower=True)


def solve_columns(tril: jax.Array, columns: jax.Array) -> jax.Array:
    """``T^-1 B`` for many columns, by the inverses of small blocks of a small ``T``.

    :param tril: ``T``, lower triangular, shape ``(d, d)``.
    :param columns: ``B``, shape ``(d, n)``.
    """
    dim = len(tril)
    if dim > SMALL_TRIANGLE:
        return solve_lower(tril, columns)
    solved = columns[:0]
    for start in range(0, dim, BLAS_BLOCK):
        rows = slice(start, min(start + BLAS_BLOCK, dim))
        block = tril[rows, rows]
        inverse = solve_lower(block, jnp.eye(len(block), dtype=tril.dtype))
        rest = columns[rows] - tril[rows, :start] @ solved
        solved = jnp.concatenate([solved, inverse @ rest])
    return solved


def congruence(root: jax.Array, matrix: jax.Array) -> jax.Array:
    """``R^-1 A R^-T`` for the symmetric part of ``A``.

    :param root: ``R``, lower triangular, shape ``(d, d)``.
    """
    half = solve_lower(root, symmetric(matrix))
    return symmetric(solve_lower(root, half.T))


def divide(root: jax.Array, rhs: jax.Array) -> jax.Array:
    """``(R R^T)^-1 b``."""
    return solve_lower(root, solve_lower(root, rhs), trans=True)


def prefer_one_product(noise: jax.Array) -> bool:
    """Whether one O(d^3) product for all of these draws is the cheaper way."""
    *batch, dim = noise.shape
    return dim <= SMALL_DIM or math.prod(batch) >= MANY_DRAWS


def root_of_inverse(tril: jax.Array) -> jax.Array:
    """The lower triangular ``C`` with ``C C^T = (T T^T)^-1``, its diagonal positive.

    By a QR factorisation of ``T^-1``, because ``T T^T`` would square the condition number.

    :param tril: ``T``, lower triangular, shape ``(d, d)``.
    """
    eye = jnp.eye(tril.shape[-1], dtype=tril.dtype)
    return positive_diagonal(jnp.linalg.qr(solve_lower(tril, eye), mode="r").T)


def positive_diagonal(tril: jax.Array) -> jax.Array:
    """The factor of the same matrix whose diagonal is positive: signs of columns are free."""
    return tril * jnp.where(jnp.diagonal(tril) < 0, -1.0, 1.0).astype(tril.dtype)


def log_abs_det(tril: jax.Array) -> jax.Array:
    """``log |det T|`` of a triangular matrix."""
    return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(tril))))


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


def keep_off_zero(old: jax.Array, new: jax.Array) -> jax.Array:
    """``new``, or ``MIN_SHRINKAGE * |old|`` with its sign where it is smaller than that.

    At zero ``q`` degenerates, and only there: beyond it lies its mirror image. A rule that
    keeps the sign would halve the coordinate at every step for as long as a momentum points
    at zero, which lasts longer than floating point numbers do.
    """
    floor = MIN_SHRINKAGE * jnp.abs(old)
    return jnp.where(jnp.abs(new) < floor, jnp.copysign(floor, new), new)
