"""Adam whose rate adapts, for parameters that are not Gaussian.

What is a good rate depends on the model: the logarithm of a noise's scale has to move by 7 where
responses are in thousands, and the weights of a network by a tenth. So each tensor has a rate of
its own, which follows from whether steps agree (Almeida, Langlois, Amaral and Plakhov, 1999,
*Parameter adaptation in stochastic optimization*): with ``c`` the cosine between the fresh
gradient and the last step, both in Adam's metric,

    rate <- rate GROWTH^c,    at least SMALLEST_RATE, and no step above a tenth of the tensor.

Steps that lead on grow by a fifth each, and those that lead back fall by as much: noise alone
changes nothing on average, and the rate settles where fresh gradients know nothing of the last
step. Where gradients vanish, as those of a network that fits all of its data, all steps agree, and
without a largest step one would at last lead out of the optimum. Squares are forgotten in a
hundred steps and not in a thousand, and a gradient is divided by their root before it is averaged
(Ziyin, Wang and Ueda, 2020, *LaProp*): on a long way gradients fall by orders of magnitude, and an
average of them would lead on for hundreds of steps after they have turned. As in Adam, the scale
of the loss plays no role.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ngvi.optim.rule import TINY, Algebra, Array, Number

FIRST_RATE = 1e-2
GROWTH, SMALLEST_RATE = 1.2, 1e-5
#: The largest step, by the root mean square of the tensor's elements, or by the second number. A
#: number is often a logarithm, and has the third: from zero a tenth of itself is no step at all.
LARGEST_STEP, SMALLEST_SIZE, SMALLEST_NUMBER = 0.1, 0.1, 1.0
#: Of the averages of gradients and of their squares.
DECAY, SQUARE_DECAY = 0.9, 0.99
#: The average begins anew (O'Donoghue and Candes, 2015, *Adaptive restart*) where a step has led
#: far beyond the optimum: the cosine is below the first number, and the gradient less than so much
#: of the average, which would lead on for as long as it takes to fall to that.
TURNED, FLAT = -0.5, 0.1
#: What becomes of the rate by a step that led to where nothing is finite.
SHRINKAGE = 0.1


class AdamState(NamedTuple):
    """What is remembered for one tensor."""

    mean: Array  #: of gradients, each by the root of its time's mean square
    square: Array  #: mean square of gradients
    rate: Array


def start(parameter: Array) -> AdamState:
    """Before the first step."""
    nothing = 0.0 * parameter
    return AdamState(nothing, nothing, nothing.sum() + FIRST_RATE)


def advance(
    on: Algebra, gradient: Array, parameter: Array, state: AdamState, count: Number
) -> AdamState:
    """The state from which the next step follows.

    :param gradient: of the loss.
    :param count: the number of steps with the next one.
    """
    square = SQUARE_DECAY * state.square + (1.0 - SQUARE_DECAY) * gradient**2
    root = (on.where(square > 0, square, 1.0) / (1.0 - SQUARE_DECAY**count)) ** 0.5
    fresh, last = gradient / root, state.mean
    squares = (fresh**2).sum(), (last**2).sum()
    size = (squares[0] * squares[1]) ** 0.5
    cosine = on.where(size > 0, (fresh * last).sum() / on.where(size > 0, size, 1.0), 0.0)
    stale = (cosine < TURNED) & (squares[0] < FLAT**2 * squares[1])
    kept = on.where(stale, 0.0, DECAY)
    mean = kept * last + (1.0 - DECAY) * fresh
    rate = state.rate * GROWTH**cosine
    # Two root mean squares have one number of elements: norms will do, but for the smallest.
    root = math.prod(parameter.shape) ** 0.5
    size, length = (parameter**2).sum() ** 0.5, (mean**2).sum() ** 0.5 / (1.0 - DECAY**count)
    smallest = SMALLEST_NUMBER if root == 1 else SMALLEST_SIZE * root
    size = on.where(size > smallest, size, smallest)
    # Of a number the next sign tells at once that it has gone too far. A tensor's cosines are
    # small: its rate must not make up for gradients that vanish, and be too large when they return.
    length = on.where(length > TINY, length, TINY) if root == 1 else root
    largest = LARGEST_STEP * size / length
    rate = on.where(rate > largest, largest, rate)
    rate = on.where(rate < SMALLEST_RATE, SMALLEST_RATE, rate)
    return AdamState(mean, square, rate)


def change(state: AdamState, count: Number) -> Array:
    """The step that the state after :func:`advance` says."""
    return -state.rate / (1.0 - DECAY**count) * state.mean


def shortened(state: AdamState) -> AdamState:
    """After a step that led to where nothing is finite, and that has been taken back."""
    return state._replace(mean=0.0 * state.mean, rate=SHRINKAGE * state.rate)
