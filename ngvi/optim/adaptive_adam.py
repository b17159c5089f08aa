"""Adam whose rate adapts, for parameters of the model.

A good rate depends on the model: if responses are in thousands, the logarithm of a noise scale has
to move by 7, and the weights of a network by a tenth. So each tensor has its own rate, which grows
while steps agree (Almeida, Langlois, Amaral and Plakhov, 1999, *Parameter adaptation in stochastic
optimization*). With ``c`` the cosine between the fresh gradient and the last step, both in Adam's
metric,

    rate <- rate growth^c,    at least smallest_rate, and no step above a tenth of the tensor.

Noise alone changes nothing on average: the rate settles where fresh gradients are independent of
the last step. If gradients vanish, as for a network that fits all its data, all steps agree; the
limit on the step keeps the parameters from leaving the optimum. A gradient is divided by its root
mean square before it is averaged (Ziyin, Wang and Ueda, 2020, *LaProp*). On a long way gradients
fall by orders of magnitude, and an average of raw gradients would keep its sign for hundreds of
steps after theirs has changed. As in Adam, the scale of the loss does not matter.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ngvi.optim.rule import COMMON, TINY, Algebra, Array, Number


class AdamState(NamedTuple):
    """State of one tensor."""

    mean: Array  #: Average of gradients, each by the root of its time's mean square.
    square: Array  #: Mean square of gradients.
    rate: Array


class AdaptiveAdamRule(NamedTuple):
    """The rule of one tensor, and its numbers."""

    first_rate: float = 1e-2
    smallest_rate: float = 1e-5
    square_decay: float = 0.99  #: Part of the mean square of gradients that a step leaves.
    #: Part of a size that counts as small: the largest step by the root mean square of a tensor's
    #: elements, the smallest such size, a gradient by its average that restarts it, and the new
    #: rate by the old one after a step that led to where nothing is finite.
    tenth: float = 0.1
    #: Cosine below which the average begins anew (O'Donoghue and Candes, 2015, *Adaptive restart*).
    restart_cosine: float = -0.5

    def start(self, parameter: Array) -> AdamState:
        """Return the state before the first step."""
        nothing = 0.0 * parameter
        return AdamState(nothing, nothing, nothing.sum() + self.first_rate)

    def advance(
        self, on: Algebra, gradient: Array, parameter: Array, state: AdamState, count: Number
    ) -> AdamState:
        """Return the state from which the next step follows.

        :param gradient: of the loss.
        :param count: the number of steps with the next one.
        """
        square = self.square_decay * state.square + (1.0 - self.square_decay) * gradient**2
        root = (on.where(square > 0, square, 1.0) / (1.0 - self.square_decay**count)) ** 0.5
        fresh, last = gradient / root, state.mean
        squares = (fresh**2).sum(), (last**2).sum()
        size = (squares[0] * squares[1]) ** 0.5
        cosine = on.where(size > 0, (fresh * last).sum() / on.where(size > 0, size, 1.0), 0.0)
        is_stale = (cosine < self.restart_cosine) & (squares[0] < self.tenth**2 * squares[1])
        decay = on.where(is_stale, 0.0, COMMON.memory)
        mean = decay * last + (1.0 - COMMON.memory) * fresh
        rate = state.rate * COMMON.growth**cosine
        largest = self._largest_rate(on, parameter, mean, count)
        rate = on.where(rate > largest, largest, rate)
        rate = on.where(rate < self.smallest_rate, self.smallest_rate, rate)
        return AdamState(mean, square, rate)

    def _largest_rate(self, on: Algebra, parameter: Array, mean: Array, count: Number) -> Number:
        # Two root mean squares have one number of elements: norms will do, but for the smallest.
        root = math.prod(parameter.shape) ** 0.5
        size = (parameter**2).sum() ** 0.5
        length = (mean**2).sum() ** 0.5 / (1.0 - COMMON.memory**count)
        # A number is often a logarithm: from zero a tenth of itself is no step at all.
        smallest = 1.0 if root == 1 else self.tenth * root
        size = on.where(size > smallest, size, smallest)
        # Of a number the next sign says at once that it has gone too far. A tensor's cosines are
        # small: its rate must not make up for gradients that vanish, and be too large when they
        # return.
        length = on.where(length > TINY, length, TINY) if root == 1 else root
        return self.tenth * size / length

    def change(self, state: AdamState, count: Number) -> Array:
        """Return the step that the state after :meth:`advance` says."""
        return -state.rate / (1.0 - COMMON.memory**count) * state.mean

    def shortened(self, state: AdamState) -> AdamState:
        """Return the state after a step that led to where nothing is finite and was taken back."""
        return state._replace(mean=0.0 * state.mean, rate=self.tenth * state.rate)
