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
from typing import Any, ClassVar

import numpy as np

from ngvi.linalg.matrices import Array, Matrices, symmetric


@dataclasses.dataclass(frozen=True, eq=False)
class LowRank:
    """``U U^T + diag(D)``.

    :param ops: what a package does with matrices.
    :param factor: ``U``, shape ``(d, r)``.
    :param diagonal: ``D``, positive, shape ``(d,)``.
    """

    ops: Matrices
    factor: Array
    diagonal: Array

    #: The eigenvalue of ``V^T V`` below which a direction's metric stays what it is.
    min_strength: ClassVar[float] = 1e-3

    @functools.cached_property
    def strength(self) -> Array:
        """``V^T V``, for which a factor of size ``d r`` is read once."""
        return symmetric((self.factor / self.diagonal[:, None]).mT @ self.factor)

    def root(self) -> Array:
        """``L``."""
        return self.ops.cholesky(self.shifted(self.strength))

    def shifted(self, root: Array) -> Array:
        """``I + L``."""
        return root + self.ops.eye(root.shape[-1], root)

    def metric(self) -> tuple[Array, Array, tuple[Array, Array]]:
        """``B = U^T S^-1 U``, its inverse, and the eigenvalues and eigenvectors of ``V^T V``.

        ``B`` as if no eigenvalue were below :attr:`min_strength`.
        """
        values, vectors = self.ops.eigh(self.strength)
        values = self.ops.at_least(values, 0.0)
        inverse = self.inverse_values(values)
        metric = (vectors / inverse) @ vectors.mT
        return metric, (vectors * inverse) @ vectors.mT, (values, vectors)

    def inverse_values(self, values: Array) -> Array:
        """Return the eigenvalues of ``B^-1`` from those of ``V^T V``."""
        return 1.0 + 1.0 / self.ops.at_least(values, self.min_strength)

    def log_det(self) -> Array:
        """``log |S|``."""
        log = self.ops.xp.log
        return log(self.diagonal).sum() + 2.0 * log(self.root().diagonal()).sum()

    def inverse_diagonal(self) -> Array:
        """Return the diagonal of ``S^-1``."""
        inverse = self.ops.inverse_lower(self.root())
        # The share of D in S that U adds; of a share that is nearly one only rounding is left.
        leverage = ((self.factor @ inverse.mT) ** 2).sum(1) / self.diagonal
        eps = float(self.ops.xp.finfo(leverage.dtype).eps)
        return self.ops.at_least(1.0 - leverage, eps) / self.diagonal

    def times(self, rows: Array) -> Array:
        """``S`` times each row, shape ``(..., d)``."""
        return self.diagonal * rows + self.ops.rows_of(rows @ self.factor, self.factor)

    def divide(self, rows: Array) -> Array:
        """``S^-1`` times each row, shape ``(..., d)``."""
        root, scaled, solve = self.root(), rows / self.diagonal, self.ops.solve_rows
        inner = solve(root, solve(root, scaled @ self.factor), trans=True)
        return scaled - self.ops.rows_of(inner, self.factor) / self.diagonal

    def divide_factor(self) -> Array:
        """``S^-1 U = D^-1 U (I + V^T V)^-1``."""
        inverse = self.ops.inverse_lower(self.root())
        return (self.factor @ (inverse.mT @ inverse)) / self.diagonal[:, None]

    def root_times(self, rows: Array) -> tuple[Array, Array]:
        """``C`` and ``U^T C`` times each row, for ``C = D^-1/2 R^-T``."""
        root, solve = self.root(), self.ops.solve_rows
        scaled, both = rows / self.ops.xp.sqrt(self.diagonal), self.shifted(root)
        inner = solve(both, scaled @ self.factor)
        # By (1), U^T C = L^-T (I + L)^T (I + L)^-1 V^T.
        of_factor = solve(root, inner @ both, trans=True)
        inner = solve(root, inner, trans=True)
        return scaled - self.ops.rows_of(inner, self.factor) / self.diagonal, of_factor

    def root_transpose_times(self, rows: Array) -> Array:
        """``C^T`` times each row, shape ``(..., d)``."""
        root, solve = self.root(), self.ops.solve_rows
        inner = solve(root, (rows / self.diagonal) @ self.factor)
        inner = solve(self.shifted(root), inner, trans=True)
        return (rows - self.ops.rows_of(inner, self.factor)) / self.ops.xp.sqrt(self.diagonal)

    def root_divide(self, rows: Array) -> Array:
        """``C^-1`` times each row, shape ``(..., d)``."""
        sqrt = self.ops.xp.sqrt(self.diagonal)
        inner = self.ops.solve_rows(self.shifted(self.root()), rows @ self.factor, trans=True)
        return sqrt * rows + self.ops.rows_of(inner, self.factor) / sqrt

    def near(
        self, matrix: Array, max_iterations: int = 100, tolerance: float = 1e-6
    ) -> tuple[Array, Array]:
        """``U`` and ``D`` with ``U U^T + D`` near a symmetric matrix, and its diagonal.

        Principal factor analysis: the leading directions of what the diagonal leaves, by subspace
        iteration from here, and the diagonal that they leave, in turn. Exact, once it has
        converged, where the matrix has that form. Where ``U`` would be more than the whole of a
        positive entry of the diagonal, it is half of it. ``U`` is turned to this one.

        :param tolerance: the change of the diagonal, relative to its largest entry, that is not
            worth another iteration.
        """
        xp, (dim, rank) = self.ops.xp, self.factor.shape
        whole = matrix.diagonal()
        # Twice the rank: large negative eigenvalues may come first, but do not stay.
        spare = self.ops.tensor(initial_factor(dim, min(rank, dim - rank)), self.factor)
        basis = xp.linalg.qr(xp.concatenate([self.factor, spare], 1))[0]

        def unsettled(state: tuple) -> Any:
            *_, count, change = state
            return (count < max_iterations) & (change > tolerance)

        def improved(state: tuple) -> tuple:
            basis, _, diagonal, count, _ = state
            basis = xp.linalg.qr(matrix @ basis - diagonal[:, None] * basis)[0]
            inner = basis.mT @ (matrix @ basis - diagonal[:, None] * basis)
            values, vectors = self.ops.eigh(symmetric(inner))
            basis = basis @ vectors
            factor = basis[:, -rank:] * xp.sqrt(self.ops.at_least(values[-rank:], 0.0))
            new = whole - (factor**2).sum(1)
            change = abs(new - diagonal).max() / abs(whole).max()
            return basis, factor, new, count + 1, change

        far = xp.ones_like(self.diagonal[0])
        start = (basis, self.factor, self.diagonal, 0, far)
        factor, diagonal = self.ops.while_loop(unsettled, improved, start)[1:3]
        # Of an indefinite matrix the leading directions may be more than its diagonal: ``D`` would
        # shrink from step to step, and all other variances grow without end.
        beyond, half = (diagonal <= 0) & (whole > 0), 0.5 * whole
        tiny = float(xp.finfo(whole.dtype).tiny)
        share = half / self.ops.at_least((factor**2).sum(1), tiny)
        factor = factor * xp.sqrt(xp.where(beyond, share, xp.ones_like(whole)))[:, None]
        diagonal = xp.where(beyond, half, diagonal)
        left, right = self.ops.svd(factor.mT @ self.factor)  # the rotation that is nearest
        return factor @ (left @ right), diagonal


def initial_factor(dim: int, rank: int, strength: float = 0.1) -> np.ndarray:
    """Return a faint ``U`` for ``D = I``, the same in every run, shape ``(d, rank)``.

    :param strength: the eigenvalues of ``V^T V``: ``U = 0`` is a saddle, which no gradient leaves.
    """
    rows = np.random.default_rng(0).choice([-1.0, 1.0], (dim, rank))
    return math.sqrt(strength / dim) * rows
