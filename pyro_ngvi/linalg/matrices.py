"""Matrices of torch; see :mod:`ngvi.linalg.matrices` and :mod:`ngvi.linalg.definite`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngvi.linalg import definite
from pyro_ngvi.host import likely, on_device


class Matrices(definite.Definite):
    """Operations of torch; where torch raises, a NaN is for the optimiser to skip."""

    xp = torch

    def on_cpu(self, tensor: Tensor) -> bool:
        return tensor.device.type == "cpu"

    def tensor(self, values: Any, like: Tensor) -> Tensor:
        return on_device(values, like)

    def scatter(self, size: int, places: np.ndarray, values: Tensor) -> Tensor:
        vector = values.new_zeros(size)
        vector[on_device(places, values, torch.int64)] = values
        return vector

    def eye(self, size: int, like: Tensor) -> Tensor:
        return torch.eye(size, dtype=like.dtype, device=like.device)

    def scaled(self, factor: float, tensor: Tensor) -> Tensor:
        return factor * tensor

    def combined(
        self, amount: float, one: Tensor, other_amount: Tensor | float, other: Tensor
    ) -> Tensor:
        if isinstance(other_amount, Tensor):
            return (amount * one).addcmul_(other, other_amount)
        return (amount * one).add_(other, alpha=other_amount)

    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        # Squares of a float32 overflow from 1e19 on. One more pass is less than to ask.
        largest = torch.stack([torch.linalg.vector_norm(t, torch.inf) for t in tensors]).max()
        unit = torch.where(largest > torch.finfo(largest.dtype).max ** 0.4, largest, 1.0)
        norms = [torch.linalg.vector_norm(tensor / unit) for tensor in tensors]
        return unit * torch.linalg.vector_norm(torch.stack(norms))

    def products(
        self, left: Sequence[Sequence[Tensor]], right: Sequence[Sequence[Tensor]]
    ) -> Tensor:
        def stacked(rows: Sequence[Sequence[Tensor]]) -> list[Tensor]:
            flat = [[tensor.reshape(-1) for tensor in row] for row in rows]
            return [torch.stack(same) for same in zip(*flat, strict=True)]

        return sum(a @ b.mT for a, b in zip(stacked(left), stacked(right), strict=True))

    def at_least(self, values: Tensor, floor: float) -> Tensor:
        return values.clamp(min=floor)

    likely = staticmethod(likely)

    def select(self, flag: bool, yes: Tensor, no: Tensor) -> Tensor:
        return yes if flag else no

    def cond(self, flag: bool, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return yes() if flag else no()

    def while_loop(self, test: Callable, body: Callable, state: tuple) -> tuple:
        while test(state):
            state = body(state)
        return state

    def split(self, tensor: Tensor, sizes: list[int]) -> Sequence[Tensor]:
        return tensor.split(sizes, -1)

    def with_diagonal(self, matrix: Tensor, diagonal: Tensor) -> Tensor:
        return torch.diagonal_scatter(matrix, diagonal)

    def half_lower(self, matrix: Tensor, of_trace: float) -> Tensor:
        lower = matrix.tril()
        lower.diagonal().mul_(0.5).add_(of_trace * matrix.diagonal().sum())
        return lower

    def plus_diagonal(
        self, matrix: Tensor, amount: Tensor | float, times: Tensor | float = 1.0
    ) -> Tensor:
        new = times * matrix  # a copy, whatever the number
        new.diagonal(0, -2, -1).add_(amount)
        return new

    def centred_cumsum(self, matrix: Tensor) -> Tensor:
        return torch.sub(matrix.cumsum(-1), matrix, alpha=0.5)

    def cholesky(self, matrix: Tensor) -> Tensor:
        factor, info = torch.linalg.cholesky_ex(matrix)
        # LAPACK's factor has columns where torch's have rows: `where` would copy it against the
        # grain, in twice the time of the factorisation, and a sum leaves it as it is.
        missing = torch.where(info == 0, 0.0, torch.nan).to(factor.dtype)
        return factor + missing[..., None, None]

    def definite_cholesky(self, matrix: Tensor) -> Tensor:
        return torch.linalg.cholesky_ex(matrix).L

    def eigh(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        if not matrix.isfinite().all():
            return torch.full_like(matrix[..., 0], torch.nan), torch.full_like(matrix, torch.nan)
        return torch.linalg.eigh(matrix)

    def svd(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        if not matrix.isfinite().all():
            return torch.full_like(matrix, torch.nan), torch.full_like(matrix, torch.nan)
        return super().svd(matrix)

    def upper_factor(self, matrix: Tensor) -> Tensor:
        return torch.linalg.qr(matrix, mode="r").R

    def solve_lower(self, tril: Tensor, rhs: Tensor, trans: bool = False) -> Tensor:
        # LAPACK's matrices have columns where torch's have rows: transposed ones are not copied,
        # and from the right BLAS takes half the time.
        rows = rhs[None] if rhs.ndim == 1 else rhs.mT
        factor = tril if trans else tril.mT
        solution = torch.linalg.solve_triangular(factor, rows, upper=not trans, left=False)
        return solution[0] if rhs.ndim == 1 else solution.mT

    def inverse_small(self, tril: Tensor) -> Tensor:
        return self.solve_lower(tril, self.eye(tril.shape[-1], tril).expand(tril.shape))

    def solve_symmetric(self, tril: Tensor, matrix: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(tril, matrix, upper=False, left=False).mT


matrices = Matrices()
