"""The families by name; see :mod:`ngvi.latents.choice`."""

from ngvi.latents.choice import Registry
from pyro_ngvi import families

REGISTRY = Registry(families)
