"""Mean field, of JAX; see :mod:`ngvi.families.diagonal`."""

from ngvi.families import diagonal
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.pytree import register


@register
class Diagonal(diagonal.Diagonal, Family): ...
