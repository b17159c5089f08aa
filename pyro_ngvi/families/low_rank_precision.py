"""A precision of low rank plus a diagonal, of torch; see :mod:`ngvi.families`."""

from __future__ import annotations

import functools

from torch import Tensor

from ngvi.families import low_rank_precision
from ngvi.linalg.low_rank import LowRank
from pyro_ngvi.families.base import Family, Reparametrised


class LowRankPrecision(low_rank_precision.LowRankPrecision, Family):
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
