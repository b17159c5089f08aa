"""Curvature that the precision of a restricted family leaves out.

The mean's natural step is ``S^-1 g``. For a dense family ``S`` tends to the curvature, and the
step to Newton's. The precision of a mean field leaves correlations out: then the step is Jacobi's,
slow where latents are correlated. A limited memory of what steps of the mean did to ``g`` supplies
the missing curvature (Nocedal, 1980, *Updating quasi-Newton matrices with limited storage*), with
``S^-1`` as the metric that it corrects. Where the optimum is does not change.

A difference of ``g`` between two minibatches is mostly noise once ``q`` is near the optimum, and a
step ``s`` times that noise is no curvature. Fifty such pairs make a metric that enlarges noise in
some directions and stands still in others. Noise is known by gradients that change their sign
without getting smaller (:class:`GradientNoise`). From then on only pairs count whose difference is
far above it, those of the way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ngvi.optim.rule import COMMON, Algebra, Array, Families, Number
from ngvi.optim.two_loop import Pairs, first_loop, second_loop

#: What a square is at most, so that an average recovers from it in single precision.
LARGEST_SQUARE = 1e30


class GradientNoise(NamedTuple):
    """Size of the noise in ``g``: ``|g|^2`` in the variances of ``q``, in nats."""

    size: Number  #: Running average since it was last halved.
    least: Number  #: Size at the last halving; 0 before the first gradient.
    sign_changes: Number  #: Number of the mean's sign changes until then.


class QuasiNewtonMemory(NamedTuple):
    """Steps of the mean and by what ``g`` fell along them, ``y``; the newest last."""

    steps: Array  #: Shape ``(m, n)``; rows that are zero are not used.
    ys: Array  #: Shape ``(m, n)``.
    weights: Array  #: Inverse curvature of each pair, shape ``(m,)``; zero if it does not count.
    gradient: Array  #: The last ``g``, shape ``(n,)``.
    noise: Any  #: The :class:`GradientNoise`, as a state holds it.


class Pair(NamedTuple):
    """A step of the mean, and what it did to ``g``."""

    step: Array
    y: Array
    gradient: Array  #: Gradient at the end of the step.
    variances: Array  #: Variances of ``q`` there, a metric for the size of noise.
    #: Numbers: the squares of gradient and ``y`` in that metric, the curvature, and its rounding.
    sizes: Callable[[], Sequence[Number]]


class QuasiNewton(NamedTuple):
    """Rule for the pairs that a memory keeps.

    Pairs are many, because all that a mean field knows of correlations is in them, and each costs
    two means.
    """

    max_pairs: int = 50
    max_numbers: int = 2_000_000  #: Numbers of all steps and gradient changes ``y`` together.
    #: Sign changes of a gradient, since ``|g|^2`` was last halved, after which it is noise.
    sign_changes: int = 5
    #: Size of ``|y|^2`` from which on a pair counts, by that of the noise; two are its own noise.
    loud: float = 8.0

    def empty(self, on: Algebra, families: Families, loc: Array) -> QuasiNewtonMemory:
        """No pairs yet, for means of this shape."""
        pairs = on.no_rows(self._most(loc), loc)
        return QuasiNewtonMemory(
            pairs, pairs, pairs.sum(-1), 0.0 * loc, on.kept(GradientNoise(0.0, 0.0, 0.0), families)
        )

    def look(
        self, on: Algebra, memory: QuasiNewtonMemory, step: Array, gradient: Array, variances: Array
    ) -> Pair:
        """Return the pair of a step of the mean that ended at ``gradient``.

        Coordinates without a gradient at one end, latents of other minibatches, are left out.
        """
        known = (memory.gradient != 0) & (gradient != 0)
        step = on.where(known, step, 0.0)
        y = on.where(known, memory.gradient - gradient, 0.0)
        tiny = on.eps(step) * on.norm(step) * on.norm(y)
        squares = [(one * variances * one).sum() for one in (gradient, y)]
        return Pair(step, y, gradient, variances, on.later(*squares, step @ y, tiny))

    def remember(
        self,
        on: Algebra,
        memory: QuasiNewtonMemory,
        pair: Pair,
        families: Families,
        sign_changes: Number,
    ) -> QuasiNewtonMemory:
        """Return the memory with one more pair.

        One without positive curvature says nothing that a metric could hold, and is left out.

        :param sign_changes: of the mean so far (:mod:`~ngvi.optim.trust_region`).
        """
        step, y, gradient, variances, sizes = pair
        size, size_of_y, curvature, tiny = sizes()
        noise = self._noise(on, GradientNoise(*memory.noise), size, sign_changes)
        is_noisy = sign_changes - noise.sign_changes >= self.sign_changes
        threshold = on.cast(on.where(is_noisy, self.loud * noise.size, 0.0), families)
        use = (curvature > tiny) & (curvature < math.inf) & (size_of_y >= threshold)
        steps, ys = on.with_row(use, (memory.steps, memory.ys), (step, y), self._most(step))
        products = (steps * ys).sum(-1)
        counts = (products > 0) & ((ys * variances * ys).sum(-1) >= threshold)
        weights = on.where(counts, 1.0 / products, 0.0)
        return QuasiNewtonMemory(steps, ys, weights, gradient, on.kept(noise, families))

    def _noise(
        self, on: Algebra, noise: GradientNoise, size: Number, sign_changes: Number
    ) -> GradientNoise:
        size = on.minimum(size, LARGEST_SQUARE)
        is_halved = (noise.least <= 0) | (size < 0.5 * noise.least)
        average = COMMON.memory * noise.size + (1 - COMMON.memory) * size
        since = on.minimum(noise.sign_changes, sign_changes)
        return GradientNoise(
            on.where(is_halved, size, average),
            on.where(is_halved, size, noise.least),
            on.where(is_halved, sign_changes, since),
        )

    def _most(self, loc: Array) -> int:
        return max(1, min(self.max_pairs, self.max_numbers // max(1, loc.shape[0])))


class Correction:
    """Quasi-Newton steps of the mean from one gradient, in several metrics.

    Coordinates without a gradient, latents of other minibatches, stay.

    :ivar rest: what the metric is to be applied to.
    """

    def __init__(self, on: Algebra, memory: QuasiNewtonMemory, gradient: Array) -> None:
        steps, ys = memory.steps, memory.ys
        self._on, self._gradient = on, gradient
        self._pairs = Pairs(steps, ys, steps, ys, memory.weights)
        # It knows no metric, and so all of them share it.
        self.rest, self._amounts = first_loop(self._pairs, gradient, on.scan)

    def step(self, moved: Array) -> Array:
        """Return the step, from what a metric makes of the ``rest``."""
        on = self._on
        result = second_loop(self._pairs, self._amounts, moved, on.scan)
        return on.where(self._gradient != 0, result, 0.0)
