"""Mean field, of JAX; see :mod:`ngvi.families.diagonal`."""

import jax

from ngvi.families import diagonal
from numpyro_ngvi.families.base import Family


@jax.tree_util.register_dataclass
class Diagonal(diagonal.Diagonal, Family): ...
