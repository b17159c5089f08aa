"""Matrices with a Kronecker covariance, of torch; see :mod:`ngvi.families.matrix_normal`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from ngvi.families import matrix_normal
from pyro_ngvi.families.base import Displaced, Family


class MatrixNormal(matrix_normal.MatrixNormal, Family):
    def displaced(self, noise: Tensor) -> Tensor:
        return Displaced.apply(noise, *self.coordinates().values(), self.detach())

    def fisher_products(
        self, directions: Sequence[Self], others: Sequence[Self] = ()
    ) -> tuple[Tensor, Tensor]:
        columns = zip(*(self._isometric(one) for one in (*directions, *others)), strict=True)
        means, scales = map(torch.stack, columns)
        num = len(directions)
        return means[:num] @ means.mT, scales[:num] @ scales.mT
