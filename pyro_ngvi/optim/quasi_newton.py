"""What the precision of a restricted family does not know of the curvature.

The mean's natural step is ``S^-1 g``. For a dense family ``S`` tends to the curvature, and the
step to Newton's. The precision of a mean field leaves correlations out: then the step is Jacobi's,
slow where latents are correlated. A limited memory of what steps of the mean did to ``g`` supplies
the missing curvature (Nocedal, 1980, *Updating quasi-Newton matrices with limited storage*), with
``S^-1`` as the metric that it corrects. Where the optimum is does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

#: Pairs that are kept, if there is room: no more than this many numbers.
MAX_PAIRS = 50
MAX_NUMBERS = 2_000_000


class Memory(NamedTuple):
    """Steps of the mean and the falls of ``g`` along them, the newest last."""

    steps: Tensor  #: shape ``(m, n)``, where ``m`` pairs are known
    falls: Tensor  #: shape ``(m, n)``
    gradient: Tensor  #: the last ``g``, shape ``(n,)``


def empty(loc: Tensor) -> Memory:
    """No pairs yet, for means of this shape."""
    pairs = loc.new_zeros((0, *loc.shape))
    return Memory(pairs, pairs, torch.zeros_like(loc))


def remember(memory: Memory, step: Tensor, gradient: Tensor) -> Memory:
    """The memory after a step of the mean that ended at ``gradient``.

    A pair without positive curvature says nothing that a metric could hold, and is left out.
    So are coordinates without a gradient at one end, latents that a minibatch does not visit.
    """
    known = (memory.gradient != 0) & (gradient != 0)
    step = step.where(known, 0.0)
    fall = (memory.gradient - gradient).where(known, 0.0)
    curvature = step @ fall
    tiny = torch.finfo(step.dtype).eps * step.norm() * fall.norm()
    if not (curvature.isfinite() and curvature > tiny):
        return memory._replace(gradient=gradient)
    rows = max(1, min(MAX_PAIRS, MAX_NUMBERS // max(1, step.numel())))
    steps = torch.cat([memory.steps, step[None]])[-rows:]
    falls = torch.cat([memory.falls, fall[None]])[-rows:]
    return Memory(steps, falls, gradient)


def direction(memory: Memory, gradient: Tensor, metric: Callable[[Tensor], Tensor]) -> Tensor:
    """The two-loop recursion: a quasi-Newton step from ``gradient``.

    Coordinates without a gradient, latents that a minibatch does not visit, stay.

    :param metric: ``S^-1`` times a vector.
    """
    weights = (memory.steps * memory.falls).sum(-1).reciprocal()
    pairs = list(zip(memory.steps, memory.falls, weights, strict=True))
    rest, amounts = gradient, []
    for step, fall, weight in reversed(pairs):
        amount = weight * (step @ rest)
        rest = rest - amount * fall
        amounts.append(amount)
    result = metric(rest)
    for (step, fall, weight), amount in zip(pairs, reversed(amounts), strict=True):
        result = result + step * (amount - weight * (fall @ result))
    return result.where(gradient != 0, 0.0)
