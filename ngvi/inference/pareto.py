"""Pareto smoothed importance sampling (Vehtari, Simpson, Gelman, Yao and Gabry, 2024, JMLR 25).

The largest weights are replaced by quantiles of a generalised Pareto distribution that is fitted to
them, whose shape ``k`` tells how many moments the weights have. The numbers are those of ``psislw``
of ArviZ 0, and what ArviZ 1 calls it depends on the version: these are 30 lines, and need neither.
"""

from __future__ import annotations

import math

import numpy as np

#: Fewer weights in a tail tell nothing of its shape.
MIN_TAIL = 5
#: The prior of Zhang and Stephens (2009, section 4) on the inverse scale, and that of Vehtari et
#: al. (2024, appendix C) on the shape: so many observations of one half.
SCALE_PRIOR, SHAPE_PRIOR, PRIOR_SHAPE = 3.0, 10.0, 0.5


def smoothed_weights(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto smoothed importance weights.

    :param log_weights: finite, shape ``(n,)``.
    :return: normalised logarithms of the smoothed weights, and the shape ``k`` of the tail;
        infinite if the tail is too short for an estimate, or of equal weights.
    """
    logs = np.asarray(log_weights, np.float64)
    logs, count = logs - logs.max(), len(logs)
    order = np.argsort(logs)
    size = math.ceil(min(count / 5.0, 3.0 * math.sqrt(count)))
    cutoff = logs[order[-size - 1]] if size < count else -math.inf
    cutoff = max(cutoff, math.log(np.finfo(float).tiny))
    tail = order[logs[order] > cutoff]
    shape = math.inf
    if len(tail) >= MIN_TAIL and logs[tail[0]] < logs[tail[-1]]:
        excesses = np.exp(logs[tail]) - math.exp(cutoff)
        shape, scale = fit_tail(excesses)
        if math.isfinite(shape) and scale > 0:
            order_statistics = (np.arange(len(tail)) + 0.5) / len(tail)
            found = np.log(quantiles(order_statistics, shape, scale) + math.exp(cutoff))
            logs[tail] = np.minimum(found, 0.0)  # never above the largest raw weight
    return logs - np.logaddexp.reduce(logs), shape


def fit_tail(excesses: np.ndarray) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution.

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
    """Of a generalised Pareto distribution."""
    exponential = -np.log1p(-probabilities)
    if abs(shape) < np.finfo(float).eps:
        return scale * exponential
    return scale * np.expm1(shape * exponential) / shape
