"""Many small matrices at once, with the batch in the last axis.

A batch of ``n`` matrices of shape ``(p, q)`` is a tensor of shape ``(p, q, n)``, a batch of
vectors has shape ``(..., q, n)``. For small sizes every operation is a handful of elementwise
operations on contiguous tensors of length ``n``; LAPACK's batched routines, one call a matrix,
take ten times as long for 10^5 matrices of size 1 to 4. Larger sizes go to LAPACK. An
``n`` of 1 stands for the same matrix throughout a batch, and becomes one large product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pyro_ngvi.linalg import triangular

#: Up to this size a triangular solve or a factorisation is written out.
SMALL = 6
#: Up to this many entries of a product, it is written out entry by entry.
FEW_ENTRIES = 16


def transpose(matrix: Tensor) -> Tensor:
    """The transpose of every matrix."""
    return matrix.transpose(0, 1)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """``(p, q, n)`` times ``(q, r, n)``; either ``n`` may be 1."""
    if left.shape[-1] == 1:
        return torch.tensordot(left[..., 0], right, 1)
    if right.shape[-1] == 1:
        return transpose(torch.tensordot(right[..., 0], left, ([0], [1])))
    (rows, inner, _), columns = left.shape, right.shape[1]
    if inner <= SMALL:
        return sum(left[:, i, None] * right[None, i] for i in range(inner))
    if rows * columns <= FEW_ENTRIES:
        entries = [[(left[i] * right[:, j]).sum(0) for j in range(columns)] for i in range(rows)]
        return torch.stack([torch.stack(row) for row in entries])
    return _batch_last(torch.matmul(_batch_first(left), _batch_first(right)))


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    """``(p, q, n)`` times ``(..., q, n)``, to ``(..., p, n)``."""
    if matrix.shape[-1] == 1:
        return torch.tensordot(vector, matrix[..., 0], ([-2], [1])).transpose(-2, -1)
    if matrix.shape[:2] == (1, 1):
        return matrix[0] * vector
    return (matrix * vector.unsqueeze(-3)).sum(-2)


def transpose_times(matrix: Tensor, vector: Tensor) -> Tensor:
    """The transpose of ``(p, q, n)`` times ``(..., p, n)``, to ``(..., q, n)``."""
    if matrix.shape[-1] == 1:
        return torch.tensordot(vector, matrix[..., 0], ([-2], [0])).transpose(-2, -1)
    if vector.shape[-1] == 1:
        return torch.tensordot(vector[..., 0], matrix, 1)
    if matrix.shape[:2] == (1, 1):
        return matrix[0] * vector
    return (matrix * vector.unsqueeze(-2)).sum(-3)


def solve(tril: Tensor, vector: Tensor) -> Tensor:
    """Solve lower triangular ``(k, k, n)`` for ``(..., k, n)``."""
    size = tril.shape[0]
    if size > SMALL:
        return _solve_lapack(tril, vector, upper=False)
    if size == 1:
        return vector / tril[0]
    solution: list[Tensor] = []
    for i in range(size):
        rest = vector[..., i, :]
        for j in range(i):
            rest = rest - tril[i, j] * solution[j]
        solution.append(rest / tril[i, i])
    return torch.stack(solution, -2)


def solve_transpose(tril: Tensor, vector: Tensor) -> Tensor:
    """Solve the transpose of lower triangular ``(k, k, n)`` for ``(..., k, n)``."""
    size = tril.shape[0]
    if size > SMALL:
        return _solve_lapack(tril, vector, upper=True)
    if size == 1:
        return vector / tril[0]
    solution: dict[int, Tensor] = {}
    for i in reversed(range(size)):
        rest = vector[..., i, :]
        for j in range(i + 1, size):
            rest = rest - tril[j, i] * solution[j]
        solution[i] = rest / tril[i, i]
    return torch.stack([solution[i] for i in range(size)], -2)


def solve_matrix(tril: Tensor, matrix: Tensor) -> Tensor:
    """``tril^-1 matrix`` for ``(k, k, n)`` and ``(k, r, n)``."""
    return transpose(solve(tril, transpose(matrix)))


def solve_transpose_matrix(tril: Tensor, matrix: Tensor) -> Tensor:
    """``tril^-T matrix`` for ``(k, k, n)`` and ``(k, r, n)``."""
    return transpose(solve_transpose(tril, transpose(matrix)))


def cholesky(matrix: Tensor) -> Tensor:
    """Lower factors of symmetric ``(k, k, n)``; NaN where one is not positive definite."""
    size = matrix.shape[0]
    if size > SMALL:
        return _batch_last(triangular.cholesky(_batch_first(matrix)))
    zero = torch.zeros_like(matrix[0, 0])
    rows: list[list[Tensor]] = []
    for i in range(size):
        row: list[Tensor] = []
        for j in range(i):
            rest = matrix[i, j] - sum((row[m] * rows[j][m] for m in range(j)), zero)
            row.append(rest / rows[j][j])
        pivot = matrix[i, i] - sum((entry**2 for entry in row), zero)
        row.append(torch.where(pivot > 0, pivot, torch.nan).sqrt())
        rows.append(row)
    return torch.stack([torch.stack(row + [zero] * (size - len(row))) for row in rows])


def tril(matrix: Tensor) -> Tensor:
    """The lower triangle of every matrix."""
    size = matrix.shape[0]
    return matrix * torch.ones(size, size).tril().to(matrix)[..., None]


def halve_diagonal(matrix: Tensor) -> Tensor:
    """``Phi``: the lower triangle with its diagonal halved (Tan, Lemma 1)."""
    size = matrix.shape[0]
    weights = torch.ones(size, size).tril() - 0.5 * torch.eye(size)
    return weights.to(matrix)[..., None] * matrix


def identity(size: int, num: int, like: Tensor) -> Tensor:
    """``num`` identity matrices."""
    return torch.eye(size).to(like)[..., None].expand(size, size, num)


def diagonal(matrix: Tensor) -> Tensor:
    """The diagonals, shape ``(k, n)``."""
    return matrix.diagonal().mT


def zeros(shape: Sequence[int], like: Tensor) -> Tensor:
    """Zeros, with the dtype and device of ``like``."""
    return like.new_zeros(shape)


def split(tensor: Tensor, sizes: list[int]) -> Sequence[Tensor]:
    """The last axis cut into pieces."""
    return tensor.split(sizes, -1)


def concatenate(pieces: list[Tensor], axis: int) -> Tensor:
    """The pieces joined along an axis."""
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)


def repeat(value: Tensor, repeats: int) -> Tensor:
    """Every element of the last axis, ``repeats`` times in a row."""
    return value[..., None].expand(*value.shape, repeats).reshape(*value.shape[:-1], -1)


def contract(left: Tensor, right: Tensor) -> Tensor:
    """``(..., k, n)`` and ``(p, k, n)`` summed over ``k`` and ``n``, to ``(..., p)``."""
    return torch.tensordot(left, right, ([-2, -1], [1, 2]))


def _solve_lapack(tril: Tensor, vector: Tensor, upper: bool) -> Tensor:
    *batch, size, num = vector.shape
    if tril.shape[-1] == 1:
        matrix = tril[..., 0].mT if upper else tril[..., 0]
        columns = vector.movedim(-2, 0).reshape(size, -1)
        solution = torch.linalg.solve_triangular(matrix, columns, upper=upper)
        return solution.reshape(size, *batch, num).movedim(0, -2)
    matrices = _batch_first(tril).mT if upper else _batch_first(tril)
    columns = vector.reshape(-1, size, num).permute(2, 1, 0)
    solution = torch.linalg.solve_triangular(matrices, columns, upper=upper)
    return solution.permute(2, 1, 0).reshape(vector.shape)


def _batch_first(matrix: Tensor) -> Tensor:
    return matrix.movedim(-1, 0)


def _batch_last(matrix: Tensor) -> Tensor:
    return matrix.movedim(0, -1)
