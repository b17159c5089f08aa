"""``fit``: no tuning, and it knows when it is done."""

from numpyro_ngvi.fit.driver import fit
from numpyro_ngvi.fit.result import FitResult

__all__ = ["FitResult", "fit"]
