"""A precision of low rank plus a diagonal, of torch; see :mod:`ngvi.families`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar

from torch import Tensor

from ngvi.families import low_rank_precision
from pyro_ngvi.families.base import Family, Reparametrised
from pyro_ngvi.linalg.low_rank import LowRank

#: Maps moments, and rows whose squares are one, to those that a direction is made of: the same,
#: but for workers that have a part of the data each. Elsewhere it is enough to add directions up,
#: which are linear in the moments; a projection to a low rank is not.
MOMENTS: ContextVar[Callable[..., tuple[Tensor, ...]] | None] = ContextVar("MOMENTS", default=None)


class LowRankPrecision(low_rank_precision.LowRankPrecision, Family):
    _low_rank = LowRank

    def bonnet_price(self, gradient: Tensor, hessian: Tensor) -> LowRankPrecision:
        if (shared := MOMENTS.get()) is not None:
            gradient, hessian = shared(gradient, hessian)
        return super().bonnet_price(gradient, hessian)

    def natural_gradient_from_rows(
        self, gradient: Tensor, rows: Tensor, diagonal: Tensor
    ) -> LowRankPrecision:
        if (shared := MOMENTS.get()) is not None:
            gradient, diagonal, rows = shared(gradient, diagonal, rows=rows)
        return super().natural_gradient_from_rows(gradient, rows, diagonal)

    def reparametrised(self, noise: Tensor) -> Tensor:
        return Reparametrised.apply(noise, *self.coordinates().values(), self.detach())

    def _plus_product(self, factor: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return factor.addmm_(left.mT, right)

    def detach(self) -> LowRankPrecision:
        return self._detached

    @functools.cached_property
    def _matrix(self) -> LowRank:
        return super()._matrix

    @functools.cached_property
    def _detached(self) -> LowRankPrecision:
        # A step asks for it several times: with what it keeps of itself it costs one pass
        # through the factor, not one each time.
        return super().detach()
