"""Steps of a precision of low rank; see :mod:`~ngvi.families.low_rank_precision`."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from ngvi.families.gaussian import Array
from ngvi.families.low_rank_curvature import LowRankCurvature
from ngvi.families.path import Path


class LowRankSteps(LowRankCurvature):
    """Steps of a family with a ``factor``, a ``diagonal`` and a ``rank``."""

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
