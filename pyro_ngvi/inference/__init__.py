"""``fit``: no tuning, and it knows when it is done."""

from ngvi.inference.options import FitOptions
from pyro_ngvi.inference.driver import fit, fit_density
from pyro_ngvi.inference.result import FitResult

__all__ = ["FitOptions", "FitResult", "fit", "fit_density"]
