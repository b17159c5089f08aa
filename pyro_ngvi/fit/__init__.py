"""``fit``: no tuning, and it knows when it is done."""

from pyro_ngvi.fit.driver import fit
from pyro_ngvi.fit.result import FitResult

__all__ = ["FitResult", "fit"]
