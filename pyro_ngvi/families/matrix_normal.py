"""Matrices with a Kronecker covariance, of torch; see :mod:`ngvi.families.matrix_normal`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from ngvi.families import matrix_normal
from pyro_ngvi.families.base import Displaced, Priced


class MatrixNormal(matrix_normal.MatrixNormal, Priced):
    def displaced(self, noise: Tensor) -> Tensor:
        return Displaced.apply(noise, *self.coordinates().values(), self.detach())

    def _quotients(self, direction: Self) -> tuple[list[Tensor], list[Tensor]]:
        # A step asks for one direction's twice, for its dual and its path. A graph is not kept.
        if torch.is_grad_enabled():
            return super()._quotients(direction)
        factors = direction.row_tril, direction.column_tril
        known = self.__dict__.get("_known")
        if known is None or any(a is not b for a, b in zip(known[0], factors, strict=True)):
            known = factors, super()._quotients(direction)
            self.__dict__["_known"] = known
        return known[1]

    def fisher_products(
        self, directions: Sequence[Self], others: Sequence[Self] = ()
    ) -> tuple[Tensor, Tensor]:
        columns = zip(*(self._isometric(one) for one in (*directions, *others)), strict=True)
        means, scales = map(torch.stack, columns)
        num = len(directions)
        return means[:num] @ means.mT, scales[:num] @ scales.mT
