"""Targets of the Bayesian learning rule of low rank, for the family of that form.

They are directions to a precision ``U U^T + diag(D)`` near ``-E[hess l]``, as the head of
:mod:`~ngvi.families.low_rank_precision` says.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from ngvi.families.base import Array, Family
from ngvi.latents.forest import check_dense
from ngvi.linalg.low_rank import LowRank
from ngvi.linalg.matrices import symmetric


class LowRankCurvature(Family):
    """Curvature of a family with a ``factor``, a ``diagonal`` and a ``rank``."""

    factor: Any
    diagonal: Any
    rank: Any

    @property
    def _matrix(self) -> LowRank:
        """The precision."""
        self._bound()
        return LowRank(self.ops, self.factor, self.diagonal)

    def _with(self, loc: Array, factor: Array, diagonal: Array) -> Self:
        new = {"loc": loc, "factor": factor, "diagonal": diagonal}
        return dataclasses.replace(self, **new)  # type: ignore[type-var]

    def assemble_hessian(self, products: Array) -> Array:
        check_dense(self._bound())
        return symmetric(products)

    def bonnet_price(self, gradient: Array, hessian: Array) -> Self:
        """Return the direction to the rule's target, see the module; ``hessian`` is ``(d, d)``."""
        self._bound()
        factor, diagonal = self._matrix.near(-symmetric(hessian))
        loc = self._matrix.divide(gradient)
        return self._with(loc, factor - self.factor, diagonal - self.diagonal)

    def natural_gradient_from_rows(self, gradient: Array, rows: Array, diagonal: Array) -> Self:
        """:meth:`bonnet_price` of ``-E[hess l] = rows^T rows + diag(diagonal)``, see the module.

        By an eigenproblem of size ``N``: O(d N (N + r)).

        :param rows: scaled gradients of single examples, shape ``(N, d)``.
        :param diagonal: of the rest, such as a prior's, shape ``(d,)``.
        """
        change = self.change_from_rows(rows, diagonal)
        return self._with(self._matrix.divide(gradient), *change)

    def change_from_rows(self, rows: Array, diagonal: Array) -> tuple[Array, Array]:
        """``dU`` and ``dD`` of :meth:`natural_gradient_from_rows`."""
        self._bound()
        if rows.shape[0] < self.rank:
            missing = self.xp.zeros_like(self.factor.mT[: self.rank - rows.shape[0]])
            rows = self.xp.concatenate([rows, missing])
        vectors = self.ops.eigh(rows @ rows.mT)[1][:, -self.rank :]
        factor = rows.mT @ vectors
        left, right = self.ops.svd(factor.mT @ self.factor)  # the rotation that is nearest
        change = factor @ (left @ right) - self.factor
        gain = (rows**2).sum(0) - (self.factor**2).sum(1) - 2.0 * (self.factor * change).sum(1)
        return change, diagonal - self.diagonal + gain
