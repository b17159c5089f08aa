"""Matrices with a Kronecker covariance, of torch; see :mod:`ngvi.families.matrix_normal`."""

from ngvi.families import matrix_normal
from pyro_ngvi.families.base import Family


class MatrixNormal(matrix_normal.MatrixNormal, Family): ...
