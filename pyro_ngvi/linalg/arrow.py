"""Matrices with the arrow of Tan's eq. (4), of torch; see :mod:`ngvi.linalg.arrow`."""

from ngvi.linalg import arrow
from pyro_ngvi.linalg.batched import batched


class Arrow(arrow.Arrow):
    """A matrix of a structure."""

    ops = batched
