"""Older names of :mod:`tests.ppl`."""

from tests.ppl import PPLS as BACKENDS
from tests.ppl import NumPyro as NumPyroBackend
from tests.ppl import Ppl as Backend
from tests.ppl import Pyro as PyroBackend
from tests.ppl import load

__all__ = ["BACKENDS", "Backend", "NumPyroBackend", "PyroBackend", "load"]
