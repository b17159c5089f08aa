"""A precision of low rank plus a diagonal, of torch; see :mod:`ngvi.families`."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ngvi.families import low_rank_precision
from pyro_ngvi.families.base import Family
from pyro_ngvi.linalg.low_rank import LowRank


class LowRankPrecision(low_rank_precision.LowRankPrecision, Family):
    _low_rank = LowRank

    def displaced(self, noise: Tensor) -> Tensor:
        return _Displaced.apply(noise, *self.coordinates().values(), self.detach())

    def _displacement_transpose(self, noise: Tensor, slope: Tensor) -> LowRankPrecision:
        """The transpose of :meth:`displacement`, a linear function of the slope.

        :param noise: ``z``, shape ``(..., d)``.
        :param slope: of a function of the displaced noise, shape ``(..., d)``.
        :return: the natural gradient of that function.
        """
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


class _Displaced(torch.autograd.Function):
    """``noise``, whose derivative is :meth:`LowRankPrecision.displacement`.

    Not straight-through, as in :class:`Family`: that would compute the displacement of a zero,
    and give autograd every product in it, each with arrays of size ``d r``. At ``d = 10^6`` it
    takes three times as long.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        noise: Tensor, loc: Tensor, factor: Tensor, diagonal: Tensor, here: LowRankPrecision
    ) -> Tensor:
        return noise.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        noise, *_, ctx.here = inputs
        ctx.save_for_backward(noise)
        ctx.save_for_forward(noise)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        gradient = ctx.here._displacement_transpose(ctx.saved_tensors[0], slope)
        return slope, gradient.loc, gradient.factor, gradient.diagonal, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        noise, *coordinates = tangents[:4]
        values = ctx.here.coordinates().values()
        pairs = zip(coordinates, values, strict=True)
        change = [torch.zeros_like(value) if t is None else t for t, value in pairs]
        moved = ctx.here.displacement(ctx.here._with(*change), ctx.saved_tensors[0])
        return moved if noise is None else noise + moved
