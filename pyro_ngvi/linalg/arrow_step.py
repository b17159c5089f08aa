"""Steps in whitened coordinates of a precision whose factor is an arrow.

As in :mod:`~pyro_ngvi.linalg.definite`, with a root ``R`` of ``M = I + rho (N + N^T)`` that is an
:class:`~pyro_ngvi.linalg.arrow.Arrow`, and ``|A|^2`` the sum of its squared entries.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_ngvi.linalg import batched
from pyro_ngvi.linalg.arrow import Arrow, Vector
from pyro_ngvi.linalg.definite import is_definite

#: The largest entry of a multiplicative step: beyond, squares of a float32 overflow.
MAX_RETRACTION = 1e6


class ArrowStep(NamedTuple):
    """A step in whitened coordinates, by the root ``R`` of the new precision."""

    root: Arrow  #: ``R`` with ``R R^T = M``
    shift: Vector  #: ``s = rho M^-1 w``

    @classmethod
    def along(cls, rho: Tensor | float, half: Arrow, shift: Vector) -> ArrowStep:
        """The step to ``M``, from ``half = N`` and ``shift = w``."""
        root = precision_root(half.combine(lambda block: rho * block))
        moved = root.solve_transpose(root.solve(shift))
        return cls(root, [rho * part for part in moved])

    def kl(self) -> Tensor:
        """``KL(new || old)`` in nats."""
        inverse = self.root.solve_matmul(Arrow.identity(self.root.structure, self.shift[0]))
        return 0.5 * _size(inverse, self.shift) + _log_det(self.root)

    def backward_kl(self) -> Tensor:
        """``KL(old || new)`` in nats."""
        shift = self.root.transpose_times(self.shift)
        return 0.5 * _size(self.root, shift) - _log_det(self.root)


def _size(root: Arrow, shift: Vector) -> Tensor:
    trace = sum(block.square().sum() for mine in root.blocks for block in mine)
    return trace + sum(part.square().sum() - part.numel() for part in shift)


def _log_det(root: Arrow) -> Tensor:
    return sum(diagonal.log().sum() for diagonal in root.diagonals())


def precision_root(half: Arrow) -> Arrow:
    """``R`` with ``R R^T = I + N + N^T``, its diagonal positive.

    Where that is not positive definite the retraction ``R = I + N + N^2 / 2`` (Lin, Nielsen, Khan
    and Schmidt, 2021) always is: its diagonal is at least one half.

    :param half: ``N``.
    """
    eye = Arrow.identity(half.structure, half.blocks[0][0])
    change = half.map_diagonal(lambda block: block + batched.transpose(block))
    plain = change.combine(torch.add, eye).cholesky()
    if all(map(is_definite, plain.diagonals(), change.diagonals())):
        return plain
    largest = max(float(b.abs().max()) for mine in half.blocks for b in mine)
    short = min(1.0, MAX_RETRACTION / largest) if largest > 0 else 1.0
    step = half.combine(lambda block: short * block)
    return step.combine(lambda m, m2, one: one + m + 0.5 * m2, step.matmul(step), eye)
