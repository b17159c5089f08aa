"""Many small matrices at once, with the batch in the last axis.

A batch of ``n`` matrices of shape ``(p, q)`` is a tensor of shape ``(p, q, n)``, a batch of
vectors has shape ``(..., q, n)``. For small sizes every operation is a handful of elementwise
operations on contiguous tensors of length ``n``; LAPACK's batched routines, one call a matrix,
take ten times as long for 10^5 matrices of size 1 to 4. Larger sizes go to LAPACK. An
``n`` of 1 stands for the same matrix throughout a batch, and becomes one large product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ngvi.linalg.matrices import Array, Matrices

#: Up to this size a triangular solve or a factorisation is written out.
SMALL = 6


class Batched:
    """Operations on batches of small matrices.

    A package writes what raises ``NotImplementedError`` here; the rest follows.

    :param matrices: what it does with single matrices.
    """

    #: Up to this many terms a sum over a leading axis is written out.
    few_terms: int = SMALL

    def __init__(self, matrices: Matrices) -> None:
        self.matrices, self.xp = matrices, matrices.xp

    # -- what a package writes --------------------------------------------------------

    def tensordot(self, left: Array, right: Array, axes: Any) -> Array:
        """Return the library's own, in full precision."""
        raise NotImplementedError

    def zeros(self, shape: Sequence[int], like: Array) -> Array:
        """Zeros of the dtype and device of ``like``."""
        raise NotImplementedError

    def _matmul(self, left: Array, right: Array) -> Array:
        """:meth:`matmul` of as many matrices on either side, of many terms."""
        raise NotImplementedError

    def _times(self, matrix: Array, vector: Array) -> Array:
        """:meth:`times` for more than one matrix."""
        raise NotImplementedError

    def _transpose_times(self, matrix: Array, vector: Array) -> Array:
        """:meth:`transpose_times` for more than one matrix."""
        raise NotImplementedError

    # -- products ---------------------------------------------------------------------

    def transpose(self, matrix: Array) -> Array:
        """Return the transpose of every matrix."""
        return self.xp.swapaxes(matrix, 0, 1)

    def matmul(self, left: Array, right: Array) -> Array:
        """``(p, q, n)`` times ``(q, r, n)``; either ``n`` may be 1."""
        if left.shape[-1] == 1:
            return self.tensordot(left[..., 0], right, 1)
        if right.shape[-1] == 1:
            return self.transpose(self.tensordot(right[..., 0], left, ((0,), (1,))))
        inner = left.shape[1]
        if inner <= self.few_terms:
            return sum(left[:, i, None] * right[None, i] for i in range(inner))
        return self._matmul(left, right)

    def times(self, matrix: Array, vector: Array) -> Array:
        """``(p, q, n)`` times ``(..., q, n)``, to ``(..., p, n)``."""
        if matrix.shape[-1] == 1:
            return self.tensordot(vector, matrix[..., 0], ((-2,), (1,))).mT
        return self._times(matrix, vector)

    def transpose_times(self, matrix: Array, vector: Array) -> Array:
        """Return the transpose of ``(p, q, n)`` times ``(..., p, n)``, to ``(..., q, n)``."""
        if matrix.shape[-1] == 1:
            return self.tensordot(vector, matrix[..., 0], ((-2,), (0,))).mT
        return self._transpose_times(matrix, vector)

    def contract(self, left: Array, right: Array) -> Array:
        """``(..., k, n)`` and ``(p, k, n)`` summed over ``k`` and ``n``, to ``(..., p)``."""
        return self.tensordot(left, right, ((-2, -1), (1, 2)))

    # -- solutions and factors --------------------------------------------------------

    def solve(self, tril: Array, vector: Array, trans: bool = False) -> Array:
        """``T^-1 x`` or ``T^-T x`` of lower triangular ``(k, k, n)`` for ``(..., k, n)``."""
        size = tril.shape[0]
        if size > SMALL:
            return self._solve_lapack(tril, vector, trans)
        if size == 1:
            return vector / tril[0]
        solution: dict[int, Array] = {}
        for i in reversed(range(size)) if trans else range(size):
            rest = vector[..., i, :]
            for j in sorted(solution):
                rest = rest - (tril[j, i] if trans else tril[i, j]) * solution[j]
            solution[i] = rest / tril[i, i]
        return self.xp.stack([solution[i] for i in range(size)], -2)

    def solve_matrix(self, tril: Array, matrix: Array, trans: bool = False) -> Array:
        """:meth:`solve` for ``(k, r, n)``."""
        return self.transpose(self.solve(tril, self.transpose(matrix), trans))

    def cholesky(self, matrix: Array) -> Array:
        """Lower factors of symmetric ``(k, k, n)``; NaN where one is not positive definite."""
        xp, size = self.xp, matrix.shape[0]
        if size > SMALL:
            return xp.moveaxis(self.matrices.cholesky(xp.moveaxis(matrix, -1, 0)), 0, -1)
        zero = xp.zeros_like(matrix[0, 0])
        rows: list[list[Array]] = []
        for i in range(size):
            row: list[Array] = []
            for j in range(i):
                rest = matrix[i, j] - sum((row[m] * rows[j][m] for m in range(j)), zero)
                row.append(rest / rows[j][j])
            pivot = matrix[i, i] - sum((entry**2 for entry in row), zero)
            row.append(xp.sqrt(xp.where(pivot > 0, pivot, xp.nan)))
            rows.append(row)
        return xp.stack([xp.stack(row + [zero] * (size - len(row))) for row in rows])

    def _solve_lapack(self, tril: Array, vector: Array, trans: bool) -> Array:
        xp, (*batch, size, num) = self.xp, vector.shape
        if tril.shape[-1] == 1:
            columns = xp.moveaxis(vector, -2, 0).reshape(size, -1)
            solution = self.matrices.solve_lower(tril[..., 0], columns, trans)
            return xp.moveaxis(solution.reshape(size, *batch, num), 0, -2)
        columns = xp.swapaxes(vector.reshape(-1, size, num), 0, 2)
        solution = self.matrices.solve_lower(xp.moveaxis(tril, -1, 0), columns, trans)
        return xp.swapaxes(solution, 0, 2).reshape(vector.shape)

    # -- triangles and diagonals ------------------------------------------------------

    def tril(self, matrix: Array) -> Array:
        """Return the lower triangle of every matrix."""
        return self._triangle(matrix) * matrix

    def halve_diagonal(self, matrix: Array) -> Array:
        """``Phi``: the lower triangle with its diagonal halved (Tan, Lemma 1)."""
        eye = self.matrices.eye(matrix.shape[0], matrix)
        return (self._triangle(matrix) - 0.5 * eye[..., None]) * matrix

    def _triangle(self, matrix: Array) -> Array:
        """Ones in the lower triangle, for all matrices."""
        return self.xp.tril(self.xp.ones_like(matrix[..., 0]))[..., None]

    def identity(self, size: int, num: int, like: Array) -> Array:
        """``num`` identity matrices of the dtype and device of ``like``."""
        eye = self.matrices.eye(size, like)
        return self.xp.broadcast_to(eye[..., None], (size, size, num))

    def diagonal(self, matrix: Array) -> Array:
        """Return the diagonals, shape ``(k, n)``."""
        return matrix.diagonal().mT

    # -- pieces -----------------------------------------------------------------------

    def concatenate(self, pieces: list[Array], axis: int) -> Array:
        """Return the pieces joined along an axis."""
        return pieces[0] if len(pieces) == 1 else self.xp.concatenate(pieces, axis)

    def repeat(self, value: Array, repeats: int) -> Array:
        """Every element of the last axis, ``repeats`` times in a row."""
        wide = self.xp.broadcast_to(value[..., None], (*value.shape, repeats))
        return wide.reshape(*value.shape[:-1], -1)
