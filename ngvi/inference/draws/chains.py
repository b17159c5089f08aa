"""Convergence of chains of draws: R-hat, effective draws, errors of standard deviations.

As in Vehtari et al. (2021), *Rank-normalization, folding, and localization: an improved R-hat*.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import scipy

#: Most numbers of a transform, for the memory's sake.
AT_ONCE = 2**22


def import_arviz() -> Any:
    """Return the library, which takes seconds to import."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ArviZ 0.23 announces ArviZ 1
            import arviz
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"This needs {error.name}: pip install {error.name}", name=error.name
        ) from error
    return arviz


def _in_blocks(function: Any) -> Any:
    """Apply a function of draws ``(chains, draws, d)`` to some of the last axis at a time."""

    @functools.wraps(function)
    def call(draws: np.ndarray) -> np.ndarray:
        at_once = max(1, AT_ONCE // max(draws[..., 0].size, 1))
        starts = range(0, draws.shape[2], at_once)
        found = [function(draws[..., start : start + at_once]) for start in starts]
        return np.concatenate(found) if found else np.empty(0)

    return call


@_in_blocks
def r_hat(draws: np.ndarray) -> np.ndarray:
    """Return R-hat of ranks, the larger one of bulk and tails; 1 for a constant.

    :param draws: shape ``(chains, draws, d)``.
    :return: shape ``(d,)``.
    """
    halves = _halves(draws)
    folded = abs(halves - np.median(halves, (0, 1)))
    found = np.maximum(*(_scale_reduction(_normal_scores(one)) for one in (halves, folded)))
    return np.where(np.ptp(draws, (0, 1)) == 0, 1.0, found)


@_in_blocks
def effective_draws(draws: np.ndarray) -> np.ndarray:
    """Return how many independent draws have as little noise in their mean.

    :param draws: shape ``(chains, draws, d)``.
    :return: shape ``(d,)``; all of them for a constant.
    """
    count, size = draws.shape[1], draws[..., 0].size
    # About the mean of all: about those of short chains, lags would be too small by ``1 / count``.
    transform = np.fft.rfft(draws - draws.mean((0, 1)), 2 * count, axis=1)
    products = np.fft.irfft(np.square(np.abs(transform)), 2 * count, axis=1)[:, :count].mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        lags = products * count / np.arange(count, 0, -1)[:, None] / products[0]
    # Sums of two lags are positive and fall for a reversible chain (Geyer, 1992).
    pairs = lags[: count // 2 * 2].reshape(-1, 2, lags.shape[1]).sum(1)
    is_noise = np.logical_or.accumulate(~(pairs > 0), 0)
    pairs = np.minimum.accumulate(np.where(is_noise, 0.0, pairs), 0)
    most = size * np.log10(size)
    found = np.minimum(size / np.maximum(2.0 * pairs.sum(0) - 1.0, 1e-9), most)
    return np.where(np.ptp(draws, (0, 1)) == 0, size, found)


def error_of_stddevs(draws: np.ndarray) -> np.ndarray:
    """Return the standard error of each standard deviation, relative to it; zero for a constant.

    :param draws: shape ``(chains, draws, d)``.
    :return: shape ``(d,)``.
    """
    squares = np.square(draws - draws.mean((0, 1)))
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = squares.std((0, 1)) / squares.mean((0, 1))
    return np.nan_to_num(0.5 * spread / np.sqrt(effective_draws(squares)), nan=0.0)


def _halves(draws: np.ndarray) -> np.ndarray:
    """Return both halves of each chain as chains."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _normal_scores(draws: np.ndarray) -> np.ndarray:
    rows = draws.reshape(-1, draws.shape[2])
    ranks = scipy.stats.rankdata(rows, axis=0)
    return scipy.special.ndtri((ranks - 0.375) / (len(rows) + 0.25)).reshape(draws.shape)


def _scale_reduction(draws: np.ndarray) -> np.ndarray:
    count = draws.shape[1]
    within, between = draws.var(1, ddof=1).mean(0), draws.mean(1).var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((count - 1) / count + between / within)
