"""Many small matrices at once, with the batch in the last axis.

A batch of ``n`` matrices of shape ``(p, q)`` is an array of shape ``(p, q, n)``, a batch of
vectors has shape ``(..., q, n)``. For small sizes every operation is a handful of elementwise
operations on contiguous arrays of length ``n``; LAPACK's batched routines, one call a matrix,
take ten times as long for 10^5 matrices of size 1 to 4. Larger sizes go to LAPACK. An
``n`` of 1 stands for the same matrix throughout a batch, and becomes one large product.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular

#: Up to this size a triangular solve or a factorisation is written out.
SMALL = 6
#: Up to this many terms a sum over a leading axis is written out: XLA's own reduction of one
#: is sixty times slower on a CPU (10 arrays of length 10^5).
FEW_TERMS = 32

#: A product of up to this many entries each.
FEW_ENTRIES = 16

_HIGHEST = jax.lax.Precision.HIGHEST  # a GPU's default (tf32) keeps ten bits


def transpose(matrix: jax.Array) -> jax.Array:
    """The transpose of every matrix."""
    return jnp.swapaxes(matrix, 0, 1)


def matmul(left: jax.Array, right: jax.Array) -> jax.Array:
    """``(p, q, n)`` times ``(q, r, n)``; either ``n`` may be 1."""
    if left.shape[-1] == 1:
        return jnp.tensordot(left[..., 0], right, 1, precision=_HIGHEST)
    if right.shape[-1] == 1:
        product = jnp.tensordot(right[..., 0], left, ((0,), (1,)), precision=_HIGHEST)
        return transpose(product)
    inner = left.shape[1]
    if inner <= FEW_TERMS:
        return sum(left[:, i, None] * right[None, i] for i in range(inner))
    return _batch_last(jnp.matmul(_batch_first(left), _batch_first(right), precision=_HIGHEST))


def times(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """``(p, q, n)`` times ``(..., q, n)``, to ``(..., p, n)``."""
    if matrix.shape[-1] == 1:
        product = jnp.tensordot(vector, matrix[..., 0], ((-2,), (1,)), precision=_HIGHEST)
        return jnp.swapaxes(product, -2, -1)
    inner = matrix.shape[1]
    if inner <= FEW_TERMS:
        return sum(matrix[:, i] * vector[..., i, None, :] for i in range(inner))
    return jnp.einsum("pqn,...qn->...pn", matrix, vector, precision=_HIGHEST)


def transpose_times(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """The transpose of ``(p, q, n)`` times ``(..., p, n)``, to ``(..., q, n)``."""
    if matrix.shape[-1] == 1:
        product = jnp.tensordot(vector, matrix[..., 0], ((-2,), (0,)), precision=_HIGHEST)
        return jnp.swapaxes(product, -2, -1)
    inner = len(matrix)
    if inner <= FEW_TERMS and (vector.shape[-1] > 1 or vector.ndim == 2):
        return sum(matrix[i] * vector[..., i, None, :] for i in range(inner))
    if vector.shape[-1] == 1:
        return jnp.tensordot(vector[..., 0], matrix, 1, precision=_HIGHEST)
    return jnp.einsum("pqn,...pn->...qn", matrix, vector, precision=_HIGHEST)


def transpose_matmul_for_gradient(left: jax.Array, right: jax.Array) -> jax.Array:
    """``left^T right``, in a form that is cheap to differentiate backwards in ``right``.

    The derivative of terms that are written out is a sum of as many padded arrays.
    """
    if left.shape[-1] == 1 or left.shape[1] * right.shape[1] > FEW_ENTRIES:
        return matmul(transpose(left), right)
    return jnp.sum(left[:, :, None] * right[:, None], 0)


def transpose_times_for_gradient(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """:func:`transpose_times`, in a form that is cheap to differentiate in ``matrix``."""
    if matrix.shape[-1] > 1 and vector.shape[-1] == 1:
        return jnp.tensordot(vector[..., 0], matrix, 1, precision=_HIGHEST)
    if matrix.shape[-1] > 1:
        return jnp.sum(matrix * vector[..., :, None, :], -3)
    return transpose_times(matrix, vector)


def solve(tril: jax.Array, vector: jax.Array) -> jax.Array:
    """Solve lower triangular ``(k, k, n)`` for ``(..., k, n)``."""
    size = tril.shape[0]
    if size > SMALL:
        return _solve_lapack(tril, vector, trans=0)
    solution: list[jax.Array] = []
    for i in range(size):
        rest = vector[..., i, :]
        for j in range(i):
            rest = rest - tril[i, j] * solution[j]
        solution.append(rest / tril[i, i])
    return jnp.stack(solution, -2)


def solve_transpose(tril: jax.Array, vector: jax.Array) -> jax.Array:
    """Solve the transpose of lower triangular ``(k, k, n)`` for ``(..., k, n)``."""
    size = tril.shape[0]
    if size > SMALL:
        return _solve_lapack(tril, vector, trans=1)
    solution: dict[int, jax.Array] = {}
    for i in reversed(range(size)):
        rest = vector[..., i, :]
        for j in range(i + 1, size):
            rest = rest - tril[j, i] * solution[j]
        solution[i] = rest / tril[i, i]
    return jnp.stack([solution[i] for i in range(size)], -2)


def solve_matrix(tril: jax.Array, matrix: jax.Array) -> jax.Array:
    """``tril^-1 matrix`` for ``(k, k, n)`` and ``(k, r, n)``."""
    return transpose(solve(tril, transpose(matrix)))


def solve_transpose_matrix(tril: jax.Array, matrix: jax.Array) -> jax.Array:
    """``tril^-T matrix`` for ``(k, k, n)`` and ``(k, r, n)``."""
    return transpose(solve_transpose(tril, transpose(matrix)))


def cholesky(matrix: jax.Array) -> jax.Array:
    """Lower factors of symmetric ``(k, k, n)``; NaN where one is not positive definite."""
    size = matrix.shape[0]
    if size > SMALL:
        return _batch_last(jnp.linalg.cholesky(_batch_first(matrix)))
    zero = jnp.zeros_like(matrix[0, 0])
    rows: list[list[jax.Array]] = []
    for i in range(size):
        row: list[jax.Array] = []
        for j in range(i):
            rest = matrix[i, j] - sum((row[m] * rows[j][m] for m in range(j)), zero)
            row.append(rest / rows[j][j])
        pivot = matrix[i, i] - sum((entry**2 for entry in row), zero)
        row.append(jnp.sqrt(jnp.where(pivot > 0, pivot, jnp.nan)))
        rows.append(row)
    return jnp.stack([jnp.stack(row + [zero] * (size - len(row))) for row in rows])


def tril(matrix: jax.Array) -> jax.Array:
    """The lower triangle of every matrix."""
    size = matrix.shape[0]
    return jnp.where(jnp.tril(jnp.ones((size, size), bool))[..., None], matrix, 0.0)


def halve_diagonal(matrix: jax.Array) -> jax.Array:
    """``Phi``: the lower triangle with its diagonal halved (Tan, Lemma 1)."""
    size = matrix.shape[0]
    weights = jnp.tril(jnp.ones((size, size), matrix.dtype)) - 0.5 * jnp.eye(
        size, dtype=matrix.dtype
    )
    return weights[..., None] * matrix


def identity(size: int, num: int, like: jax.Array) -> jax.Array:
    """``num`` identity matrices."""
    return jnp.broadcast_to(jnp.eye(size, dtype=like.dtype)[..., None], (size, size, num))


def diagonal(matrix: jax.Array) -> jax.Array:
    """The diagonals, shape ``(k, n)``."""
    return jnp.swapaxes(jnp.diagonal(matrix), 0, 1)


def zeros(shape: Sequence[int], like: jax.Array) -> jax.Array:
    """Zeros, with the dtype of ``like``."""
    return jnp.zeros(shape, like.dtype)


def split(array: jax.Array, sizes: list[int]) -> Sequence[jax.Array]:
    """The last axis cut into pieces."""
    return jax.lax.split(array, sizes, array.ndim - 1)


def concatenate(pieces: list[jax.Array], axis: int) -> jax.Array:
    """The pieces joined along an axis."""
    return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, axis)


def repeat(value: jax.Array, repeats: int) -> jax.Array:
    """Every element of the last axis, ``repeats`` times in a row."""
    wide = jnp.broadcast_to(value[..., None], (*value.shape, repeats))
    return wide.reshape(*value.shape[:-1], -1)


def contract(left: jax.Array, right: jax.Array) -> jax.Array:
    """``(..., k, n)`` and ``(p, k, n)`` summed over ``k`` and ``n``, to ``(..., p)``."""
    axes = ((-2, -1), (1, 2))
    return jnp.tensordot(left, right, axes, precision=jax.lax.Precision.HIGHEST)


def _solve_lapack(tril: jax.Array, vector: jax.Array, trans: int) -> jax.Array:
    *batch, size, num = vector.shape
    if tril.shape[-1] == 1:
        columns = jnp.moveaxis(vector, -2, 0).reshape(size, -1)
        solution = solve_triangular(tril[..., 0], columns, trans=trans, lower=True)
        return jnp.moveaxis(solution.reshape(size, *batch, num), 0, -2)
    columns = jnp.transpose(vector.reshape(-1, size, num), (2, 1, 0))
    solution = solve_triangular(_batch_first(tril), columns, trans=trans, lower=True)
    return jnp.transpose(solution, (2, 1, 0)).reshape(vector.shape)


def _batch_first(matrix: jax.Array) -> jax.Array:
    return jnp.moveaxis(matrix, -1, 0)


def _batch_last(matrix: jax.Array) -> jax.Array:
    return jnp.moveaxis(matrix, 0, -1)
