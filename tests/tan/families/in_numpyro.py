"""The families of JAX: each is a pytree, and what has a condition is one program."""

from numpyro_ngvi import families
from numpyro_ngvi.families.base import compiled
from numpyro_ngvi.pytree import register

from . import precision


@compiled("_end retract")
@register
class Precision(precision.Precision, families.Family):
    """:class:`~tests.tan.families.precision.Precision`, of JAX."""
