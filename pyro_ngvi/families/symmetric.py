"""Steps of a symmetric matrix that stay positive definite.

For the families whose coordinates are ``Sigma`` or ``Sigma^-1`` itself. A sum ``S + dS`` that
is positive definite is left as it is. Otherwise the eigenvalues of ``I + L^-1 dS L^-T``, with
``S = L L^T``, are corrected as in :mod:`~pyro_ngvi.families.whitened`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pyro_ngvi.families.dense import symmetric
from pyro_ngvi.families.triangular import solve_lower
from pyro_ngvi.families.whitened import cholesky, precision_root


def definite_sum(matrix: Tensor, change: Tensor, floor: float = 0.0) -> tuple[Tensor, Tensor]:
    """``S + dS``, corrected where it is not positive definite, and its lower Cholesky factor.

    :param matrix: ``S``, symmetric positive definite, shape ``(d, d)``.
    :param change: ``dS``, shape ``(d, d)``.
    :param floor: the fraction of ``S`` that is kept in every direction.
    """
    total = symmetric(matrix + change)
    margin = floor * matrix + _rounding(matrix, total).diag()
    if cholesky(total - margin).isfinite().all():
        return total, cholesky(total)
    root = cholesky(matrix)
    new_root = root @ precision_root(congruence(root, change), floor)
    return definite_square(new_root, matrix)


def definite_square(root: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
    """``R R^T``, its diagonal raised where rounding could cost it an eigenvalue, and its factor.

    :param root: ``R``, lower triangular, shape ``(d, d)``.
    :param old: the matrix before the step, shape ``(d, d)``.
    """
    square = root @ root.mT
    margin = _rounding(old, square).diag()
    if cholesky(square - margin).isfinite().all():
        return square, cholesky(square)
    higher = square + 2 * margin
    return higher, cholesky(higher)


def _rounding(old: Tensor, new: Tensor) -> Tensor:
    # Of either: an optimiser that adds the difference of the two to the old one, as optax
    # does, leaves the rounding of the larger.
    largest = torch.maximum(old.diagonal(), new.diagonal())
    return 4 * math.sqrt(old.shape[-1]) * torch.finfo(old.dtype).eps * largest


def congruence(root: Tensor, matrix: Tensor) -> Tensor:
    """``R^-1 A R^-T`` for the symmetric part of ``A``.

    :param root: ``R``, lower triangular, shape ``(d, d)``.
    """
    half = solve_lower(root, symmetric(matrix))
    return symmetric(solve_lower(root, half.mT))


def divide(root: Tensor, rhs: Tensor) -> Tensor:
    """``(R R^T)^-1 b``."""
    return solve_lower(root, solve_lower(root, rhs), trans=True)
