"""The families of torch."""

from pyro_ngvi import families

from . import covariance, precision


class Covariance(covariance.Covariance, families.Family):
    """:class:`~tests.tan.families.covariance.Covariance`, of torch."""


class Precision(precision.Precision, families.Family):
    """:class:`~tests.tan.families.precision.Precision`, of torch."""
