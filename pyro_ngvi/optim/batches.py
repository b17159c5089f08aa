"""Many tensors as a few vectors of a good length, for formulas by element.

A vector is long enough that calls cost little beside the arithmetic, and so short that the
temporaries of a formula take no memory to speak of, however large a tensor is.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: Elements of a vector: on a CPU what its caches hold, elsewhere what is worth a launch.
ON_CPU, ELSEWHERE = 2**16, 2**22

Pieces = list[Tensor]


def batches(*lists: list[Tensor]) -> Iterator[list[Pieces]]:
    """The tensors of several lists, a few elements of each at a time, as views.

    :param lists: tensors that correspond have the same shape and device.
    """
    batch: list[tuple[Tensor, ...]] = []
    count, device = 0, None
    for pieces in _pieces(*lists):
        first = pieces[0]
        if batch and (count + first.numel() > _size(first) or first.device != device):
            yield [list(each) for each in zip(*batch, strict=True)]
            batch, count = [], 0
        batch.append(pieces)
        count, device = count + first.numel(), first.device
    if batch:
        yield [list(each) for each in zip(*batch, strict=True)]


def join(pieces: Pieces) -> Tensor:
    """The pieces as one vector; of a single one a view where that is possible."""
    if len(pieces) == 1:
        return pieces[0].reshape(-1)
    return torch.cat([piece.reshape(-1) for piece in pieces])


def write(pieces: Pieces, vector: Tensor) -> None:
    """Overwrite the pieces by those of a vector."""
    for piece, part in zip(pieces, vector.split([p.numel() for p in pieces]), strict=True):
        piece.copy_(part.view(piece.shape))


def _size(tensor: Tensor) -> int:
    return ON_CPU if tensor.device.type == "cpu" else ELSEWHERE


def _pieces(*lists: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    for tensors in zip(*lists, strict=True):
        whole, size = tensors[0].numel(), _size(tensors[0])
        if whole <= size:
            yield tensors
        else:
            rows = max(1, size * len(tensors[0]) // whole)
            for start in range(0, len(tensors[0]), rows):  # split would hold all views at once
                yield tuple(tensor[start : start + rows] for tensor in tensors)
