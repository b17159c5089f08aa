"""Symmetric matrices that are themselves a coordinate, ``Sigma`` or ``Sigma^-1``.

A sum ``S + dS`` that is positive definite is left as it is. Otherwise the eigenvalues of
``I + L^-1 dS L^-T``, with ``S = L L^T``, are corrected as :mod:`ngvi.linalg.definite` does.
"""

from __future__ import annotations

from ngvi.linalg.definite import Definite
from ngvi.linalg.matrices import Array, symmetric


def congruence(ops: Definite, root: Array, matrix: Array) -> Array:
    """``R^-1 A R^-T`` for the symmetric part of ``A``.

    :param root: ``R``, lower triangular, shape ``(d, d)``.
    """
    half = ops.solve_lower(root, symmetric(matrix))
    return symmetric(ops.solve_lower(root, half.mT))


def definite_sum(
    ops: Definite, matrix: Array, change: Array, floor: float = 0.0
) -> tuple[Array, Array]:
    """``S + dS``, corrected where it is not positive definite, and its lower Cholesky factor.

    :param matrix: ``S``, symmetric positive definite, shape ``(d, d)``.
    :param change: ``dS``, shape ``(d, d)``.
    :param floor: the fraction of ``S`` that is kept in every direction.
    """
    total = symmetric(matrix + change)
    margin = floor * matrix + ops.xp.diag(_rounding(ops, matrix, total))
    definite = ops.likely(ops.xp.isfinite(ops.cholesky(total - margin)).all())

    def corrected() -> tuple[Array, Array]:
        root = ops.cholesky(matrix)
        new_root, _ = ops.raised_root(congruence(ops, root, change), floor)
        return definite_square(ops, root @ new_root, matrix)

    return ops.cond(definite, lambda: (total, ops.cholesky(total)), corrected)


def definite_square(ops: Definite, root: Array, old: Array) -> tuple[Array, Array]:
    """``R R^T``, its diagonal raised where rounding could cost it an eigenvalue, its factor.

    :param root: ``R``, lower triangular, shape ``(d, d)``.
    :param old: the matrix before the step, shape ``(d, d)``.
    """
    square = root @ root.mT
    margin = ops.xp.diag(_rounding(ops, old, square))
    definite = ops.likely(ops.xp.isfinite(ops.cholesky(square - margin)).all())
    square = ops.select(definite, square, square + 2 * margin)
    return square, ops.cholesky(square)


def _rounding(ops: Definite, old: Array, new: Array) -> Array:
    # Of either: an optimiser that adds the difference of the two to the old one, as optax does,
    # leaves the rounding of the larger.
    largest = ops.xp.maximum(old.diagonal(), new.diagonal())
    return largest * ops.rounding(ops.xp.ones_like(largest), old.shape[-1])
