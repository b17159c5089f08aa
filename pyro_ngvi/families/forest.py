"""The families whose factor is a forest of blocks, of torch; see :mod:`ngvi.families`."""

from ngvi.families import block_diagonal, sparse_precision
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.dense import CovarianceCholesky
from pyro_ngvi.linalg.arrow import Arrow


class BlockDiagonal(block_diagonal.BlockDiagonal, Family):
    _arrow = Arrow


class SparsePrecision(sparse_precision.SparsePrecision, Family):
    _arrow, _dense = Arrow, CovarianceCholesky
