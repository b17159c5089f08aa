"""Pyro's ``SVI``, as it is: it is stateful already."""

from pyro.infer import SVI

__all__ = ["SVI"]
