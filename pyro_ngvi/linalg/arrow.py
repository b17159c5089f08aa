"""Matrices with the arrow of Tan's eq. (4), of torch; see :mod:`ngvi.linalg.arrow`."""

from __future__ import annotations

from torch import Tensor

from ngvi.latents.forest import Forest
from ngvi.linalg import arrow
from ngvi.linalg.forest_blocks import diagonal_slices
from pyro_ngvi.linalg.batched import batched
from pyro_ngvi.linalg.matrices import matrices


class Arrow(arrow.Arrow):
    """A matrix of a structure."""

    ops = batched

    @classmethod
    def add_keeping_off_zero(cls, structure: Forest, old: Tensor, step: Tensor) -> Tensor:
        new = old + step
        start = 0
        for size, num, total in diagonal_slices(structure):
            stop = start + size * size * num
            before = old[start:stop].reshape(size, size, num).diagonal()
            after = new[start:stop].reshape(size, size, num).diagonal()
            after.copy_(matrices.keep_off_zero(before, after.clone()))
            start += total
        return new
