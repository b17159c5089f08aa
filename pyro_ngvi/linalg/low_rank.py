"""Low rank plus a diagonal, of torch; see :mod:`ngvi.linalg.low_rank`."""

from __future__ import annotations

from ngvi.linalg import low_rank
from pyro_ngvi.linalg.matrices import matrices


class LowRank(low_rank.LowRank):
    """``U U^T + diag(D)``."""

    ops = matrices
