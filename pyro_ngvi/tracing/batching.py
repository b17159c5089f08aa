"""Operations whose derivatives torch would compute slowly in batches, written otherwise.

- ``torch.vmap`` takes ``binary_cross_entropy_with_logits`` apart into a dozen elementary
  operations, whose second derivatives cost five times as much as its own. Here it stays whole.
- The product of a matrix of data with batches of vectors becomes as many products as there are
  batches, each of which reads the data anew. The transposed product is a single one.
- ``x[mask] = number`` has no batches at all, and is what ``Multinomial.log_prob`` does.
- ``x = torch.zeros(n)`` is no batch, so that ``x[t] = ...`` cannot take one: inside
  :class:`BatchedTensors` it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor, maybe_current_level, maybe_get_level
from torch.nn.functional import binary_cross_entropy_with_logits, linear
from torch.overrides import TorchFunctionMode

_PRODUCTS = {torch.matmul, torch.mm, torch.mv}
_PRODUCTS |= {Tensor.matmul, Tensor.mm, Tensor.mv, Tensor.__matmul__}
#: Functions that make tensors which a model may write into.
_MAKERS = {torch.zeros, torch.ones, torch.empty, torch.full}
_MAKERS |= {torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like}
_MAKERS |= {Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full}
_MAKERS |= {torch.clone, Tensor.clone}


class BatchedDerivatives(TorchFunctionMode):
    """Inside, such operations are the others, with the same values and derivatives."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func is binary_cross_entropy_with_logits:
            return _cross_entropy(*args, **(kwargs or {}))
        if func in _PRODUCTS and not kwargs and _is_data(args[0]) and _varies(args[1]):
            return _product(*args)
        if func is linear and _is_data(args[0]) and len(args) + len(kwargs or {}) < 4:
            return _linear(*args, **(kwargs or {}))
        if getattr(func, "__self__", None) is Tensor.data and is_batchedtensor(args[0]):
            return args[0].detach()  # which torch.vmap allows
        if func is Tensor.__setitem__ and _fills_a_mask(*args):
            value, mask, number = args
            value.masked_fill_(mask, number)
            return None
        return func(*args, **(kwargs or {}))


class BatchedTensors(TorchFunctionMode):
    """Inside, what is made to be written into has the batches of a tensor of ``torch.vmap``.

    So it is of a path (``x[t] = ...``), of data with missing values (``y = data.clone()``,
    ``y[is_missing] = ...``), and of Pyro's ``OrderedLogistic``.

    :param like: a tensor with these batches.
    """

    def __init__(self, like: Tensor) -> None:
        super().__init__()
        self.like = like.detach()

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func not in _MAKERS or not self._is_inside():
            return func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():  # another one around this one has other batches
            made = func(*args, **(kwargs or {}))
            if is_batchedtensor(made):
                return made
            like = self.like.new_empty(made.shape, dtype=made.dtype, device=made.device)
            return like.copy_(made)

    def _is_inside(self) -> bool:
        """Tell whether the batches are those of here: a function of many rows has left them."""
        level = maybe_current_level()
        return level is not None and maybe_get_level(self.like) <= level


def writing(function: Callable[..., Any], like: Callable[[Any], Tensor]) -> Callable[..., Any]:
    """Return the function for ``torch.vmap``, inside of :class:`BatchedTensors`.

    :param like: takes a tensor with the batches out of the first argument.
    """

    def batched(*args: Any) -> Any:
        with BatchedTensors(like(args[0])):
            return function(*args)

    return batched


def _fills_a_mask(value: Tensor, index: Any, number: Any) -> bool:
    is_mask = isinstance(index, Tensor) and index.dtype is torch.bool
    return is_mask and index.shape == value.shape and isinstance(number, (int, float))


def _is_data(value: Any) -> bool:
    is_matrix = isinstance(value, Tensor) and value.dim() == 2 and value.layout is torch.strided
    return is_matrix and not _varies(value)


def _varies(value: Any) -> bool:
    # Inside torch.vmap nothing requires a gradient, whatever happens outside.
    return isinstance(value, Tensor) and (value.requires_grad or is_batchedtensor(value))


def _product(matrix: Tensor, other: Tensor) -> Tensor:
    if other.dim() == 1:
        return (other.unsqueeze(0) @ matrix.mT).squeeze(0)
    if other.dim() == 2:
        return (other.mT @ matrix.mT).mT
    return torch.matmul(matrix, other)


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    output = (weight.unsqueeze(-2) if weight.dim() == 1 else weight) @ input.mT
    output = output.squeeze(-2) if weight.dim() == 1 else output.mT
    return output if bias is None else output + bias


def _cross_entropy(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    options = {name: value for name, value in kwargs.items() if value is not None}
    if args or options != {"reduction": "none"} or input.shape != target.shape:
        return binary_cross_entropy_with_logits(input, target, *args, **kwargs)
    return _CrossEntropy.apply(input, target)


class _CrossEntropy(torch.autograd.Function):
    """``log(1 + exp(logits)) - target * logits``, elementwise."""

    @staticmethod
    def forward(logits: Tensor, target: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(logits, target, reduction="none")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, of_logits: Tensor, of_target: Tensor | None) -> Tensor:
        logits, target = ctx.saved_tensors
        change = (logits.sigmoid() - target) * of_logits
        return change if of_target is None else change - logits * of_target

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        logits, target = ctx.saved_tensors
        of_target = -logits * gradient if ctx.needs_input_grad[1] else None
        return (logits.sigmoid() - target) * gradient, of_target

    @staticmethod
    def vmap(info: Any, in_dims: tuple, logits: Tensor, target: Tensor) -> tuple[Tensor, int]:
        logits, target = (
            value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            for value, dim in zip((logits, target), in_dims, strict=True)
        )
        return _CrossEntropy.apply(logits, target), 0
