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

from ngvi.two_loop import Pairs, two_loop

#: Pairs of means that are kept, if there is room: no more than this many numbers. They are many,
#: because all that a mean field knows of correlations is in them, and each costs two means.
MAX_MEAN_PAIRS = 50
MAX_MEAN_NUMBERS = 2_000_000


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
    rows = max(1, min(MAX_MEAN_PAIRS, MAX_MEAN_NUMBERS // max(1, step.numel())))
    steps = torch.cat([memory.steps, step[None]])[-rows:]
    falls = torch.cat([memory.falls, fall[None]])[-rows:]
    return Memory(steps, falls, gradient)


def corrected(memory: Memory, gradient: Tensor, metric: Callable[[Tensor], Tensor]) -> Tensor:
    """A quasi-Newton step of the mean from ``gradient``.

    Coordinates without a gradient, latents that a minibatch does not visit, stay.

    :param metric: ``S^-1`` times a vector.
    """
    steps, falls = memory.steps, memory.falls
    weights = (steps * falls).sum(-1).reciprocal()
    result = two_loop(Pairs(steps, falls, steps, falls, weights), gradient, metric)
    return result.where(gradient != 0, 0.0)
