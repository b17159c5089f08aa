"""What the precision of a restricted family does not know of the curvature.

The mean's natural step is ``S^-1 g``. For a dense family ``S`` tends to the curvature, and the
step to Newton's. The precision of a mean field leaves correlations out: then the step is Jacobi's,
slow where latents are correlated. A limited memory of what steps of the mean did to ``g`` supplies
the missing curvature (Nocedal, 1980, *Updating quasi-Newton matrices with limited storage*), with
``S^-1`` as the metric that it corrects. Where the optimum is does not change.

A fall of ``g`` between two minibatches is mostly noise once ``q`` is near the optimum, and a step
``s`` times that noise is no curvature: steps of a hundredth give a hundredfold of it, and fifty
such pairs make a metric that enlarges noise in some directions and stands still in others. Noise is
known by gradients that turn without getting smaller (:class:`Noise`). From then on only pairs count
whose fall is far above it, those of the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ngvi.optim.rule import Algebra, Array, Families, Number
from ngvi.optim.two_loop import Pairs, first_loop, second_loop

#: Pairs of means that are kept, if there is room: no more than this many numbers. They are many,
#: because all that a mean field knows of correlations is in them, and each costs two means.
MAX_MEAN_PAIRS = 50
MAX_MEAN_NUMBERS = 2_000_000


#: Gradients that have turned so often since they were last halved in ``|g|^2`` are noise, ...
NOISY_TURNS, HALVED = 5, 0.5
#: ... whose size is a running average of so long a memory.
KEPT = 0.9
#: A fall counts if its square is so many times that of a gradient of noise; two are its own noise.
LOUD = 8
#: What a square is at most, so that an average recovers from it in single precision.
MOST = 1e30


class Noise(NamedTuple):
    """What tells noise in ``g``: ``|g|^2`` in the variances of ``q``, in nats."""

    size: Number = 0.0  #: its running average since it was last halved
    least: Number = 0.0  #: what it was then; 0 before there was a gradient
    turns: Number = 0  #: turns of the mean until then

    def after(self, on: Algebra, size: Number, turns: Number) -> Noise:
        """With one more gradient."""
        size = on.minimum(size, MOST)
        halved = (self.least <= 0) | (size < HALVED * self.least)
        average = KEPT * self.size + (1 - KEPT) * size
        return Noise(
            on.where(halved, size, average),
            on.where(halved, size, self.least),
            on.where(halved, turns, on.minimum(self.turns, turns)),
        )

    def threshold(self, on: Algebra, turns: Number) -> Number:
        """The least square of a fall that counts; 0 while there is no noise."""
        return on.where(turns - self.turns >= NOISY_TURNS, LOUD * self.size, 0.0)


class Memory(NamedTuple):
    """Steps of the mean and the falls of ``g`` along them, the newest last."""

    steps: Array  #: shape ``(m, n)``; rows that are zero are not used
    falls: Array  #: shape ``(m, n)``
    weights: Array  #: one by the curvature of each pair, shape ``(m,)``; zero if it does not count
    gradient: Array  #: the last ``g``, shape ``(n,)``
    noise: Any  #: :class:`Noise`, as a state holds it


def empty(on: Algebra, families: Families, loc: Array) -> Memory:
    """No pairs yet, for means of this shape."""
    pairs = on.no_rows(_most(loc), loc)
    return Memory(pairs, pairs, pairs.sum(-1), 0.0 * loc, on.kept(Noise(), families))


class Pair(NamedTuple):
    """A step of the mean, and what it did to ``g``."""

    step: Array
    fall: Array
    gradient: Array  #: where it ended
    variances: Array  #: of ``q`` there, a metric for the size of noise
    #: Numbers: the squares of gradient and fall in that metric, the curvature, and its rounding.
    sizes: Callable[[], Sequence[Number]]


def look(on: Algebra, memory: Memory, step: Array, gradient: Array, variances: Array) -> Pair:
    """The pair of a step of the mean that ended at ``gradient``.

    Coordinates without a gradient at one end are left out, latents that a minibatch does not visit.
    """
    known = (memory.gradient != 0) & (gradient != 0)
    step = on.where(known, step, 0.0)
    fall = on.where(known, memory.gradient - gradient, 0.0)
    tiny = on.eps(step) * on.norm(step) * on.norm(fall)
    squares = [(one * variances * one).sum() for one in (gradient, fall)]
    return Pair(step, fall, gradient, variances, on.later(*squares, step @ fall, tiny))


def remember(on: Algebra, memory: Memory, pair: Pair, families: Families, turns: Number) -> Memory:
    """The memory with one more pair.

    One without positive curvature says nothing that a metric could hold, and is left out.

    :param turns: of the mean so far (:class:`~ngvi.optim.trust_region.Progress`).
    """
    step, fall, gradient, variances, sizes = pair
    size, size_of_fall, curvature, tiny = sizes()
    noise = Noise(*memory.noise).after(on, size, turns)
    threshold = on.cast(noise.threshold(on, turns), families)
    use = (curvature > tiny) & (curvature < math.inf) & (size_of_fall >= threshold)
    steps, falls = on.with_row(use, (memory.steps, memory.falls), (step, fall), _most(step))
    products = (steps * falls).sum(-1)
    counts = (products > 0) & ((falls * variances * falls).sum(-1) >= threshold)
    weights = on.where(counts, 1.0 / products, 0.0)
    return Memory(steps, falls, weights, gradient, on.kept(noise, families))


def _most(loc: Array) -> int:
    return max(1, min(MAX_MEAN_PAIRS, MAX_MEAN_NUMBERS // max(1, loc.shape[0])))


class Correction:
    """Quasi-Newton steps of the mean from one gradient, in several metrics.

    Coordinates without a gradient, latents that a minibatch does not visit, stay.

    :ivar rest: what the metric is to be applied to.
    """

    def __init__(self, on: Algebra, memory: Memory, gradient: Array) -> None:
        steps, falls = memory.steps, memory.falls
        self._on, self._gradient = on, gradient
        self._pairs = Pairs(steps, falls, steps, falls, memory.weights)
        # It knows no metric, and so all of them share it.
        self.rest, self._amounts = first_loop(self._pairs, gradient, on.scan)

    def step(self, moved: Array) -> Array:
        """The step, from what a metric makes of the ``rest``."""
        on = self._on
        result = second_loop(self._pairs, self._amounts, moved, on.scan)
        return on.where(self._gradient != 0, result, 0.0)
