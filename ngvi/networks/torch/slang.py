"""SLANG as a plain ``torch.optim.Optimizer``, for a training loop without a PPL."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi.families.low_rank_precision import LowRankPrecision
from ngvi.families.steps import covariance_times
from ngvi.linalg.definite import Definite
from ngvi.linalg.low_rank import LowRank
from ngvi.networks.equations import SlangEquations
from ngvi.networks.torch.options import GroupedOptimizer
from ngvi.networks.torch.vectors import TrainedWeights
from ngvi.networks.torch.vogn import VOGN

#: Options that all weights share.
SHARED = ("ess", "beta2", "rank")


class _Matrices(Definite):
    """Operations of torch for a precision of low rank."""

    xp = torch

    def eye(self, size: int, like: Tensor) -> Tensor:
        return torch.eye(size, dtype=like.dtype, device=like.device)

    def combined(self, amount: float, one: Tensor, other_amount: float, other: Tensor) -> Tensor:
        return (amount * one).add_(other, alpha=other_amount)

    def at_least(self, values: Tensor, floor: float) -> Tensor:
        return values.clamp(min=floor)

    def cholesky(self, matrix: Tensor) -> Tensor:
        return torch.linalg.cholesky_ex(matrix)[0]

    def solve_lower(self, tril: Tensor, rhs: Tensor, trans: bool = False) -> Tensor:
        factor = tril.mT if trans else tril
        return torch.linalg.solve_triangular(factor, rhs, upper=trans)


class _Precision(LowRankPrecision):
    ops: ClassVar[Any] = _Matrices()
    xp: ClassVar[Any] = torch

    @functools.cached_property
    def _matrix(self) -> LowRank:
        return super()._matrix


@shared_doc(SlangEquations, GroupedOptimizer)
class SLANG(VOGN):
    """A torch optimiser; learning-rate schedulers and parameter groups work.

    The loop is that of :class:`VOGN`::

        optimizer = SLANG(network.parameters(), ess=len(dataset), rank=5)
        with optimizer.sampled_params(train=True):
            optimizer.backward(example_gradients(network, criterion, x, y))
        optimizer.step()

    All parameters must have the same device and precision. Groups may differ in ``lr``,
    ``weight_decay`` and other options of single weights; ``ess``, ``beta2``, ``rank`` are shared.

    :param hess_init: ``h`` before the first step: a number, or tensors by parameter.
    """

    equations = SlangEquations
    _rows: Any = ()  #: Gradients by example of each sample since the last step.
    _fresh: Any = ()  #: Gradients of the last sample, by calls of ``backward``.
    _known_factor: Any = (None, None)  #: ``U``, and of which weights it is.

    def __init__(
        self,
        params: Iterable,
        lr: float = 0.1,
        *,
        rank: int = SlangEquations.rank,
        **options: Any,
    ) -> None:
        self._own = {"rank": rank}
        super().__init__(params, lr, **options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with their own options if they have any.

        :raises ValueError: for an option outside its range, or one that all weights share.
        """
        super().add_param_group(param_group)
        first, new = (self._equations_of(self.param_groups[at]) for at in (0, -1))
        for name in SHARED:
            one, other = getattr(first, name), getattr(new, name)
            if one != other:
                self.param_groups.pop()
                raise ValueError(
                    f"SLANG has one {name} for all weights, got {one!r} and {other!r}."
                )

    def _begin(self, param: Tensor, hess: Tensor | float) -> None:
        super()._begin(param, hess)
        state = self.state[param]
        state["factor"] = state["hess"].new_zeros(param.numel(), self.param_groups[-1]["rank"])

    def _weights(self) -> list[TrainedWeights]:
        weights = super()._weights()
        if self._known_factor[1] is not weights:
            states = [self.state[param] for of in weights for param in of.params]
            if len({(s["hess"].device, s["hess"].dtype) for s in states}) > 1:
                raise ValueError("SLANG needs all weights on one device, in one precision.")
            factor = torch.cat([state["factor"] for state in states])
            self._equations_of(self.param_groups[0]).check_size(len(factor))
            pieces = factor.split([len(state["factor"]) for state in states])
            for state, piece in zip(states, pieces, strict=True):
                state["factor"] = piece
            self._known_factor = factor, weights
        return weights

    def _precision(self, weights: list[TrainedWeights]) -> tuple[_Precision, Tensor]:
        """Divided by ``ess``, and ``delta``."""
        parts = [torch.full_like(of.spare.all, of.group["weight_decay"]) for of in weights]
        hess, prior = torch.cat([of.state["hess"].all for of in weights]), torch.cat(parts)
        factor = self._known_factor[0]
        loc = torch.zeros_like(hess)
        return _Precision(loc, factor, hess + prior, rank=factor.shape[1]), prior

    # -- samples ----------------------------------------------------------------------

    def _scale(self, weights: list[TrainedWeights]) -> None:
        precision, _ = self._precision(weights)
        noise = torch.cat([of.spare.all for of in weights])
        noise = precision.sample(noise) * self.param_groups[0]["ess"] ** -0.5
        for of, part in zip(weights, _split(noise, weights), strict=True):
            of.spare.all.copy_(part)

    def _begin_sample(self) -> None:
        super()._begin_sample()
        self._fresh = []

    @torch.no_grad()
    def backward(self, gradients: Mapping[Tensor, Tensor]) -> None:
        """Take the gradients of a batch's examples; ``param.grad`` is their mean.

        :param gradients: each example's gradient by parameter, of shape ``(B, *param.shape)``.
        :raises RuntimeError: outside ``sampled_params(train=True)``.
        :raises ValueError: for gradients of other shapes.
        """
        super().backward(gradients)
        count = len(next(iter(gradients.values())))
        params = [param for of in self._known[0] for param in of.params]
        whole = self._known_factor[0].new_zeros(count, len(self._known_factor[0]))
        for param, part in zip(params, whole.split([p.numel() for p in params], 1), strict=True):
            if param in gradients:
                part.copy_(gradients[param].reshape(count, -1))
        self._fresh.append(whole)

    def _fold(self, is_last: bool = False) -> None:
        fresh = [] if self._last is None else self._fresh
        super()._fold(is_last)
        if fresh:
            self._rows = [*self._rows, torch.cat(fresh)]

    def _forget(self) -> None:
        super()._forget()
        self._rows, self._fresh = [], []

    # -- steps ------------------------------------------------------------------------

    def _move(self, weights: list[TrainedWeights], sums: list, part: float) -> None:
        precision, prior = self._precision(weights)
        rows = self._all_rows()
        new = self._equations_of(self.param_groups[0]).new_precision(precision, rows, prior)
        slopes = []
        for of, (gradient, _) in zip(weights, sums, strict=True):
            rule, momentum = self._equations_of(of.group), of.state["momentum"].all
            mean = of.work.read(of.params).all
            slope = rule.slope(part * gradient, mean)
            momentum.copy_(rule.new_momentum(momentum, slope))
            slopes.append(rule.unbiased(momentum, mean, of.group["count"]))
        directions = _split(covariance_times(new, torch.cat(slopes)), weights)
        hess = _split(new.diagonal - prior, weights)
        for of, direction, changed in zip(weights, directions, hess, strict=True):
            change = self._equations_of(of.group).length(direction, of.group["lr"])
            of.work.all += change
            of.state["hess"].all.copy_(changed)
            of.work.write(of.params)
        precision.factor.copy_(new.factor)

    def _all_rows(self) -> Tensor:
        """``g_i / N^(1/2)`` of all samples, and of all workers."""
        rows = [one / math.sqrt(len(one) * len(self._rows)) for one in self._rows]
        workers = torch.distributed.get_world_size() if self.sync else 1
        if workers == 1:
            return torch.cat(rows)
        own = torch.cat(rows) / math.sqrt(workers)
        every = [torch.empty_like(own) for _ in range(workers)]
        torch.distributed.all_gather(every, own)
        return torch.cat(every)


def _split(vector: Tensor, weights: list[TrainedWeights]) -> tuple[Tensor, ...]:
    return vector.split([len(of.spare.all) for of in weights])
