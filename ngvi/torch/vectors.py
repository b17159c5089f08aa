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


def batches(*lists: list[Tensor]) -> Iterator[list[list[Tensor]]]:
    """The tensors of several lists, a few elements of each at a time, as views.

    :param lists: tensors that correspond have the same shape and device.
    """
    batch: list[tuple[Tensor, ...]] = []
    count = 0
    for tensors in zip(*lists, strict=True):
        first, size = tensors[0], ON_CPU if tensors[0].device.type == "cpu" else ELSEWHERE
        rows = len(first) if first.dim() else 1
        step = max(1, size * rows // max(1, first.numel()))
        for start in range(0, rows, step):
            is_whole = step >= rows
            pieces = tensors if is_whole else tuple(one[start : start + step] for one in tensors)
            count += pieces[0].numel()
            if batch and (count > size or batch[0][0].device != first.device):
                yield [list(each) for each in zip(*batch, strict=True)]
                batch, count = [], pieces[0].numel()
            batch.append(pieces)
    if batch:
        yield [list(each) for each in zip(*batch, strict=True)]


def join(pieces: list[Tensor]) -> Tensor:
    """The pieces as one vector; of a single one a view where that is possible."""
    if len(pieces) == 1:
        return pieces[0].reshape(-1)
    return torch.cat([piece.reshape(-1) for piece in pieces])


def write(pieces: list[Tensor], vector: Tensor) -> None:
    """Overwrite the pieces by those of a vector."""
    for piece, part in zip(pieces, vector.split([p.numel() for p in pieces]), strict=True):
        piece.copy_(part.view(piece.shape))
