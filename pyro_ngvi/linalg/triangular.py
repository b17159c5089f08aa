"""Products, solutions and steps with triangles."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: From this many draws in one call on, one O(d^3) product for all of them is cheaper than
#: O(d^2) memory traffic for each (measured at d = 50 and 500 on two cores).
MANY_DRAWS = 4

#: The fraction of a standard deviation (or Cholesky diagonal) that a step leaves at least.
MIN_SHRINKAGE = 0.01


def symmetric(matrix: Tensor) -> Tensor:
    """The symmetric part. Keeping a triangle instead would drop half of the information."""
    return 0.5 * (matrix + matrix.mT)


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    """``A x`` for each of a batch, ``(..., p, q)`` times ``(..., q)``."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def halve_diagonal(matrix: Tensor) -> Tensor:
    """``Phi``: the lower triangle with its diagonal halved (Tan, Lemma 1)."""
    return matrix.tril() - 0.5 * torch.diag(matrix.diagonal())


def solve_lower(tril: Tensor, rhs: Tensor, trans: bool = False) -> Tensor:
    """``T^-1 b`` or ``T^-T b``, for a vector or for columns.

    :param tril: ``T``, lower triangular, shape ``(d, d)``.
    :param rhs: ``b``, shape ``(d,)`` or ``(d, n)``.
    """
    columns = rhs.unsqueeze(-1) if rhs.ndim == 1 else rhs
    solution = torch.linalg.solve_triangular(tril.mT if trans else tril, columns, upper=trans)
    return solution.squeeze(-1) if rhs.ndim == 1 else solution


def cholesky(matrix: Tensor) -> Tensor:
    """The lower Cholesky factor, NaN where there is none (``torch.linalg.cholesky`` raises).

    :param matrix: symmetric, shape ``(..., k, k)``.
    """
    factor, info = torch.linalg.cholesky_ex(matrix)
    return torch.where((info == 0)[..., None, None], factor, torch.nan)


def congruence(root: Tensor, matrix: Tensor) -> Tensor:
    """``R^-1 A R^-T`` for the symmetric part of ``A``.

    :param root: ``R``, lower triangular, shape ``(d, d)``.
    """
    half = solve_lower(root, symmetric(matrix))
    return symmetric(solve_lower(root, half.mT))


def divide(root: Tensor, rhs: Tensor) -> Tensor:
    """``(R R^T)^-1 b``."""
    return solve_lower(root, solve_lower(root, rhs), trans=True)


def prefer_one_product(noise: Tensor) -> bool:
    """Whether one O(d^3) product for all of these draws is the cheaper way."""
    return math.prod(noise.shape[:-1]) >= MANY_DRAWS


def root_of_inverse(tril: Tensor) -> Tensor:
    """The lower triangular ``C`` with ``C C^T = (T T^T)^-1``, its diagonal positive.

    By a QR factorisation of ``T^-1``, because ``T T^T`` would square the condition number.

    :param tril: ``T``, lower triangular, shape ``(d, d)``.
    """
    eye = torch.eye(tril.shape[-1]).to(tril)
    return positive_diagonal(torch.linalg.qr(solve_lower(tril, eye), mode="r").R.mT)


def positive_diagonal(tril: Tensor) -> Tensor:
    """The factor of the same matrix whose diagonal is positive: signs of columns are free."""
    return tril * torch.where(tril.diagonal() < 0, -1.0, 1.0).to(tril)


def log_abs_det(tril: Tensor) -> Tensor:
    """``log |det T|`` of a triangular matrix."""
    return tril.diagonal().abs().log().sum()


def keep_off_zero(old: Tensor, new: Tensor) -> Tensor:
    """``new``, or ``MIN_SHRINKAGE * |old|`` with its sign where it is smaller than that.

    At zero ``q`` degenerates, and only there: beyond it lies its mirror image. A rule that
    keeps the sign would halve the coordinate at every step for as long as a momentum points
    at zero, which lasts longer than floating point numbers do.
    """
    floor = MIN_SHRINKAGE * old.abs()
    return torch.where(new.abs() < floor, torch.copysign(floor, new), new)
