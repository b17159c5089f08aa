"""Whether chains of draws have come to the posterior: R-hat, effective draws, energy.

R-hat and the number of effective draws are those of ranks' normal scores, of halves of chains
(Vehtari, Gelman, Simpson, Carpenter and Buerkner, 2021, *Rank-normalization, folding, and
localization*, Bayesian Analysis 16); autocorrelations are cut off by Geyer's initial monotone
sequence. Of the energy there is Betancourt's fraction of missing information (2016).
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata


def r_hat(draws: np.ndarray) -> np.ndarray:
    """The larger one of bulk and tails; 1 where a number is the same in all draws.

    :param draws: shape ``(chains, draws, d)``.
    :return: shape ``(d,)``.
    """
    halves = _halves(draws)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    return np.maximum(_r_hat(_normal_scores(halves)), _r_hat(_normal_scores(folded)))


def effective_draws(draws: np.ndarray) -> np.ndarray:
    """How many independent draws have as little noise in the bulk.

    :param draws: shape ``(chains, draws, d)``.
    :return: shape ``(d,)``; all of them where a number is the same in all draws.
    """
    scores = _normal_scores(_halves(draws))
    num_chains, count, dim = scores.shape
    within, total = _variances(scores)
    # Autocovariances by FFT, padded so that the ends do not meet.
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.fft.rfft(scores - scores.mean(1, keepdims=True), size, axis=1)
    covariances = np.fft.irfft(np.abs(spectrum) ** 2, size, axis=1)[:, :count].mean(0) / count
    with np.errstate(divide="ignore", invalid="ignore"):
        correlations = 1.0 - (within - covariances * count / (count - 1)) / total
    correlations[0] = 1.0
    pairs = correlations[: count // 2 * 2].reshape(-1, 2, dim).sum(1)
    # Sums of pairs are positive and fall; where the first is not positive, noise begins.
    is_kept = np.logical_and.accumulate(pairs > 0, axis=0)
    pairs = np.minimum.accumulate(np.where(is_kept, pairs, 0.0), axis=0)
    time = np.maximum(2.0 * pairs.sum(0) - 1.0, 1.0 / np.log10(num_chains * count))
    return np.where(total > 0, num_chains * count / time, float(num_chains * count))


def error_of_stddevs(draws: np.ndarray) -> np.ndarray:
    """The standard error of each standard deviation, as a part of it.

    Squares have their own number of effective draws, and heavy tails a large variance of squares.

    :param draws: shape ``(chains, draws, d)``.
    :return: shape ``(d,)``; zero where a number is the same in all draws.
    """
    squares = np.square(draws - draws.mean((0, 1)))
    means = squares.mean((0, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = 0.5 * squares.std((0, 1)) / means / np.sqrt(effective_draws(squares))
    return np.where(means > 0, errors, 0.0)


def energy_information(energy: np.ndarray) -> float:
    """E-BFMI of the worst chain: how much of the energy's variance one transition can change.

    :param energy: of each transition, shape ``(chains, draws)``.
    """
    changes = np.square(np.diff(energy, axis=1)).mean(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.min(changes / energy.var(1)))


def _halves(draws: np.ndarray) -> np.ndarray:
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, -half:]])


def _normal_scores(draws: np.ndarray) -> np.ndarray:
    num_chains, count, dim = draws.shape
    ranks = rankdata(draws.reshape(-1, dim), axis=0)
    return ndtri((ranks - 0.375) / (num_chains * count + 0.25)).reshape(draws.shape)


def _variances(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Within chains, and of all together."""
    count = draws.shape[1]
    within = draws.var(1, ddof=1).mean(0)
    return within, within * (count - 1) / count + draws.mean(1).var(0, ddof=1)


def _r_hat(draws: np.ndarray) -> np.ndarray:
    within, total = _variances(draws)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, np.sqrt(total / within), 1.0)
