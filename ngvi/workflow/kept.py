"""What a result has found of its rows, for its next question about them."""

from __future__ import annotations

import dataclasses
import functools
import operator
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ngvi.latents.layout import Site
from ngvi.workflow.climb import polished
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.target import Target, depends


@dataclasses.dataclass(frozen=True, eq=False)
class KnownTarget:
    """The log density by its rows, the posterior, and what follows from both.

    :param latents: the sites of the latents.
    :param made_of: attributes of the result on which they depend.
    """

    target: Target
    q: DenseGaussian
    latents: tuple[Site, ...]
    made_of: tuple[Any, ...]

    @functools.cached_property
    def optimum(self) -> DenseGaussian:
        """To which the posterior is near."""
        return polished(self.target, self.q)

    @functools.cached_property
    def depends(self) -> np.ndarray:
        """Which latents each element depends on, shape ``(M, d)``."""
        return depends(self.target, self.q)

    @property
    def _size(self) -> int:
        predictors = self.target.predictors
        return self.q.dim**2 + (0 if predictors is None else predictors.slopes.size)

    @classmethod
    def of(cls, result: Any, make: Callable[[], tuple[Target, DenseGaussian, Any]]) -> KnownTarget:
        """Kept as long as the result is there and what it is made of, unless it is large; nothing
        of it is pickled or copied with the result.

        :param make: target, posterior and latents, if they are not kept.
        """
        made_of = result.model, result.args, result.kwargs, result.params, result.change
        known = _KNOWN.get(result)
        if known is not None and all(map(operator.is_, made_of, known.made_of)):
            return known
        known = cls(*make(), made_of)
        _KNOWN.pop(result, None)
        if known._size <= DEFAULTS.max_kept_numbers:
            _KNOWN[result] = known
        return known


_KNOWN: weakref.WeakKeyDictionary[Any, KnownTarget] = weakref.WeakKeyDictionary()
