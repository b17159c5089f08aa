"""A precision of low rank plus a diagonal, of torch; see :mod:`ngvi.families`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar

import torch
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

    def _draw_vjp(self, noise: Tensor, slope: Tensor) -> LowRankPrecision:
        """See :class:`~pyro_ngvi.families.base.ExplicitDraws`."""
        noise, slope = noise.reshape(-1, self.dim), slope.reshape(-1, self.dim)
        _, inverse, _ = self._matrix.metric()
        both, of_both = self._matrix.root_times(torch.cat([noise, slope]))
        delta, of_theta = both.chunk(2)
        of_delta, of_slope = of_both.chunk(2)
        outer = of_delta.mT @ of_slope
        outer = outer + outer.mT
        inner = outer @ inverse - 0.5 * inverse @ outer @ inverse
        right = torch.cat([of_slope, of_delta]) @ inverse
        factor = self.factor @ (-0.5 * inner)
        factor.addmm_((both * self.diagonal).mT, right, alpha=-0.5)
        diagonal = -(self.diagonal**2) * (of_theta * delta).sum(0)
        return self._with(of_theta.sum(0), factor, diagonal)

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
