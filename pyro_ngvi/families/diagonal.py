"""Mean field, of torch; see :mod:`ngvi.families.diagonal`."""

from ngvi.families import diagonal
from pyro_ngvi.families.base import ExplicitDraws


class Diagonal(diagonal.Diagonal, ExplicitDraws): ...
