"""Matrices with a Kronecker covariance, of torch; see :mod:`ngvi.networks.matrix_normal`."""

from torch import Tensor

from ngvi.networks import matrix_normal
from pyro_ngvi.families.base import Family, Reparametrised


class MatrixNormal(matrix_normal.MatrixNormal, Family):
    def reparametrised(self, noise: Tensor) -> Tensor:
        return Reparametrised.apply(noise, *self.coordinates().values(), self.detach())
