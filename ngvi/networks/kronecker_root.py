"""Roots of covariances that are Kronecker products, beside a diagonal.

A latent vector is some matrices, each entry by entry along its rows, and other latents between
them. The root takes each matrix to ``A Z B^T``, and the others times their scales.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ngvi.linalg.matrices import Array, Matrices

#: For each matrix its first coordinate in the latent vector, and its rows and columns.
Shapes = tuple[tuple[int, int, int], ...]

#: Both factors of each matrix, such as ``A`` and ``B``.
Pairs = list[tuple[Array, Array]]


class MatrixParts(NamedTuple):
    """A vector by matrices, shapes ``(..., m, n)``, and other latents, shape ``(..., r)``."""

    matrices: list[Array]
    rest: Array


@dataclasses.dataclass(frozen=True, eq=False)
class KroneckerRoot:
    """``C``, by its factors.

    :param ops: what a package does with matrices.
    :param shapes: of the matrices, in the order of the latent vector.
    :param dim: of the latent vector.
    :param pairs: ``A`` and ``B`` of each, lower triangles.
    :param scale: of the other latents, shape ``(r,)``.
    """

    ops: Matrices
    shapes: Shapes
    dim: int
    pairs: Pairs
    scale: Array

    # -- vectors ----------------------------------------------------------------------

    def split(self, vector: Array) -> MatrixParts:
        """Return a vector ``(..., d)`` by matrices and other latents."""
        pieces = self.ops.split(vector, self._sizes())
        matrices = [
            piece.reshape(*vector.shape[:-1], m, n)
            for piece, (_, m, n) in zip(pieces[1::2], self.shapes, strict=True)
        ]
        return MatrixParts(matrices, self.ops.xp.concatenate(pieces[::2], -1))

    def join(self, matrices: list[Array], rest: Array) -> Array:
        """Return the inverse of :meth:`split`."""
        pieces = list(self.ops.split(rest, self._sizes()[::2]))
        for index, matrix in enumerate(matrices):
            pieces.insert(2 * index + 1, matrix.reshape(*matrix.shape[:-2], -1))
        return self.ops.xp.concatenate(pieces, -1)

    def _sizes(self) -> list[int]:
        """Return the sizes of the latent vector's pieces, every other one a matrix."""
        sizes, last = [], 0
        for start, m, n in self.shapes:
            sizes += [start - last, m * n]
            last = start + m * n
        return [*sizes, self.dim - last]

    # -- products and solutions, for vectors (..., d) -------------------------------------

    def times(self, vector: Array) -> Array:
        """``C x``."""
        return self._mapped(lambda a, b, z: times(self.ops.xp, a, z @ b.mT), vector, self.scale)

    def transpose_times(self, vector: Array) -> Array:
        """``C^T x``."""
        return self._mapped(lambda a, b, w: times(self.ops.xp, a.mT, w @ b), vector, self.scale)

    def solve(self, vector: Array) -> Array:
        """``C^-1 x``."""
        solve = self.ops.solve_rows
        return self._mapped(lambda a, b, w: solve(b, solve(a, w.mT).mT), vector, 1.0 / self.scale)

    def solve_transpose(self, vector: Array) -> Array:
        """``C^-T x``, for one vector."""
        solve = functools.partial(self.ops.solve_lower, trans=True)
        return self._mapped(lambda a, b, w: solve(b, solve(a, w).mT).mT, vector, 1.0 / self.scale)

    def _mapped(self, function: Callable[..., Array], vector: Array, scale: Array) -> Array:
        """Map both factors of each matrix and its part of a vector, and scale the rest."""
        parts = self.split(vector)
        pairs = zip(self.pairs, parts.matrices, strict=True)
        return self.join([function(*pair, one) for pair, one in pairs], scale * parts.rest)

    def quotients(self, pairs: Pairs) -> Pairs:
        """``A^-1 X`` and ``B^-1 Y`` of lower triangles."""
        quotient = self.ops.lower_quotient
        return [
            (quotient(a, x), quotient(b, y))
            for (a, b), (x, y) in zip(self.pairs, pairs, strict=True)
        ]


def times(xp: Any, factor: Array, matrices: Array) -> Array:
    """Return ``A Z`` for many ``Z``, as one product: in batches XLA takes ten times as long."""
    *_, m, n = matrices.shape
    if math.prod(matrices.shape) == m * n:
        return (factor @ matrices.reshape(m, n)).reshape(matrices.shape)
    product = xp.tensordot(factor, matrices, ([1], [matrices.ndim - 2]))
    return xp.moveaxis(product, 0, -2)


def summed(left: Array, right: Array) -> Array:
    """``sum_i L_i R_i^T`` for matrices ``(N, m, n)``."""
    one, other = (side.swapaxes(0, 1).reshape(side.shape[1], -1) for side in (left, right))
    return one @ other.mT
