"""Lower triangular matrices with the arrow of Tan's eq. (4); see :mod:`ngvi.structure.arrow`."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from ngvi.structure import arrow
from ngvi.structure.arrow import diagonal_slices
from ngvi.structure.forest import Forest
from pyro_ngvi.linalg import batched
from pyro_ngvi.linalg.triangular import keep_off_zero


@dataclasses.dataclass(frozen=True)
class Arrow(arrow.Arrow):
    """A matrix of a structure."""

    ops = batched


def add_keeping_off_zero(structure: Forest, old: Tensor, step: Tensor) -> Tensor:
    """Two packed matrices' sum, its diagonal kept off zero as :func:`keep_off_zero` does.

    On the packed tensors, because for a step it is the traffic of memory that counts.
    """
    new = old + step
    start = 0
    for size, num, total in diagonal_slices(structure):
        stop = start + size * size * num
        before = old[start:stop].reshape(size, size, num).diagonal()
        after = new[start:stop].reshape(size, size, num).diagonal()
        after.copy_(keep_off_zero(before, after.clone()))
        start += total
    return new
