"""Sums of squared gradients of single examples, at the cost of a few gradients.

In a network a weight meets activations of which every example has a row, ``Z = X W``. The gradient
of example ``n`` is ``x_n delta_n^T`` with ``delta_n = dl_n / dz_n``, and so

    sum_n s_n g_n^2 = (X^2)^T (s delta^2),                                                (1)

elementwise: one backward pass for all ``delta``. Of an example with several rows, of a convolution,
say, the products are summed before they are squared, a few examples at a time.

Where weights meet activations is recorded as the model runs. That nothing else happens to them is
found out by what must hold then. The gradient is ``X^T delta``. With other weights of the examples
``delta`` has these as factors, unless examples depend on each other, as by batch normalisation; and
every latent is in one entry of one weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pyro_ngvi.estimators.per_example.layers import (
    Layer,
    UnknownLayerError,
    addition,
    convolution,
    linear,
    product,
)

_PRODUCTS = {torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__}
_SUMS = {torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__}


class Recorder(TorchFunctionMode):
    """Records where weights meet activations.

    Latents and model parameters, and what is made of them alone, require gradients and may be
    weights; what has met one is an activation.

    :ivar layers: in the order of the run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[Layer] = []
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
            self.layers += found
            if found or self._sees_active(args) or self._sees_active(kwargs.values()):
                self._active.update((id(one), one) for one in made)
        return result

    def of_examples(self, count: int) -> list[Layer]:
        """The layers with as many rows for each of ``count`` examples."""
        return [layer for layer in self.layers if len(layer.result) % count == 0]

    def _sees_active(self, values: Iterable) -> bool:
        return any(
            self._sees_active(value) if type(value) in (tuple, list) else id(value) in self._active
            for value in values
        )

    def _is_weight(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.requires_grad and id(value) not in self._active

    def _found(self, func: Callable, args: tuple, kwargs: dict, result: Tensor) -> Iterator[Layer]:
        if func in _PRODUCTS and len(args) == 2 and not kwargs:
            rows, weight = args
            if self._is_weight(weight) and not self._is_weight(rows):
                yield from product(rows, weight, result)
        elif func is functional.linear:
            rows, weight, bias = _named(args, kwargs, "input", "weight", "bias")
            if not self._is_weight(rows):
                if self._is_weight(weight):
                    yield from linear(rows, weight, result)
                if self._is_weight(bias):
                    yield from addition(bias, result)
        elif func is functional.conv2d:
            names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
            rows, weight, bias, *options = _named(args, kwargs, *names)
            if not self._is_weight(rows):
                if self._is_weight(weight):
                    yield from convolution(rows, weight, result, *options)
                if self._is_weight(bias) and result.dim() == 4:
                    yield from addition(bias, result, (len(bias), 1, 1))
        elif func in _SUMS and len(args) == 2 and not kwargs:
            for weight, other in (args, args[::-1]):
                if self._is_weight(weight) and not self._is_weight(other):
                    if id(other) in self._active or weight.shape != result.shape:
                        yield from addition(weight, result)


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
        results of the layers of examples, if these are known.
    :return: shape ``(K, d)``, zero for the other draws.
    :raises UnknownLayerError: if weights are used in another way.
    """
    count = len(scale)
    layers = recorder.of_examples(count)
    if not layers:
        raise UnknownLayerError
    results = [layer.result for layer in layers]
    numbers = np.random.default_rng(0)  # of its own
    # By powers of two rounding is the same, however much cancels.
    factors = torch.as_tensor(2.0 ** numbers.integers(-8, 9, count)).to(scale)
    if slopes is None:
        gradient, *deltas = derivatives((scale * log_likelihood).sum(), [theta, *results])
    else:
        gradient, deltas = slopes
    others = derivatives((scale * factors * log_likelihood).sum(), results)
    tolerance = torch.finfo(theta.dtype).eps ** 0.5
    are_mixed = _are_mixed(deltas, others, factors, tolerance)
    positive = torch.where(scale > 0, scale, 1.0)
    with torch.no_grad():
        found = [layer.sums(delta, positive) for layer, delta in zip(layers, deltas, strict=True)]
    weights = [layer.weight for layer in layers]

    def pulled(values: Iterable[Tensor]) -> Tensor:
        return derivatives(weights, [theta], list(values))[0]

    # Each latent is in one entry, whose derivative this is.
    factor = pulled(map(torch.ones_like, weights))
    sums = factor * pulled(squared for _, squared in found)
    rounding = tolerance * (scale.sum() * sums).sqrt()
    is_off = ((pulled(slope for slope, _ in found) - gradient).abs() > rounding).any()
    flags = [flag.to(is_off.device) for flag in (*are_mixed, is_off)]
    if torch.stack(flags).any():  # one wait for all of them
        raise UnknownLayerError
    kind = tuple((tuple(layer.weight.shape), tuple(layer.result.shape)) for layer in layers)
    if kind not in known:
        some = [torch.as_tensor(numbers.random(weight.shape)).to(weight) for weight in weights]
        square, both = pulled(some).square(), factor * pulled(one.square() for one in some)
        if ((square - both).abs() > tolerance * both.abs()).any():
            raise UnknownLayerError
        known.add(kind)
    return sums


def _are_mixed(
    deltas: Sequence[Tensor], others: Sequence[Tensor], factors: Tensor, tolerance: float
) -> list[Tensor]:
    """Of each layer, whether ``delta`` with other weights of the examples has not these as factors.

    Then examples depend on each other.
    """
    flags = []
    for one, other in zip(deltas, others, strict=True):
        one, other = (delta.reshape(len(factors), -1) for delta in (one, other))
        one = factors[:, None] * one
        size = one.abs().amax(1, keepdim=True)  # single entries may have cancelled
        flags.append(((one - other).abs() > tolerance * size).any())
    return flags


def derivatives(outputs: Any, inputs: list[Tensor], vectors: Any = None) -> tuple[Tensor, ...]:
    """Of several outputs, with their graph kept; zero where there is none."""
    return torch.autograd.grad(
        outputs, inputs, vectors, retain_graph=True, materialize_grads=True, allow_unused=True
    )


def _named(args: tuple, kwargs: dict, *names: str) -> list:
    """Arguments by these names, in this order; None for those that are left out."""
    given = dict(zip(names, args, strict=False)) | kwargs
    return [given.get(name) for name in names]
