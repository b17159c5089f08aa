"""Mean field, of torch; see :mod:`ngvi.families.diagonal`."""

from __future__ import annotations

from torch import Tensor

from ngvi.families import diagonal
from pyro_ngvi.families.base import ExplicitDraws


class Diagonal(diagonal.Diagonal, ExplicitDraws):
    def _transposed(self, vector: Tensor) -> Tensor:
        return self._bound().scale * vector

    def _draw_vjp(self, noise: Tensor, slope: Tensor) -> Diagonal:
        slope = (self._bound().scale * slope).reshape(-1, self.dim)
        of_scale = 0.5 * (slope * noise.reshape(-1, self.dim)).sum(0)
        return type(self)(slope.sum(0), of_scale)
