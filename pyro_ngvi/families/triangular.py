"""Products with triangles that the Cholesky families share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: From this many draws in one call on, one O(d^3) product for all of them is cheaper than
#: O(d^2) memory traffic for each (measured at d = 50 and 500 on two cores).
MANY_DRAWS = 4


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
