"""Curvature of matrices with a Kronecker covariance: partial traces of a Hessian.

Equation numbers are those of :mod:`~ngvi.networks.matrix_normal`.
"""

from __future__ import annotations

from typing import Self

from ngvi.families.gaussian import Array
from ngvi.latents.forest import check_dense
from ngvi.linalg.matrices import symmetric
from ngvi.networks.kronecker_root import summed
from ngvi.networks.matrix_coordinates import MatrixCoordinates

#: ``P`` and ``Q`` of (4), packed as the factors are, and the other latents' diagonal.
Traces = tuple[Array, Array, Array]


class MatrixCurvature(MatrixCoordinates):
    """The part of a Hessian that a matrix-normal family needs."""

    def assemble_hessian(self, products: Array) -> Traces:
        """``P``, ``Q`` of (4), and the other latents' diagonal."""
        check_dense(self._bound())
        root, pairs = self._root(), []
        whitened = root.transpose_times(root.transpose_times(products).mT)
        for start, m, n in root.shapes:
            own = whitened[start : start + m * n, start : start + m * n].reshape(m, n, m, n)
            sides = own.diagonal(0, 1, 3).sum(-1), own.diagonal(0, 0, 2).sum(-1)
            pairs.append(tuple(map(symmetric, sides)))
        return *self._packed(pairs), root.split(products.diagonal()).rest

    def outer_products(self, left: Array, right: Array) -> Traces:
        """Assemble a Hessian of outer products in O(N m n (m + n)) for each matrix."""
        root = self._root()
        whitened = [root.split(root.transpose_times(side)).matrices for side in (left, right)]
        pairs = [
            (symmetric(summed(one, other)), symmetric(summed(one.mT, other.mT)))
            for one, other in zip(*whitened, strict=True)
        ]
        return *self._packed(pairs), (root.split(left).rest * root.split(right).rest).sum(0)

    def bonnet_price(self, gradient: Array, hessian: Traces) -> Self:
        """Return the direction (4); ``hessian`` is what :meth:`outer_products` gives."""
        rows, columns, diagonal = hessian
        root, inner = self._root(), []
        for (_, m, n), (p, q) in zip(root.shapes, self._unpacked(rows, columns), strict=True):
            scale = 0.5 - 0.25 * (p.diagonal().sum() + q.diagonal().sum()) / (m * n)
            inner.append(
                (
                    self.ops.halve_diagonal(p / n + scale * self.ops.eye(m, p)),
                    self.ops.halve_diagonal(q / m + scale * self.ops.eye(n, q)),
                )
            )
        of_scale = 0.5 * root.scale * (root.scale**2 * diagonal + 1.0)
        return self._direction(root.times(root.transpose_times(gradient)), inner, of_scale)

    # -- gradients of examples ----------------------------------------------------------

    def natural_gradient_from_rows(self, gradient: Array, rows: Array, diagonal: Array) -> Self:
        """:meth:`bonnet_price` of ``-E[hess l] = rows^T rows + diag(diagonal)``.

        :param rows: scaled gradients of single examples, shape ``(N, d)``.
        :param diagonal: of the rest, such as a prior's, shape ``(d,)``.
        """
        root = self._root()
        parts = root.split(diagonal)
        pairs = [
            (
                a.mT @ ((d @ (b**2).sum(1))[:, None] * a),
                b.mT @ ((d.mT @ (a**2).sum(1))[:, None] * b),
            )
            for (a, b), d in zip(root.pairs, parts.matrices, strict=True)
        ]
        of_diagonal = *self._packed(pairs), parts.rest
        squares = self.outer_products(rows, rows)
        total = tuple(-(a + b) for a, b in zip(squares, of_diagonal, strict=True))
        return self.bonnet_price(gradient, total)
