"""How far a first-order step goes, and how large it is: numbers that need no tuning.

Each natural gradient ``n`` of the bound enters the momentum with its own step size: ``rho`` at
most, and so that neither the mean nor the scale moves by more than a limit in Fisher length
(half its square is the KL divergence), whatever the size of ``n``. Three numbers adapt to the
cosine, in the Fisher metric, between a fresh natural gradient and the last change of ``q``:

- The *limit* of the mean becomes twice a step's length while the smoothed cosine is large (the
  step could have been longer), and 0.3 of it when the fresh cosine is clearly negative. That of
  the scale is the same, but never above :data:`INITIAL_LIMIT`: one draw says little about a
  covariance, and larger steps in noise make ``q`` collapse.
- ``rho = 1 / u``, where ``u`` grows by :data:`DECREASE` when the smoothed cosine is negative and
  falls by a fifth when it is clearly positive (Kesten, 1958, *Accelerated stochastic
  approximation*). Near the optimum the natural gradient is about the distance to it, so that
  ``rho`` of order ``1 / t`` averages noise as it should.

The gradients are clipped, not normalised: the mean of normalised gradients vanishes elsewhere
than the bound's gradient if noise is skewed, and as ``rho`` decreases nothing is clipped any more.
"""

from __future__ import annotations

from typing import NamedTuple

from ngvi.optim.rule import TINY, Algebra, Number

#: The first limit of a step, in Fisher length, and the largest of the scale.
INITIAL_LIMIT = 0.2
SMALLEST_LIMIT = 0.1 * INITIAL_LIMIT
GROWTH = 2.0
SHRINKAGE = 0.3
DECREASE = 0.5
RECOVERY = 0.8
SMOOTHING = 0.9
#: Smoothed cosines above which the limit and ``rho`` grow; the cosine that shrinks the limit.
LIMIT_GROWS = 0.5
RATE_GROWS = 0.3
LIMIT_SHRINKS = -0.3


class Pace(NamedTuple):
    """What the rule remembers."""

    limit: Number = INITIAL_LIMIT  #: of the Fisher length of a step's mean
    slowness: Number = 1.0  #: ``1 / rho``
    agreement: Number = 0.0  #: smoothed cosine, before bias correction
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
    agreement = SMOOTHING * pace.agreement + (1 - SMOOTHING) * cosine
    smoothed = agreement / (1 - SMOOTHING ** on.maximum(count, 1.0))
    longer = on.maximum(pace.limit, GROWTH * pace.length)
    shorter = on.maximum(SHRINKAGE * pace.length, SMALLEST_LIMIT)
    otherwise = on.where(cosine < LIMIT_SHRINKS, shorter, pace.limit)
    limit = on.where(smoothed > LIMIT_GROWS, longer, otherwise)
    slowness = on.where(smoothed > RATE_GROWS, RECOVERY, 1.0) * pace.slowness
    slowness = slowness + on.where(smoothed < 0, DECREASE, 0.0)
    return Pace(limit, on.maximum(slowness, 1.0), agreement, pace.length)


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
