"""Conjugate sites with numpy's arrays: for what a guide decides, and for quantiles."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy import special

from ngvi.conjugate.families import FAMILIES
from ngvi.conjugate.site import ConjugateSite


class NumpySite(ConjugateSite):
    """A conjugate site whose natural parameters are an array of numpy."""

    xp: ClassVar[Any] = np
    digamma: ClassVar[Any] = staticmethod(special.digamma)
    lgamma: ClassVar[Any] = staticmethod(special.gammaln)


NUMPY_FAMILIES: dict[str, Any] = {
    name: type(family.__name__, (family, NumpySite), {}) for name, family in FAMILIES.items()
}


def as_numpy(one: ConjugateSite) -> Any:
    """A package's site with numpy's arrays."""
    return NUMPY_FAMILIES[one.name](np.asarray(one.loc), one.site, one.shape, one.columns)
