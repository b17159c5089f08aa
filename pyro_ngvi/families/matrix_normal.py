"""Matrices with a Kronecker covariance, of torch; see :mod:`ngvi.families.matrix_normal`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor

from ngvi.families import matrix_normal
from ngvi.linalg.kronecker_root import Pairs, summed
from pyro_ngvi.families.base import ExplicitDraws, Reparametrised


class MatrixNormal(matrix_normal.MatrixNormal, ExplicitDraws):
    def reparametrised(self, noise: Tensor) -> Tensor:
        return Reparametrised.apply(noise, *self.coordinates().values(), self.detach())

    def _transposed(self, vector: Tensor) -> Tensor:
        return self._root().transpose_times(vector)

    def _draw_vjp(self, noise: Tensor, slope: Tensor) -> Self:
        root, slope = self._root(), slope.reshape(-1, self.dim)
        noise, of_noise = root.split(noise.reshape(-1, self.dim)), root.split(slope)
        inner = [
            (self._halved(summed(w, z), z.shape[-1]), self._halved(summed(w.mT, z.mT), z.shape[-2]))
            for z, w in zip(noise.matrices, of_noise.matrices, strict=True)
        ]
        of_scale = 0.5 * self.scale * (of_noise.rest * noise.rest).sum(0)
        return self._direction(root.times(slope.sum(0)), inner, of_scale)

    # A step asks for these of one direction twice, for its slopes and its path.

    def _quotients(self, direction: Self) -> Pairs:
        factors = direction.row_tril, direction.column_tril
        return self._once(
            "quotients", factors, lambda: super(MatrixNormal, self)._quotients(direction)
        )

    def _whitened_mean(self, direction: Self) -> Tensor:
        mean = (direction.loc,)
        return self._once("mean", mean, lambda: super(MatrixNormal, self)._whitened_mean(direction))

    def _once(self, name: str, given: tuple[Tensor, ...], compute: Callable[[], Any]) -> Any:
        """What is computed from these tensors, for the last ones that were given."""
        if torch.is_grad_enabled():  # a graph is not kept
            return compute()
        known = self.__dict__.setdefault("_known", {})
        if name not in known or any(a is not b for a, b in zip(known[name][0], given, strict=True)):
            known[name] = given, compute()
        return known[name][1]
