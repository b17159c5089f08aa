"""The families by name; see :mod:`ngvi.structure.choice`."""

from ngvi.structure.choice import Registry
from pyro_ngvi import families

REGISTRY = Registry(families)
