"""Steps of a precision of low rank, and targets of the Bayesian learning rule.

Targets are directions to a precision ``U U^T + diag(D)`` near ``-E[hess l]``, as the head of
:mod:`~ngvi.families.low_rank_precision` says.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from ngvi.families.base import Array, Family
from ngvi.families.path import Path
from ngvi.latents.forest import check_dense
from ngvi.linalg.low_rank import LowRank
from ngvi.linalg.matrices import symmetric


class LowRankSteps(Family):
    """Steps of a family with a ``factor``, a ``diagonal`` and a ``rank``, and its curvature."""

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

    def natural_step(self, direction: Self, step_size: Array | float) -> Self:
        return self._moved(direction, step_size, step_size, step_size * direction.diagonal)

    def along(self, direction: Self, of_mean: Array | float = 1.0) -> LowRankPath:
        path: Any = super().along(direction, of_mean)
        return LowRankPath(path.start, path.advance, direction, of_mean)

    def with_precision(
        self, factor: Array, diagonal: Array, step_size: Array | float = 1.0
    ) -> Self:
        """Return the family after a step of the precision alone, along ``dU`` and ``dD``."""
        return self._with(
            self.loc, *self._bound()._end(step_size, factor, step_size * diagonal, 0.0)
        )

    def _moved(
        self, direction: Self, of_mean: Array | float, of_factor: Array | float, diagonal: Array
    ) -> Self:
        """Return the family after a step of mean and factor, and this change of ``D``."""
        end = self._bound()._end(of_factor, direction.factor, diagonal, 0.0)
        new = self._with(self.loc, *end)
        # The new precision moves the mean.
        shift = new._matrix.divide(self._matrix.times(direction.loc))
        return self._with(self.loc + of_mean * shift, new.factor, new.diagonal)

    def _damped_step(
        self,
        direction: Self,
        of_mean: Array | float,
        noisy: Array | float,
        step_size: Array | float,
    ) -> Self:
        """Damp ``dU`` by its size in ``D``, as :meth:`~ngvi.linalg.definite.Definite.damped`.

        :param noisy: the step for which it is damped.
        """
        # An array of size d r that is made takes as long as a whole step of a mean field.
        root = self.xp.sqrt(self._bound().diagonal)
        size = self.xp.linalg.norm(self.xp.linalg.norm(direction.factor, axis=-1) / root)
        share = 1.0 / self.ops.at_least(noisy * size, 1.0)
        change = share * noisy * direction.diagonal / self.diagonal
        change = self.diagonal * (change + 0.5 * change**2) * (step_size / noisy)
        return self._moved(direction, of_mean * step_size, share * step_size, change)

    def _trace_ratio(self, other: Self) -> Array:
        spread = (other.factor * self._matrix.divide(other.factor.mT).mT).sum()
        return (other.diagonal * self.variance).sum() + spread

    def retract(self, step: Self) -> Self:
        """``lambda + step``; where ``D`` would not stay positive it is corrected."""
        factor, diagonal = self._end(1.0, step.factor, step.diagonal, self.ops.min_shrinkage**2)
        return self._with(self.loc + step.loc, factor, diagonal)

    def _end(
        self, amount: Array | float, factor: Array, diagonal: Array, floor: float
    ) -> tuple[Array, Array]:
        """``U`` and ``D`` after a change, so much of which ``U`` takes."""
        ratio = diagonal / self._bound().diagonal
        factor = self.ops.combined(1.0, self.factor, amount, factor)
        return factor, self.diagonal * self.ops.positive(ratio, ratio, floor)


@dataclasses.dataclass(frozen=True)
class LowRankPath(Path):
    """The steps along a direction.

    :param direction: whose mean moves ``of_mean`` times as far.
    """

    direction: Any
    of_mean: Array | float

    def damped(self, step_size: Array | float) -> Path:
        """See :meth:`LowRankSteps._damped_step`."""
        path = self.direction, self.of_mean, step_size
        return Path(self.start, lambda rho: self.start._damped_step(*path, rho))
