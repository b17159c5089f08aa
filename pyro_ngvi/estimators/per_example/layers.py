"""The ways in which a weight meets rows of examples, and the examples' gradients for it.

See :mod:`~pyro_ngvi.estimators.squares`, where these are found.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

#: Numbers in the gradients of the examples that are squared at once.
NUMBERS_AT_ONCE = 2**22


class UnknownLayerError(Exception):
    """A weight is used in another way."""


@dataclasses.dataclass
class Layer:
    """A weight meets rows of examples.

    :param by_example: from activations and ``delta`` of some examples to their gradients for the
        weight, shape ``(n, *weight.shape)``.
    :param sides: of an example with one row, from activations and ``delta`` to the sides of the
        outer product that its gradient is; or None.
    """

    weight: Tensor
    rows: Tensor | None  #: activations, shape ``(N T, ...)``
    result: Tensor  #: shape ``(N T, ...)``
    by_example: Callable[[Tensor | None, Tensor], Tensor]
    sides: Callable[[Any, Tensor], tuple[Tensor, Tensor]] | None = None
    kept: list[Tensor] | None = None  #: if not None, gradients of examples that were made for sums

    def is_outer(self, delta: Tensor, count: int) -> bool:
        """Whether the gradient of each of so many examples is an outer product."""
        return self.sides is not None and self.rows is not None and delta.shape[:-1] == (count,)

    def of_examples(self, delta: Tensor, count: int, some: slice = slice(None)) -> Tensor:
        """The gradients of some of ``count`` examples, shape ``(n, *weight.shape)``."""
        size = len(delta) // count
        part = slice(*(size * x if x is not None else None for x in (some.start, some.stop)))
        rows = None if self.rows is None else self.rows[part]
        return self.by_example(rows, delta[part].unflatten(0, (-1, size)))

    def sums(self, delta: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient, and (1), shapes of the weight.

        :param delta: of the examples' log likelihoods times ``scale``.
        :param scale: positive, shape ``(N,)``.
        """
        count = len(scale)
        if self.is_outer(delta, count):
            over = delta.square() / scale[:, None]
            x, y = self.sides(self.rows, delta)
            of_x, of_y = self.sides(self.rows.square(), over)
            return x.mT @ y, of_x.mT @ of_y
        gradient = squares = torch.zeros_like(self.weight)
        step = max(1, NUMBERS_AT_ONCE // max(self.weight.numel(), 1))
        for start in range(0, count, step):
            some = scale[start : start + step]
            each = self.of_examples(delta, count, slice(start, start + step))
            if self.kept is not None:
                self.kept.append(each)
            gradient = gradient + each.sum(0)
            over = each.square() / some.reshape(-1, *[1] * (each.dim() - 1))
            squares = squares + over.sum(0)
        return gradient, squares


# -- the ways to meet -------------------------------------------------------------------------


def product(rows: Tensor, weight: Tensor, result: Tensor) -> Iterator[Layer]:
    """``rows @ weight``."""
    if weight.dim() == 2 and rows.dim() >= 2:
        yield Layer(weight, rows, result, _outer, lambda x, delta: (x, delta))


def linear(rows: Tensor, weight: Tensor, result: Tensor) -> Iterator[Layer]:
    """``rows @ weight^T``."""
    if weight.dim() == 2 and rows.dim() >= 2:

        def by_example(rows: Tensor, delta: Tensor) -> Tensor:
            return _outer(rows, delta).mT

        yield Layer(weight, rows, result, by_example, lambda x, delta: (delta, x))


def _outer(rows: Tensor, delta: Tensor) -> Tensor:
    """Products of an example's rows, summed over these; ``delta`` of shape ``(n, T, ..., out)``."""
    delta = delta.reshape(len(delta), -1, delta.shape[-1])
    return rows.reshape(*delta.shape[:2], rows.shape[-1]).mT @ delta


def addition(
    weight: Tensor, result: Tensor, shape: tuple[int, ...] | None = None
) -> Iterator[Layer]:
    """A weight that is added to every row.

    :param shape: of the weight, as it is broadcast.
    """
    shape = tuple(weight.shape) if shape is None else shape
    shape = (1,) * (result.dim() - len(shape)) + shape
    if result.dim() and shape[0] == 1:

        def by_example(rows: None, delta: Tensor) -> Tensor:
            each = delta.sum(1).sum_to_size(len(delta), *shape[1:])
            return each.reshape(len(delta), *weight.shape)

        yield Layer(weight, None, result, by_example)


def convolution(
    rows: Tensor,
    weight: Tensor,
    result: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int | None,
) -> Iterator[Layer]:
    """Of images; not by groups."""
    if rows.dim() != 4 or isinstance(padding, str) or groups not in (None, 1):
        return
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    given = {name: value for name, value in options.items() if value is not None}

    def by_example(rows: Tensor, delta: Tensor) -> Tensor:
        patches = functional.unfold(rows, weight.shape[2:], **given)
        patches = patches.unflatten(0, delta.shape[:2])
        each = (delta.flatten(3) @ patches.mT).sum(1)
        return each.reshape(len(delta), *weight.shape)

    yield Layer(weight, rows, result, by_example)
