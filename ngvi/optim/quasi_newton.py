"""What the precision of a restricted family does not know of the curvature.

The mean's natural step is ``S^-1 g``. For a dense family ``S`` tends to the curvature, and the
step to Newton's. The precision of a mean field leaves correlations out: then the step is Jacobi's,
slow where latents are correlated. A limited memory of what steps of the mean did to ``g`` supplies
the missing curvature (Nocedal, 1980, *Updating quasi-Newton matrices with limited storage*), with
``S^-1`` as the metric that it corrects. Where the optimum is does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ngvi.optim.rule import Algebra, Array
from ngvi.two_loop import Pairs, two_loop

#: Pairs of means that are kept, if there is room: no more than this many numbers. They are many,
#: because all that a mean field knows of correlations is in them, and each costs two means.
MAX_MEAN_PAIRS = 50
MAX_MEAN_NUMBERS = 2_000_000


class Memory(NamedTuple):
    """Steps of the mean and the falls of ``g`` along them, the newest last."""

    steps: Array  #: shape ``(m, n)``; rows that are zero are not used
    falls: Array  #: shape ``(m, n)``
    gradient: Array  #: the last ``g``, shape ``(n,)``


def empty(on: Algebra, loc: Array) -> Memory:
    """No pairs yet, for means of this shape."""
    pairs = on.no_rows(_most(loc), loc)
    return Memory(pairs, pairs, 0.0 * loc)


def remember(on: Algebra, memory: Memory, step: Array, gradient: Array) -> Memory:
    """The memory after a step of the mean that ended at ``gradient``.

    A pair without positive curvature says nothing that a metric could hold, and is left out.
    So are coordinates without a gradient at one end, latents that a minibatch does not visit.
    """
    known = (memory.gradient != 0) & (gradient != 0)
    step = on.where(known, step, 0.0)
    fall = on.where(known, memory.gradient - gradient, 0.0)
    curvature = step @ fall
    tiny = on.eps(step) * on.norm(step) * on.norm(fall)
    use = (curvature > tiny) & (curvature < math.inf)
    steps, falls = on.with_row(use, (memory.steps, memory.falls), (step, fall), _most(step))
    return Memory(steps, falls, gradient)


def _most(loc: Array) -> int:
    return max(1, min(MAX_MEAN_PAIRS, MAX_MEAN_NUMBERS // max(1, loc.shape[0])))


def corrected(
    on: Algebra, memory: Memory, gradient: Array, metric: Callable[[Array], Array]
) -> Array:
    """A quasi-Newton step of the mean from ``gradient``.

    Coordinates without a gradient, latents that a minibatch does not visit, stay.

    :param metric: ``S^-1`` times a vector.
    """
    steps, falls = memory.steps, memory.falls
    products = (steps * falls).sum(-1)
    weights = on.where(products > 0, 1.0 / products, 0.0)
    result = two_loop(Pairs(steps, falls, steps, falls, weights), gradient, metric, on.scan)
    return on.where(gradient != 0, result, 0.0)
