"""What a result has found of its rows, for its next question about them."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ngvi.inference.result import KEPT
from ngvi.latents.layout import Site
from ngvi.workflow.climb import polished
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.loo import Pointwise, leave_out
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.target import Target, depends
from ngvi.workflow.units import Units


@dataclasses.dataclass(frozen=True, eq=False)
class KnownTarget:
    """The log density by its rows, the posterior, and what follows from both.

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

    def leave_out(self, plate: str | None, units: Units) -> Pointwise:
        """Of all units, which are a plate's."""
        if plate not in self._left_out:
            self._left_out[plate] = leave_out(self.target, self.optimum, units)
        return self._left_out[plate]

    @functools.cached_property
    def _left_out(self) -> dict[str | None, Pointwise]:
        return {}

    @property
    def _size(self) -> int:
        predictors = self.target.predictors
        own = 0 if predictors is None else predictors.slopes.size
        return self.q.dim**2 + own + len(dataclasses.fields(Pointwise)) * len(self.target.weights)

    @classmethod
    def of(cls, result: Any, make: Callable[[], tuple[Target, DenseGaussian, Any]]) -> KnownTarget:
        """Kept by the result as long as what it is made of is there, unless it is large.

        :param make: target, posterior and latents, if they are not kept.
        """
        made_of = result.model, result.args, result.kwargs, result.params, result.change
        known = vars(result).get(KEPT)
        if known is not None and all(map(operator.is_, made_of, known.made_of)):
            return known
        known = cls(*make(), made_of)
        vars(result).pop(KEPT, None)
        if known._size <= DEFAULTS.max_kept_numbers:
            vars(result)[KEPT] = known
        return known
