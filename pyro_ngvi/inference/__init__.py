"""``fit``: no tuning, and it knows when it is done."""

from pyro_ngvi.inference.driver import fit
from pyro_ngvi.inference.result import FitResult

__all__ = ["FitResult", "fit"]
