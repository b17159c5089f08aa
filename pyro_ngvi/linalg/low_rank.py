"""A symmetric matrix of low rank plus a diagonal, ``S = U U^T + diag(D)``.

Let ``V = D^-1/2 U`` and ``L L^T = I + V^T V``, a Cholesky factorisation of size ``r``. Then

    S = D^1/2 R R^T D^1/2,      R = I + V (I + L)^-1 V^T,      |R| = |L|,                  (1)
    R^-T = I - V L^-T (I + L)^-1 V^T,

because ``I + V J^-1 V^T`` is a root of ``I + V V^T`` where ``(J - I) (J - I)^T = I + V^T V``.
Nothing is inverted that ``U = 0`` makes singular. Time is O(d r^2), memory O(d r).
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import torch
from torch import Tensor

from pyro_ngvi.linalg.triangular import cholesky, solve_lower, symmetric

#: The eigenvalue of ``V^T V`` below which a direction's metric no longer falls.
MIN_STRENGTH = 1e-3

#: The eigenvalues of ``V^T V`` at the start: ``U = 0`` is a saddle, which no gradient leaves.
INITIAL_STRENGTH = 0.1

#: Rows of a factor handled together, so that what is made of them stays in the cache.
ROWS_AT_ONCE = 1 << 15

#: Improvements of the diagonal in a projection to low rank at most, and the change, relative
#: to the largest entry of the diagonal, that is not worth another.
PROJECTION_SWEEPS = 100
PROJECTION_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class LowRank:
    """``U U^T + diag(D)``, and what it keeps of itself: an array of size ``d r`` is read once.

    :param factor: ``U``, shape ``(d, r)``.
    :param diagonal: ``D``, positive, shape ``(d,)``.
    """

    factor: Tensor
    diagonal: Tensor

    @functools.cached_property
    def strength(self) -> Tensor:
        """``V^T V``."""
        pieces = zip(
            self.factor.split(ROWS_AT_ONCE), self.diagonal.split(ROWS_AT_ONCE), strict=True
        )
        return symmetric(sum((rows / scale[:, None]).mT @ rows for rows, scale in pieces))

    def root(self) -> Tensor:
        """``L``."""
        return cholesky(self.strength + _eye(self.strength))

    def metric(self) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """``B = U^T S^-1 U``, its inverse, and the eigenvalues and eigenvectors of ``V^T V``.

        ``B`` as if no eigenvalue were below ``MIN_STRENGTH``.
        """
        values, vectors = _eigen(self.strength)
        values = values.clamp(min=0.0)
        inverse = inverse_values(values)
        return (vectors / inverse) @ vectors.mT, (vectors * inverse) @ vectors.mT, (values, vectors)

    def log_det(self) -> Tensor:
        """``log |S|``."""
        return self.diagonal.log().sum() + 2.0 * self.root().diagonal().log().sum()

    def inverse_diagonal(self) -> Tensor:
        """The diagonal of ``S^-1``."""
        # The share of D in S that U adds; of a share that is nearly one only rounding is left.
        leverage = (self.factor @ _inverse(self.root()).mT).square().sum(1) / self.diagonal
        return (1.0 - leverage).clamp(min=torch.finfo(leverage.dtype).eps) / self.diagonal

    def times(self, rows: Tensor) -> Tensor:
        """``S`` times each row, shape ``(..., d)``."""
        return self.diagonal * rows + (rows @ self.factor) @ self.factor.mT

    def divide(self, rows: Tensor) -> Tensor:
        """``S^-1`` times each row, shape ``(..., d)``."""
        root, scaled = self.root(), rows / self.diagonal
        inner = solve_rows(root, solve_rows(root, scaled @ self.factor), trans=True)
        return scaled - (inner @ self.factor.mT) / self.diagonal

    def divide_factor(self) -> Tensor:
        """``S^-1 U = D^-1 U (I + V^T V)^-1``."""
        inverse = _inverse(self.root())
        return (self.factor @ (inverse.mT @ inverse)) / self.diagonal[:, None]

    def root_times(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """``C`` and ``U^T C`` times each row, for ``C = D^-1/2 R^-T``."""
        root, scaled = self.root(), rows / self.diagonal.sqrt()
        inner = solve_rows(shifted(root), scaled @ self.factor)
        # By (1), U^T C = L^-T (I + L)^T (I + L)^-1 V^T.
        of_factor = solve_rows(root, inner @ shifted(root), trans=True)
        inner = solve_rows(root, inner, trans=True)
        return scaled - (inner @ self.factor.mT) / self.diagonal, of_factor

    def root_divide(self, rows: Tensor) -> Tensor:
        """``C^-1`` times each row, shape ``(..., d)``."""
        sqrt = self.diagonal.sqrt()
        inner = solve_rows(shifted(self.root()), rows @ self.factor, trans=True)
        return sqrt * rows + (inner @ self.factor.mT) / sqrt


def initial_factor(dim: int, rank: int) -> np.ndarray:
    """A faint ``U`` for ``D = I``, the same in every run, shape ``(d, rank)``."""
    rows = np.random.default_rng(0).choice([-1.0, 1.0], (dim, rank))
    return math.sqrt(INITIAL_STRENGTH / dim) * rows


def inverse_values(values: Tensor) -> Tensor:
    """The eigenvalues of ``B^-1`` from those of ``V^T V``."""
    return 1.0 + 1.0 / values.clamp(min=MIN_STRENGTH)


def shifted(root: Tensor) -> Tensor:
    """``I + L``."""
    return root + _eye(root)


def _inverse(lower: Tensor) -> Tensor:
    return solve_lower(lower, _eye(lower))


def solve_rows(lower: Tensor, rows: Tensor, trans: bool = False) -> Tensor:
    """``lower^-1`` (or its transpose) times each row, shape ``(..., r)``."""
    columns = rows.reshape(-1, rows.shape[-1]).mT
    return solve_lower(lower, columns, trans=trans).mT.reshape(rows.shape)


def project_dense(matrix: Tensor, factor: Tensor, diagonal: Tensor) -> tuple[Tensor, Tensor]:
    """``U`` and ``D`` with ``U U^T + D`` near a symmetric matrix, and its diagonal.

    Principal factor analysis: the leading directions of what the diagonal leaves, by subspace
    iteration, and the diagonal that they leave, in turn. Exact, once it has converged, where
    the matrix has that form.

    :param factor: where to start, with the diagonal.
    """
    dim, rank = factor.shape
    whole = matrix.diagonal()
    if not (matrix.isfinite().all() and factor.isfinite().all() and diagonal.isfinite().all()):
        # torch.linalg would raise; a NaN is for the optimiser to see and skip.
        return torch.full_like(factor, torch.nan), torch.full_like(diagonal, torch.nan)
    # Twice the rank: large negative eigenvalues may take a place, but not keep it.
    spare = torch.as_tensor(initial_factor(dim, min(rank, dim - rank))).to(factor)
    basis = torch.linalg.qr(torch.cat([factor, spare], 1)).Q
    for _ in range(PROJECTION_SWEEPS):
        basis = torch.linalg.qr(matrix @ basis - diagonal[:, None] * basis).Q
        inner = basis.mT @ (matrix @ basis - diagonal[:, None] * basis)
        values, vectors = torch.linalg.eigh(symmetric(inner))
        basis = basis @ vectors
        factor = basis[:, -rank:] * values[-rank:].clamp(min=0.0).sqrt()
        new = whole - factor.square().sum(1)
        change, diagonal = (new - diagonal).abs().max() / whole.abs().max(), new
        if change <= PROJECTION_TOLERANCE:
            break
    return factor, diagonal


def turned(factor: Tensor, reference: Tensor) -> Tensor:
    """The rotation of a factor that is nearest to another one."""
    product = factor.mT @ reference
    if not product.isfinite().all():
        return torch.full_like(factor, torch.nan)
    left, _, right = torch.linalg.svd(product)
    return factor @ (left @ right)


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, NaN where there are none (``torch.linalg.eigh`` raises)."""
    if not matrix.isfinite().all():
        return torch.full_like(matrix[0], torch.nan), torch.full_like(matrix, torch.nan)
    return torch.linalg.eigh(matrix)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
