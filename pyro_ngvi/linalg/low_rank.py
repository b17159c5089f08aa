"""Low rank plus a diagonal, of torch; see :mod:`ngvi.linalg.low_rank`."""

from __future__ import annotations

import functools

from torch import Tensor

from ngvi.linalg import low_rank
from ngvi.linalg.matrices import symmetric
from pyro_ngvi.linalg.matrices import matrices

#: Rows of a factor that a CPU handles together, so that what is made of them stays in the cache.
ROWS_AT_ONCE = 1 << 15


class LowRank(low_rank.LowRank):
    """``U U^T + diag(D)``, and what it keeps of itself: a tensor of size ``d r`` is read once."""

    ops = matrices

    def strength(self) -> Tensor:
        return self._strength

    @functools.cached_property
    def _strength(self) -> Tensor:
        size = ROWS_AT_ONCE if self.factor.device.type == "cpu" else max(1, len(self.factor))
        pieces = zip(self.factor.split(size), self.diagonal.split(size), strict=True)
        return symmetric(sum((rows / scale[:, None]).mT @ rows for rows, scale in pieces))
