"""VOGN as a plain ``torch.optim.Optimizer``, for a training loop without a PPL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ngvi._docs import shared_doc
from ngvi.errors import check_function
from ngvi.networks.equations import VognEquations
from ngvi.networks.torch.options import GroupedOptimizer
from ngvi.networks.torch.sampled import SampledOptimizer, Tensors
from ngvi.networks.torch.vectors import TrainedWeights, Vector


@shared_doc(VognEquations, GroupedOptimizer)
class VOGN(SampledOptimizer):
    """A torch optimiser; learning-rate schedulers and parameter groups work.

    In the loop::

        optimizer = VOGN(network.parameters(), ess=len(dataset))
        with optimizer.sampled_params(train=True):
            optimizer.backward(example_gradients(network, criterion, x, y))
        optimizer.step()

    :func:`example_gradients` is for networks whose examples do not interact; otherwise give
    ``backward`` your own gradients. Several ``backward`` inside one ``sampled_params``, and several
    ``sampled_params`` before a step, are averaged. Clipping ``param.grad`` does not clip the
    curvature. Otherwise it works as :class:`IVON`.

    :param hess_init: ``h`` before the first step: a number, or tensors by parameter. With tensors,
        parameters added later start at the mean over all weights.
    """

    equations = VognEquations
    _squares: Any = None  #: Mean squares of this sample, by parameter.
    _num_examples: int = 0

    @torch.no_grad()
    def backward(self, gradients: Mapping[Tensor, Tensor]) -> None:
        """Take the gradients of a batch's examples; ``param.grad`` is their mean.

        :param gradients: each example's gradient by parameter, of shape ``(B, *param.shape)``.
        :raises RuntimeError: outside ``sampled_params(train=True)``.
        :raises ValueError: for gradients of other shapes.
        """
        if not (self._is_open and self._is_for_step):
            raise RuntimeError("backward takes gradients inside of sampled_params(train=True).")
        if len({len(gradient) if gradient.dim() else 0 for gradient in gradients.values()}) != 1:
            raise ValueError("backward needs as many examples' gradients of each parameter.")
        if self._squares is None:
            self._squares, self._num_examples = {}, 0
        for param, value in gradients.items():
            if value.shape[1:] != param.shape:
                raise ValueError(
                    "backward needs gradients by example, of shape (B, *param.shape): one of a "
                    f"parameter of shape {tuple(param.shape)} has {tuple(value.shape)}."
                )
        count = len(next(iter(gradients.values())))
        self._num_examples += count
        part = count / self._num_examples
        for param, value in gradients.items():
            mean = value.mean(0).to(param.dtype)
            square = value.to(torch.promote_types(value.dtype, torch.float32)).square().mean(0)
            if param in self._squares and param.grad is not None:
                mean, square = param.grad.lerp(mean, part), self._squares[param].lerp(square, part)
            param.grad, self._squares[param] = mean, square

    def _begin_sample(self) -> None:
        self._squares = None

    def _has_gradients(self, params: Tensors) -> bool:
        return bool(self._squares) and super()._has_gradients(params)

    def _no_gradient(self) -> str:
        return (
            "VOGN needs the gradient of each example: call optimizer.backward(example_gradients("
            "network, criterion, x, y)) inside of sampled_params(train=True), or sampled_params() "
            "for a prediction."
        )

    def _to_curvature(self, of: TrainedWeights, noise: Vector, gradients: Tensors) -> None:
        zero = [p for p in of.params if p not in self._squares]
        squares = {**self._squares, **{param: torch.zeros_like(param) for param in zero}}
        noise.read([squares[param] for param in of.params])


def example_gradients(
    network: torch.nn.Module,
    criterion: Callable[..., Tensor],
    inputs: Tensor,
    *targets: Tensor,
    randomness: str = "different",
) -> dict[Tensor, Tensor]:
    """Return the gradient of each example's loss, by ``torch.func``, for :meth:`VOGN.backward`.

    The network is called with one example at a time, in a batch of one.

    >>> import torch
    >>> from ngvi.torch import example_gradients
    >>> network = torch.nn.Linear(3, 1)
    >>> found = example_gradients(network, torch.nn.MSELoss(), torch.ones(5, 3), torch.ones(5, 1))
    >>> found[network.weight].shape
    torch.Size([5, 1, 3])

    :param criterion: a loss of outputs and targets, a mean or a sum over its batch of one.
    :param inputs: the inputs, with a leading axis of examples.
    :param targets: the targets, likewise.
    :param randomness: that of dropout and the like, see ``torch.vmap``.
    :return: for each trained parameter a tensor of shape ``(B, *param.shape)``: ``B`` copies
        of the weights.
    :raises ValueError: for batch normalisation that is not in evaluation mode.
    :raises RuntimeError: by ``torch.func``, for a network whose examples interact.
    """
    is_module = isinstance(network, torch.nn.Module)
    check_function(network, "network", "a module of torch, the first argument", is_module)
    for name, module in network.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise ValueError(
                f"Batch normalisation {name!r} averages over examples, and each has its own "
                "gradient here: call network.eval(), take GroupNorm, or take IVON, which needs "
                "gradients of minibatches alone."
            )
    named = {name: p for name, p in network.named_parameters() if p.requires_grad}
    fixed = {name: p.detach() for name, p in network.named_parameters() if name not in named}
    fixed |= dict(network.named_buffers())

    def loss(values: dict[str, Tensor], *example: Tensor) -> Tensor:
        first, *rest = (one[None] for one in example)
        output = torch.func.functional_call(network, (values, fixed), (first,))
        return criterion(output, *rest)

    axes = (None, *(0 for _ in (inputs, *targets)))
    function = torch.func.vmap(torch.func.grad(loss), axes, randomness=randomness)
    found = function({name: p.detach() for name, p in named.items()}, inputs, *targets)
    return {param: found[name] for name, param in named.items()}
