"""The families of torch."""

from pyro_ngvi import families

from . import precision


class Precision(precision.Precision, families.Family):
    """:class:`~tests.tan.families.precision.Precision`, of torch."""
