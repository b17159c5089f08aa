"""IVON as a plain ``torch.optim.Optimizer``, for a training loop without a PPL."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi.errors import shown
from ngvi.networks.equations import InitialHess, IvonEquations
from ngvi.networks.torch.options import GroupedOptimizer, parameters_of, trained
from ngvi.networks.torch.sampled import SampledOptimizer, Tensors
from ngvi.networks.torch.vectors import TrainedWeights, Vector, state_dtype


@shared_doc(IvonEquations, GroupedOptimizer)
class IVON(SampledOptimizer):
    """A torch optimiser; learning-rate schedulers, ``GradScaler`` and parameter groups work.

    In the loop::

        optimizer = IVON(network.parameters(), ess=len(dataset))
        with optimizer.sampled_params(train=True):
            loss = criterion(network(x), y)
            loss.backward()
        optimizer.step()

    For microbatches of one sample, call ``backward`` several times inside ``sampled_params``, on
    losses that sum to the mean. Gradients of several ``sampled_params`` before a step are averaged:
    do not divide their losses.

    Inside ``sampled_params`` the parameters are a sample, outside the posterior's mean ``m``. Keep
    weights in float32 and use ``torch.autocast`` for mixed precision; momentum and curvature of
    half-precision weights are in float32. Memory: ``g``, ``h``, the noise of a sample and as much
    workspace, two copies more for several samples per step.

    The loss must be a mean over examples: with a sum over ``B`` of them, the posterior is ``B``
    times too sharp, without any warning.

    :param hess_init: ``h`` before the first step: a number, or tensors by parameter, as measured by
        :func:`initial_hess`. With tensors, parameters added later start at the mean over all
        weights.
    :param sync: whether to average over the workers of ``torch.distributed``, each with its own
        sample (seed them differently) and a network that is *not* wrapped in
        ``DistributedDataParallel``. With that wrapper, leave it False and seed all workers alike.
    """

    equations = IvonEquations

    def _to_curvature(self, of: TrainedWeights, noise: Vector, gradients: Tensors) -> None:
        torch._foreach_mul_(noise.views, gradients)


@shared_doc(InitialHess)
@door
def initial_hess(
    params: Iterable[Tensor], losses: Iterable[Tensor], floor: float = InitialHess().floor
) -> dict[Tensor, Tensor]:
    """Measure ``hess_init`` of :class:`IVON`.

    As in::

        batches = islice(loader, 20)
        hess_init = initial_hess(network.parameters(), (loss(x, y) for x, y in batches))
        optimizer = IVON(network.parameters(), ess=len(dataset), hess_init=hess_init)

    It takes one gradient per loss. Losses of a generator are differentiated one by one.

    :param params: the network's parameters; frozen ones are skipped.
    :param losses: one loss for each minibatch, a mean over its examples.
    :return: a tensor for each parameter, in float32 or better.
    :raises TypeError: for a network or a single loss.
    :raises ValueError: without losses, if the gradients are all zero, or not finite.
    """
    params, count = trained(parameters_of(params)), 0
    must = "losses must be several, of a minibatch each: (loss(x, y) for x, y in batches), got"
    if not isinstance(losses, Iterable) or isinstance(losses, Tensor):
        raise TypeError(f"{must} {shown(losses)}.")
    squares = [torch.zeros_like(param, dtype=state_dtype(param)) for param in params]
    for loss in losses:
        if not isinstance(loss, Tensor) or loss.ndim:
            raise TypeError(f"{must} {shown(loss)} as one of them.")
        gradients = torch.autograd.grad(loss, params, allow_unused=True)
        for square, gradient in zip(squares, gradients, strict=True):
            if gradient is not None:
                square += gradient.to(square.dtype).square()
        count += 1
    found = InitialHess(floor).of_squares([square / max(1, count) for square in squares])
    return dict(zip(params, found, strict=True))
