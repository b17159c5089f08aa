"""The upper confidence limit of what is left to an optimum, by fresh draws.

Let ``q`` be the end of a search over some draws, and ``q*`` the optimum of the bound over a fresh
sample of ``n`` groups. Over that sample ``q*`` is above ``q`` by the average ``G`` of the groups'
paired differences. The expectation of a maximum is at least the maximum of the expectation, so that
``E[G]`` is at least the gap of ``q``, and with the standard deviation ``s`` of the differences

    G + t_{n - 1} e + (t_{n - 1} e)^2 / (4 G),    e = s / sqrt(n),

is an upper confidence limit of it (Mak, Morton and Wood, 1999; the single-replication procedure of
Bayraksan and Morton, 2006). Its last term is ours: ``G`` is a square, half of that of a distance
whose estimate is normal, and where noise is in one direction ``s`` is small when ``G`` is. ``G``
holds the noise of the sample as well: a limit below the tolerance takes draws enough.

Near the optimum a quadratic model gives ``q*`` without further evaluations. Where the bound was
much flatter than the metric, steps over the fresh sample find it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy

from ngvi.inference.estimate import Estimate
from ngvi.inference.metric import Metric


class Certificate(NamedTuple):
    """The gap of a state to its optimum, in nats."""

    gap: float  #: ``G``.
    upper: float  #: Upper confidence limit of the gap.
    noise: float = 0.0  #: The part of ``G`` that is the sample's noise.
    beside: str = ""  #: What the limit leaves out, in words.

    def is_met(self, tolerance: float) -> bool:
        """Return whether the upper limit is at most the tolerance."""
        return self.upper <= tolerance


UNKNOWN = Certificate(math.inf, math.inf, math.inf)


def upper_limit(differences: np.ndarray, rest: float, confidence: float) -> float:
    """Return the upper limit of a mean, and what is left besides.

    :param differences: of the groups, in nats.
    :param rest: in nats.
    """
    count, mean = len(differences), float(np.mean(differences))
    spread = float(np.std(differences, ddof=1)) if count > 1 else math.inf
    if spread == 0.0:
        return mean + rest
    error = float(scipy.special.stdtrit(count - 1, confidence)) * spread / math.sqrt(count)
    of_square = error**2 / (4.0 * mean) if mean > 0 else 0.0
    return mean + rest + error + of_square


def quadratic(metric: Metric, estimate: Estimate, confidence: float) -> Certificate:
    """Certify by the quadratic model of a fresh estimate.

    The groups' differences are linear in their gradients, less half the curvature of the step.
    """
    if not estimate.is_finite:
        return UNKNOWN
    found = metric.corrected(estimate.mean)
    step = found.direction.natural
    with np.errstate(all="ignore"):
        slopes = metric.scaled(estimate.natural).astype(float) @ metric.gradients(step[None])[0]
        if found.fisher > found.gain:  # flatter by the metric than by the pairs
            slopes = slopes * (found.fisher / found.gain if found.gain > 0 else 1.0)
        upper = upper_limit(slopes - found.predicted, 0.0, confidence)
    if not math.isfinite(upper):
        return UNKNOWN
    return Certificate(found.predicted, max(upper, 0.0), metric.noise(estimate))


def stepped(
    before: Estimate, after: Estimate, predicted: float, noise: float, confidence: float
) -> Certificate:
    """Certify by steps over fresh draws.

    :param before: at the state in question, over the fresh draws.
    :param after: where the steps have led, over the same draws.
    :param predicted: what is left after them, in nats.
    :param noise: of the draws, in nats.
    """
    if not (before.is_finite and after.is_finite):
        return UNKNOWN
    differences = after.values - before.values
    upper = upper_limit(differences, predicted, confidence)
    gap = float(differences.mean()) + predicted
    return Certificate(max(gap, 0.0), max(upper, 0.0), noise)
