"""Many tensors as a few vectors, for formulas by element whose calls do not grow with the tensors.

A vector has a view for each tensor, in its shape, and ``torch._foreach_copy_`` moves all of them at
once. Formulas are evaluated a part of a vector at a time: long enough that calls cost little beside
the arithmetic, and so short that their temporaries take no memory to speak of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor

#: Elements of a part: on a CPU what its caches hold, elsewhere what is worth a launch.
ON_CPU, ELSEWHERE = 2**16, 2**22


class Vector:
    """A vector with a view for each of some tensors.

    :param to: of its dtype and device.
    """

    def __init__(self, like: list[Tensor], to: Tensor) -> None:
        sizes = [tensor.numel() for tensor in like]
        self.all = torch.empty(sum(sizes), dtype=to.dtype, device=to.device)
        pieces = zip(self.all.split(sizes), like, strict=True)
        self.views = [piece.view(tensor.shape) for piece, tensor in pieces]

    def read(self, tensors: list[Tensor]) -> Self:
        """Be a copy of tensors."""
        torch._foreach_copy_(self.views, tensors)
        return self

    def write(self, tensors: list[Tensor]) -> None:
        """Overwrite tensors."""
        torch._foreach_copy_(tensors, self.views)


class TrainedWeights:
    """The trained parameters of a group that have one device and precision.

    :ivar state: vectors by name, whose views are the tensors of the optimiser's state.
    :ivar work: for a sample's means, and from its end until the step for its noise.
    :ivar spare: for whoever needs one.
    """

    #: Entries of a parameter's state that have the parameter's shape.
    NAMES = ("momentum", "hess")

    def __init__(self, group: dict[str, Any], params: list[Tensor], states: list[dict]) -> None:
        self.group, self.params, self.state = group, params, {}
        for name in self.NAMES:
            self.state[name] = self.vector(states[0][name]).read([one[name] for one in states])
            for one, view in zip(states, self.state[name].views, strict=True):
                one[name] = view
        self.work, self.spare = self.vector(), self.vector()

    def vector(self, to: Tensor | None = None) -> Vector:
        """Return a new one with a view for each parameter."""
        return Vector(self.params, next(iter(self.state.values())).all if to is None else to)

    def parts(self, *vectors: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Parts of vectors, as views."""
        size = ON_CPU if vectors[0].device.type == "cpu" else ELSEWHERE
        if len(vectors[0]) <= size:
            return iter([vectors])
        return zip(*(vector.split(size) for vector in vectors), strict=True)


def alike(tensors: list[Tensor], by: list[Tensor]) -> list[list[Tensor]]:
    """Tensors in lists of one device and dtype, those of others that correspond to them."""
    found: dict[Any, list[Tensor]] = {}
    for tensor, other in zip(tensors, by, strict=True):
        found.setdefault((other.device, other.dtype), []).append(tensor)
    return list(found.values())


def largest_of(tensor: Tensor) -> Tensor:
    """Return the largest absolute value; NaN if there is one."""
    if tensor.device.type != "cpu":
        return torch.linalg.vector_norm(tensor, torch.inf)
    least, most = torch.aminmax(tensor)  # a twentieth of the time
    return torch.maximum(most, -least)


def state_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of a weight's state: float32 at least."""
    return torch.promote_types(weight.dtype, torch.float32)
