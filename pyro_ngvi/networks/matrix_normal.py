"""Matrices with a Kronecker covariance, of torch; see :mod:`ngvi.networks.matrix_normal`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ngvi.networks import matrix_normal
from ngvi.networks.kronecker_root import Pairs
from pyro_ngvi.families.base import Family, Reparametrised


class MatrixNormal(matrix_normal.MatrixNormal, Family):
    def reparametrised(self, noise: Tensor) -> Tensor:
        return Reparametrised.apply(noise, *self.coordinates().values(), self.detach())

    # A step asks for these of one direction twice, for its slopes and its path.

    def _quotients(self, direction: MatrixNormal) -> Pairs:
        factors = direction.row_tril, direction.column_tril
        return self._once(
            "quotients", factors, lambda: super(MatrixNormal, self)._quotients(direction)
        )

    def _whitened_mean(self, direction: MatrixNormal) -> Tensor:
        mean = (direction.loc,)
        return self._once("mean", mean, lambda: super(MatrixNormal, self)._whitened_mean(direction))

    def _once(self, name: str, given: tuple[Tensor, ...], compute: Callable[[], Any]) -> Any:
        """Return what is computed from these tensors, for the last ones that were given."""
        if torch.is_grad_enabled():  # a graph is not kept
            return compute()
        known = self.__dict__.setdefault("_known", {})
        if name not in known or any(a is not b for a, b in zip(known[name][0], given, strict=True)):
            known[name] = given, compute()
        return known[name][1]
