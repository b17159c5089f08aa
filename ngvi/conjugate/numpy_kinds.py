"""The families with numpy's arrays: for what a guide decides, and for quantiles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from scipy import special

from ngvi.conjugate import KINDS, factor


class Factor(factor.Factor):
    """An exponential family in numpy."""

    xp: ClassVar[Any] = np
    digamma: ClassVar[Any] = staticmethod(special.digamma)
    lgamma: ClassVar[Any] = staticmethod(special.gammaln)

    def map(self, function: Callable, *others: Self) -> Self:
        return dataclasses.replace(self, loc=function(self.loc, *(one.loc for one in others)))


NUMPY_KINDS: dict[str, Any] = {
    name: type(kind.__name__, (kind, Factor), {}) for name, kind in KINDS.items()
}


def as_numpy(one: factor.Factor) -> Any:
    """A package's factor with numpy's arrays."""
    return NUMPY_KINDS[one.name](np.asarray(one.loc), one.site, one.shape, one.columns)
