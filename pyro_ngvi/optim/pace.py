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

import math
from typing import NamedTuple

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

    limit: float = INITIAL_LIMIT  #: of the Fisher length of a step's mean
    slowness: float = 1.0  #: ``1 / rho``
    agreement: float = 0.0  #: smoothed cosine, before bias correction
    length: float = 0.0  #: Fisher length of the last step


def judge(pace: Pace, slope: float, norm: float, count: int) -> Pace:
    """The new numbers, after looking at the end of the last step.

    :param slope: Fisher product of the fresh natural gradient and the last change.
    :param norm: Fisher length of the fresh natural gradient.
    :param count: the number of steps taken so far.
    """
    known = pace.length > 0 and norm > 0
    cosine = min(max(slope / (norm * pace.length), -1.0), 1.0) if known else 0.0
    agreement = SMOOTHING * pace.agreement + (1 - SMOOTHING) * cosine
    smoothed = agreement / (1 - SMOOTHING ** max(count, 1))
    limit, slowness = pace.limit, pace.slowness
    if smoothed > LIMIT_GROWS:
        limit = max(limit, GROWTH * pace.length)
    elif cosine < LIMIT_SHRINKS:
        limit = max(SHRINKAGE * pace.length, SMALLEST_LIMIT)
    if smoothed > RATE_GROWS:
        slowness *= RECOVERY
    if smoothed < 0:
        slowness += DECREASE
    return Pace(limit, max(slowness, 1.0), agreement, pace.length)


def shortened(pace: Pace) -> Pace:
    """After a step that led to where nothing is finite: a tenth of its length."""
    length = pace.length if pace.length > 0 else pace.limit
    limit = min(pace.limit, max(0.1 * length, SMALLEST_LIMIT))
    return pace._replace(limit=limit, length=0.0)


def length(products: list[list[float]], *amounts: float) -> float:
    """The Fisher length of a sum of directions, each times its amount.

    :param products: the directions' inner products, ``k`` rows of ``k`` numbers.
    """
    pairs = [(i, j) for i in range(len(amounts)) for j in range(len(amounts))]
    sizes = [(amounts[i] * amounts[j], products[i][j]) for i, j in pairs]
    # No amount of what has overflowed is nothing.
    square = sum(size * product for size, product in sizes if size)
    return math.sqrt(max(square, 0.0))


def within(largest: float, limit: float, length: float) -> float:
    """The factor, ``largest`` at most, that keeps ``length`` within the limit."""
    return min(largest, limit / length) if length > 0 else largest
