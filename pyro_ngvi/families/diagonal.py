"""Mean field, of torch; see :mod:`ngvi.families.diagonal`."""

from ngvi.families import diagonal
from pyro_ngvi.families.base import Family


class Diagonal(diagonal.Diagonal, Family): ...
