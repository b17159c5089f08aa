"""The tail of a set of positive numbers, as a generalised Pareto distribution.

The largest numbers are replaced by quantiles of the distribution fitted to them. Its shape ``k``
says which moments exist: those of order below ``1 / k`` (Vehtari, Simpson, Gelman, Yao and Gabry,
2024, JMLR 25). The distribution also estimates how much of the sum is missing, because numbers that
are larger and rarer than any observed one contribute to the mean.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np

#: The prior of Zhang and Stephens (2009, section 4) on the inverse scale, and that of Vehtari et
#: al. (2024, appendix C) on the shape: this many observations of one half.
SCALE_PRIOR, SHAPE_PRIOR, PRIOR_SHAPE = 3.0, 10.0, 0.5


#: Up to this ``k`` smoothed weights can be trusted (Vehtari et al., 2024), if no more is known.
USABLE = 0.7
#: Standard deviation of ``log w``, or its rounding, in nats, that is as good as none.
EQUAL = 0.05
#: Standard errors of ``k`` with which it is asked what is missing: an estimate's, and a limit's.
ERRORS_OF_K = 0.0, 1.0
#: Fewest numbers that tell the shape of a tail, as in ``psislw`` of ArviZ.
LEAST = 5


class Tail(NamedTuple):
    """Positive numbers whose tail has been smoothed."""

    log_values: np.ndarray  #: Logarithms of numbers that add up to one, ``(n,)``.
    #: ``k``; infinite if there are too few for an estimate, or of equal numbers.
    shape: float
    #: Part that the tail holds beyond the largest of them, relative to the sum of all, with as many
    #: standard errors of ``k`` more as :data:`ERRORS_OF_K` says; infinite from a ``k`` of one on.
    missing: np.ndarray


def smoothed(log_values: np.ndarray, most: int = sys.maxsize) -> Tail:
    """Return the largest of some numbers as a generalised Pareto distribution has them.

    :param log_values: finite or minus infinity, shape ``(n,)``.
    :param most: numbers of the tail.
    """
    logs = np.asarray(log_values, np.float64)
    logs, count = logs - logs.max(), len(logs)
    first = max(count - min(tail_size(count), most) - 1, 0)  # of the largest, only they are sorted
    tail = np.argpartition(logs, first)[first:]
    tail = tail[np.argsort(logs[tail])]
    cutoff = logs[tail[0]] if first else -math.inf
    cutoff = max(cutoff, math.log(np.finfo(float).tiny))
    tail = tail[logs[tail] > cutoff]
    shape, missing = math.inf, np.full(len(ERRORS_OF_K), math.inf)
    if len(tail) >= LEAST and logs[tail[0]] < logs[tail[-1]]:
        least = math.exp(cutoff)
        shape, scale = fit_tail(np.exp(logs[tail]) - least)
        if math.isfinite(shape) and scale > 0:
            logs[tail] = np.log(_quantiles_of(len(tail), shape, scale, least))
            error = error_of_k(shape, len(tail))
            shapes = [shape + times * error for times in ERRORS_OF_K]
            beyond = [_beyond(len(tail), one, scale, least) for one in shapes]
            missing = np.array(beyond) / np.exp(logs).sum()
    return Tail(logs - math.log(np.exp(logs).sum()), shape, missing)  # none is above zero


def _quantiles_of(count: int, shape: float, scale: float, least: float) -> np.ndarray:
    """Return this many quantiles, none above the largest number, which is one."""
    order_statistics = (np.arange(count) + 0.5) / count
    return np.minimum(quantiles(order_statistics, shape, scale) + least, 1.0)


def _beyond(count: int, shape: float, scale: float, least: float) -> float:
    """Return what the mean of the distribution has more than this many of its quantiles."""
    if shape >= 1.0:
        return math.inf
    whole = count * (least + scale / (1.0 - shape))
    return max(whole - float(_quantiles_of(count, shape, scale, least).sum()), 0.0)


def error_of_k(pareto_k: float, num_tail: int) -> float:
    """Return the standard error of a k-hat that is drawn to its prior.

    That of maximum likelihood is ``(1 + k) / sqrt(m)`` (Smith, 1987).

    :param num_tail: ``m``, numbers in the tail.
    """
    if not math.isfinite(pareto_k):
        return 0.0
    return max(1.0 + pareto_k, 0.0) * math.sqrt(num_tail) / (num_tail + SHAPE_PRIOR)


def tail_size(count: int) -> int:
    """Return how many of some numbers are their tail."""
    return math.ceil(min(count / 5.0, 3.0 * math.sqrt(count)))


def fit_tail(excesses: np.ndarray) -> tuple[float, float]:
    """Return shape and scale of a generalised Pareto distribution.

    The posterior mean of ``b = -k / sigma`` on a grid, where the likelihood has been maximised over
    the rest (Zhang and Stephens, 2009), and ``k`` at that mean, drawn to one half.

    :param excesses: positive, in ascending order, shape ``(m,)``.
    :return: ``k``, positive for heavy tails, and ``sigma``; NaN if there is no estimate.
    """
    count = len(excesses)
    size = 30 + int(math.sqrt(count))
    quartile = excesses[int(count / 4 + 0.5) - 1]
    with np.errstate(all="ignore"):
        grid = 1.0 - np.sqrt(size / (np.arange(size) + 0.5))
        grid = grid / (SCALE_PRIOR * quartile) + 1.0 / excesses[-1]
        shapes = np.log1p(-grid[:, None] * excesses).mean(1)
        likelihoods = count * (np.log(-grid / shapes) - shapes - 1.0)
        weights = 1.0 / np.exp(likelihoods - likelihoods[:, None]).sum(1)
        used = weights >= 10.0 * np.finfo(float).eps
        inverse = float(grid[used] @ (weights[used] / weights[used].sum()))
        shape = float(np.log1p(-inverse * excesses).mean())
        scale = -shape / inverse if inverse else math.nan
    return (count * shape + SHAPE_PRIOR * PRIOR_SHAPE) / (count + SHAPE_PRIOR), scale


def quantiles(probabilities: np.ndarray, shape: float, scale: float) -> np.ndarray:
    """Return quantiles of a generalised Pareto distribution."""
    exponential = -np.log1p(-probabilities)
    if abs(shape) < np.finfo(float).eps:
        return scale * exponential
    return scale * np.expm1(shape * exponential) / shape
