"""Batches of small matrices, of torch; see :mod:`ngvi.linalg.batched`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ngvi.linalg import batched as shared
from pyro_ngvi.linalg.matrices import matrices

#: Up to this many entries of a product, it is written out entry by entry.
FEW_ENTRIES = 16


class Batched(shared.Batched):
    """Operations of torch on batches of small matrices."""

    def tensordot(self, left: Tensor, right: Tensor, axes: Any) -> Tensor:
        return torch.tensordot(left, right, axes)

    def zeros(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return like.new_zeros(shape)

    def _matmul(self, left: Tensor, right: Tensor) -> Tensor:
        rows, columns = len(left), right.shape[1]
        if rows * columns > FEW_ENTRIES:
            return torch.matmul(left.movedim(-1, 0), right.movedim(-1, 0)).movedim(0, -1)
        entries = [[(left[i] * right[:, j]).sum(0) for j in range(columns)] for i in range(rows)]
        return torch.stack([torch.stack(row) for row in entries])

    def _times(self, matrix: Tensor, vector: Tensor) -> Tensor:
        if matrix.shape[:2] == (1, 1):
            return matrix[0] * vector
        return (matrix * vector.unsqueeze(-3)).sum(-2)

    def _transpose_times(self, matrix: Tensor, vector: Tensor) -> Tensor:
        if vector.shape[-1] == 1:
            return torch.tensordot(vector[..., 0], matrix, 1)
        if matrix.shape[:2] == (1, 1):
            return matrix[0] * vector
        return (matrix * vector.unsqueeze(-2)).sum(-3)


batched = Batched(matrices)
