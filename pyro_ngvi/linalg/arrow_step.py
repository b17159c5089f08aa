"""Steps in whitened coordinates of a precision whose factor is an arrow.

As in :mod:`~pyro_ngvi.linalg.definite`, with a root ``R`` of ``M = I + rho (N + N^T)`` that is an
:class:`~pyro_ngvi.linalg.arrow.Arrow`.

``M`` is eliminated block by block, children before parents. Where it is not positive definite,
the same rule holds for the eigenvalues of what is left of each diagonal block, the precision of
its latents given those above: one that is not positive becomes one half. The eigenvalues of ``M``
itself belong to eigenvectors without zeros, which no arrow holds. What couples a block to those
above stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ngvi.structure.arrow import Vector
from pyro_ngvi.linalg import batched, definite
from pyro_ngvi.linalg.arrow import Arrow
from pyro_ngvi.linalg.definite import is_definite

#: The largest entry of a step that is corrected: beyond, squares of a float32 overflow.
MAX_ENTRY = 1e6


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

    Where that is not positive definite, see the module.

    :param half: ``N``.
    """
    plain, change = _plain(half)
    if all(map(is_definite, plain.diagonals(), change.diagonals())):
        return plain
    largest = max(float(b.abs().max()) for mine in half.blocks for b in mine)
    if largest > MAX_ENTRY:
        half = half.combine(lambda block: MAX_ENTRY / largest * block)
    return _plain(half, _root)[0]


def _plain(half: Arrow, root: Callable = batched.cholesky) -> tuple[Arrow, Arrow]:
    """The factor of ``I + N + N^T``, and ``N + N^T``."""
    eye = Arrow.identity(half.structure, half.blocks[0][0])
    change = half.map_diagonal(lambda block: block + batched.transpose(block))
    return change.combine(torch.add, eye).cholesky(root), change


def _root(blocks: Tensor) -> Tensor:
    change = blocks.movedim(-1, 0) - torch.eye(len(blocks)).to(blocks)
    return definite.precision_root(change).movedim(0, -1)
