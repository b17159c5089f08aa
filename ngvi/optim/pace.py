"""How far a first-order step goes, and how large it is: numbers that need no tuning.

Each natural gradient ``n`` of the bound enters the momentum with its own step size: ``rho`` at
most, and so that it is not longer than a limit in Fisher length (half its square is the KL
divergence), whatever the size of ``n``. Means and scales have a pace each, which adapts to the
cosine ``c``, in the Fisher metric, between a fresh natural gradient and the last change of ``q``:

- The *limit*, where it is what shortens a gradient, is multiplied by ``GROWTH^c``: steps that lead
  on grow, those that lead back become shorter, and noise alone changes nothing on average. A rule
  that shortens steps by every cosine that is clearly negative stands still where one draw's noise
  makes them so, even if most of ``q`` has far to go. The limit of scales is at most
  :data:`INITIAL_LIMIT`: one draw says little about a covariance, and larger steps in noise make
  ``q`` collapse.
- ``rho = 1 / u``, where ``u`` grows by :data:`DECREASE` when the smoothed cosine is negative and
  falls by a fifth when it is clearly positive (Kesten, 1958, *Accelerated stochastic
  approximation*). Near the optimum the natural gradient is about the distance to it, so that
  ``rho`` of order ``1 / t`` averages noise as it should.

Two more things matter on a long way. While means are far and keep going one way, scales hardly
move: there a draw's noise is larger than what it knows of curvature, and correlations made of it
would turn the way of the means (:func:`patience`). And no step is longer than what its own fresh
gradient would make of it (:func:`ngvi.optim.snngm.PacedRule.step`): a momentum of large gradients
would run on over the optimum for as long as it takes to decay.

The gradients are clipped, not normalised: the mean of normalised gradients vanishes elsewhere
than the bound's gradient if noise is skewed, and as ``rho`` decreases nothing is clipped any more.
"""

from __future__ import annotations

from typing import NamedTuple

from ngvi.optim.rule import TINY, Algebra, Number

#: The first limit of a gradient, in Fisher length, and the largest of scales.
INITIAL_LIMIT = 0.2
SMALLEST_LIMIT = 0.01 * INITIAL_LIMIT
GROWTH = 1.2
DECREASE = 0.5
RECOVERY = 0.8
SMOOTHING = 0.9
#: The smoothed cosine above which ``rho`` grows.
RATE_GROWS = 0.3


class Pace(NamedTuple):
    """What the rule remembers, of means or of scales."""

    limit: Number = INITIAL_LIMIT  #: of the Fisher length of a gradient that enters
    slowness: Number = 1.0  #: ``1 / rho``
    agreement: Number = 0.0  #: smoothed cosine
    length: Number = 0.0  #: Fisher length of the last step


def judge(on: Algebra, pace: Pace, slope: Number, norm: Number, count: Number) -> Pace:
    """The new numbers, after looking at the end of the last step.

    :param slope: Fisher product of the fresh natural gradient and the last change.
    :param norm: Fisher length of the fresh natural gradient.
    :param count: the number of steps taken so far.
    """
    known = (pace.length > 0) & (norm > 0)
    cosine = on.where(known, slope / on.where(known, norm * pace.length, 1.0), 0.0)
    cosine = on.minimum(on.maximum(cosine, -1.0), 1.0)
    # The mean of the cosines so far, as long as they are few.
    weight = (1 - SMOOTHING) / (1 - SMOOTHING ** on.maximum(count, 1.0))
    agreement = pace.agreement + weight * (cosine - pace.agreement)
    changed = on.maximum(pace.limit * GROWTH**cosine, SMALLEST_LIMIT)
    limit = on.where(norm > pace.limit * pace.slowness, changed, pace.limit)
    slowness = on.where(agreement > RATE_GROWS, RECOVERY, 1.0) * pace.slowness
    slowness = slowness + on.where(agreement < 0, DECREASE, 0.0)
    return Pace(limit, on.maximum(slowness, 1.0), agreement, pace.length)


def patience(on: Algebra, of_means: Pace, norm: Number) -> Number:
    """By how much scales' limit is less, while means are far and go on in one direction.

    :param norm: Fisher length of the means' fresh natural gradient.
    """
    far = norm > of_means.limit * of_means.slowness
    return on.where(far, 1.0 - on.maximum(of_means.agreement, 0.0), 1.0)


def shortened(on: Algebra, pace: Pace) -> Pace:
    """After a step that led to where nothing is finite: a tenth of its length."""
    length = on.where(pace.length > 0, pace.length, pace.limit)
    limit = on.minimum(pace.limit, on.maximum(0.1 * length, SMALLEST_LIMIT))
    return pace._replace(limit=limit, length=0.0 * pace.slowness)


def length(on: Algebra, products: list, *amounts: Number) -> Number:
    """The Fisher length of a sum of directions, each times its amount.

    :param products: the directions' inner products, ``k`` rows of ``k`` numbers.
    """
    pairs = [(i, j) for i in range(len(amounts)) for j in range(len(amounts))]
    sizes = [(amounts[i] * amounts[j], products[i][j]) for i, j in pairs]
    # No amount of what has overflowed is nothing.
    square = sum(on.where(size == 0, 0.0, size * product) for size, product in sizes)
    return on.sqrt(on.maximum(square, 0.0))


def within(on: Algebra, largest: Number, limit: Number, length: Number) -> Number:
    """The factor, ``largest`` at most, that keeps ``length`` within the limit."""
    return on.minimum(largest, limit / on.maximum(length, TINY))
