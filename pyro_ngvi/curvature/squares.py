"""Sums of squared gradients of single examples, at the cost of a few gradients.

In a network a weight meets activations of which every example has a row, ``Z = X W``. The gradient
of example ``n`` is ``x_n delta_n^T`` with ``delta_n = dl_n / dz_n``, and so

    sum_n s_n g_n^2 = (X^2)^T (s delta^2),                                                (1)

elementwise: one backward pass for all ``delta``. Of an example with several rows, of a convolution,
say, the products are summed before they are squared, a few examples at a time.

Where weights meet activations is recorded as the model runs. That nothing else happens to them is
found out by what must hold then: the gradient is ``X^T delta``; with other weights of the examples
``delta`` has these as factors, unless examples depend on each other, as by batch normalisation; and
every latent is in one entry of one weight.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_PRODUCTS = {torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__}
_SUMS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}

#: Numbers in the gradients of the examples that are squared at once.
NUMBERS_AT_ONCE = 2**22


class OtherUseError(Exception):
    """A weight is used in another way."""


@dataclasses.dataclass
class Use:
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


class Recorder(TorchFunctionMode):
    """Records where weights meet activations.

    Latents and ordinary parameters, and what is made of them alone, require gradients and may be
    weights; what has met one is an activation.

    :ivar uses: in the order of the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.uses: list[Use] = []
        self._active: dict[int, Tensor] = {}

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            if not result.requires_grad:
                return result
            made = [result]
        elif type(result) in (tuple, list):
            made = [one for one in result if isinstance(one, Tensor) and one.requires_grad]
        else:
            return result
        if made:
            found = list(self._found(func, args, kwargs, result))
            self.uses += found
            if found or self._sees_active(args) or self._sees_active(kwargs.values()):
                self._active.update((id(one), one) for one in made)
        return result

    def of_examples(self, count: int) -> list[Use]:
        """The uses with as many rows for each of ``count`` examples."""
        return [use for use in self.uses if len(use.result) % count == 0]

    def _sees_active(self, values: Iterable) -> bool:
        return any(
            self._sees_active(value) if type(value) in (tuple, list) else id(value) in self._active
            for value in values
        )

    def _is_weight(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.requires_grad and id(value) not in self._active

    def _found(self, func: Callable, args: tuple, kwargs: dict, result: Tensor) -> Iterator[Use]:
        if func in _PRODUCTS and len(args) == 2 and not kwargs:
            rows, weight = args
            if self._is_weight(weight) and not self._is_weight(rows):
                yield from _product(rows, weight, result)
        elif func is functional.linear:
            rows, weight, bias = _named(args, kwargs, "input", "weight", "bias")
            if not self._is_weight(rows):
                if self._is_weight(weight):
                    yield from _linear(rows, weight, result)
                if self._is_weight(bias):
                    yield from _sum(bias, result)
        elif func is functional.conv2d:
            names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
            rows, weight, bias, *options = _named(args, kwargs, *names)
            if not self._is_weight(rows):
                if self._is_weight(weight):
                    yield from _convolution(rows, weight, result, *options)
                if self._is_weight(bias) and result.dim() == 4:
                    yield from _sum(bias, result, (len(bias), 1, 1))
        elif func in _SUMS and len(args) == 2 and not kwargs:
            for weight, other in (args, args[::-1]):
                if self._is_weight(weight) and not self._is_weight(other):
                    if id(other) in self._active or weight.shape != result.shape:
                        yield from _sum(weight, result)


def squares(
    recorder: Recorder,
    log_likelihood: Tensor,
    scale: Tensor,
    theta: Tensor,
    known: set,
    slopes: tuple[Tensor, Sequence[Tensor]] | None = None,
) -> Tensor:
    """(1) at one draw.

    :param recorder: of the run of the model, whose graph is kept.
    :param log_likelihood: of each example, shape ``(N,)``.
    :param scale: shape ``(N,)``.
    :param theta: the latent vectors that the draw is from, shape ``(K, d)``.
    :param known: kinds of runs of which the latents are known to be in one weight each.
    :param slopes: the gradients of ``(scale * log_likelihood).sum()`` for ``theta`` and for the
        results of the uses of examples, if these are known.
    :return: shape ``(K, d)``, zero for the other draws.
    :raises OtherUseError: if weights are used in another way.
    """
    count = len(scale)
    uses = recorder.of_examples(count)
    if not uses:
        raise OtherUseError
    results = [use.result for use in uses]
    numbers = np.random.default_rng(0)  # of its own
    # By powers of two rounding is the same, however much cancels.
    factors = torch.as_tensor(2.0 ** numbers.integers(-8, 9, count)).to(scale)
    if slopes is None:
        gradient, *deltas = derivatives((scale * log_likelihood).sum(), [theta, *results])
    else:
        gradient, deltas = slopes
    others = derivatives((scale * factors * log_likelihood).sum(), results)
    tolerance = torch.finfo(theta.dtype).eps ** 0.5
    for one, other in zip(deltas, others, strict=True):
        one, other = one.reshape(count, -1), other.reshape(count, -1)
        one = factors[:, None] * one
        size = one.abs().amax(1, keepdim=True)  # single entries may have cancelled
        if ((one - other).abs() > tolerance * size).any():
            raise OtherUseError
    positive = torch.where(scale > 0, scale, 1.0)
    with torch.no_grad():
        found = [use.sums(delta, positive) for use, delta in zip(uses, deltas, strict=True)]
    weights = [use.weight for use in uses]

    def pulled(values: Iterable[Tensor]) -> Tensor:
        return derivatives(weights, [theta], list(values))[0]

    # Each latent is in one entry, whose derivative this is.
    factor = pulled(map(torch.ones_like, weights))
    sums = factor * pulled(squared for _, squared in found)
    rounding = tolerance * (scale.sum() * sums).sqrt()
    if ((pulled(slope for slope, _ in found) - gradient).abs() > rounding).any():
        raise OtherUseError
    kind = tuple((tuple(use.weight.shape), tuple(use.result.shape)) for use in uses)
    if kind not in known:
        some = [torch.as_tensor(numbers.random(weight.shape)).to(weight) for weight in weights]
        square, both = pulled(some).square(), factor * pulled(one.square() for one in some)
        if ((square - both).abs() > tolerance * both.abs()).any():
            raise OtherUseError
        known.add(kind)
    return sums


def derivatives(outputs: Any, inputs: list[Tensor], vectors: Any = None) -> tuple[Tensor, ...]:
    """Of several outputs, with their graph kept; zero where there is none."""
    return torch.autograd.grad(
        outputs, inputs, vectors, retain_graph=True, materialize_grads=True, allow_unused=True
    )


# -- the ways to meet -------------------------------------------------------------------------


def _product(rows: Tensor, weight: Tensor, result: Tensor) -> Iterator[Use]:
    if weight.dim() == 2 and rows.dim() >= 2:
        yield Use(weight, rows, result, _outer, lambda x, delta: (x, delta))


def _linear(rows: Tensor, weight: Tensor, result: Tensor) -> Iterator[Use]:
    if weight.dim() == 2 and rows.dim() >= 2:

        def by_example(rows: Tensor, delta: Tensor) -> Tensor:
            return _outer(rows, delta).mT

        yield Use(weight, rows, result, by_example, lambda x, delta: (delta, x))


def _outer(rows: Tensor, delta: Tensor) -> Tensor:
    """Products of an example's rows, summed over these; ``delta`` of shape ``(n, T, ..., out)``."""
    delta = delta.reshape(len(delta), -1, delta.shape[-1])
    return rows.reshape(*delta.shape[:2], rows.shape[-1]).mT @ delta


def _sum(weight: Tensor, result: Tensor, shape: tuple[int, ...] | None = None) -> Iterator[Use]:
    """A weight that is added to every row.

    :param shape: of the weight, as it is broadcast.
    """
    shape = tuple(weight.shape) if shape is None else shape
    shape = (1,) * (result.dim() - len(shape)) + shape
    if result.dim() and shape[0] == 1:

        def by_example(rows: None, delta: Tensor) -> Tensor:
            each = delta.sum(1).sum_to_size(len(delta), *shape[1:])
            return each.reshape(len(delta), *weight.shape)

        yield Use(weight, None, result, by_example)


def _convolution(
    rows: Tensor,
    weight: Tensor,
    result: Tensor,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int | None,
) -> Iterator[Use]:
    if rows.dim() != 4 or isinstance(padding, str) or groups not in (None, 1):
        return
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    given = {name: value for name, value in options.items() if value is not None}

    def by_example(rows: Tensor, delta: Tensor) -> Tensor:
        patches = functional.unfold(rows, weight.shape[2:], **given)
        patches = patches.unflatten(0, delta.shape[:2])
        each = (delta.flatten(3) @ patches.mT).sum(1)
        return each.reshape(len(delta), *weight.shape)

    yield Use(weight, rows, result, by_example)


def _named(args: tuple, kwargs: dict, *names: str) -> list:
    """Arguments by these names, in this order; None for those that are left out."""
    given = dict(zip(names, args, strict=False)) | kwargs
    return [given.get(name) for name in names]
