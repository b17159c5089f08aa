"""Low rank plus a diagonal, of torch; see :mod:`ngvi.linalg.low_rank`."""

from __future__ import annotations

import functools

from torch import Tensor

from ngvi.linalg import low_rank
from pyro_ngvi.linalg.matrices import matrices


class LowRank(low_rank.LowRank):
    """``U U^T + diag(D)``, and what it keeps of itself: a tensor of size ``d r`` is read once."""

    ops = matrices

    def strength(self) -> Tensor:
        return self._strength

    @functools.cached_property
    def _strength(self) -> Tensor:
        return super().strength()
