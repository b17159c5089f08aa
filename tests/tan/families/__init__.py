"""The family of Tan's Tables 1 and 2 whose coordinate is the precision, a whole symmetric matrix.

It is here to be compared with, and as an example of a family from outside of the packages: pass
the class of the package that you use,
``NaturalGaussianGuide(model, tests.tan.families.in_numpyro.Precision)``.
"""

from __future__ import annotations

import importlib
from typing import Any


def named(ppl: str, name: str) -> Any:
    """A family of ``"pyro"`` or ``"numpyro"`` by the name of its class, from here or from there."""
    here = importlib.import_module(f"{__name__}.in_{ppl}")
    return getattr(here, name, None) or getattr(here.families, name)
