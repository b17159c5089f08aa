"""What a Gaussian is worth: its bound, its k-hat, its means and sds against the reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ngvi.inference.pareto import smoothed_weights

from .bounds import BoundEvaluator
from .target import Target

# A history of a stock run has a hundred Gaussians: within 0.1 nats of the optimum, where it
# matters, the bound from so many quasi-random draws is right to 0.02.
HISTORY_DRAWS = 2**10


@dataclass(frozen=True)
class Score:
    """The worth of a Gaussian.

    :param bound: nats.
    :param bound_error: its standard error.
    :param pareto_k: of the importance weights of its draws.
    :param mean_error: the largest error of a posterior mean, in reference sds.
    :param sd_ratio: the sd, over the reference's, that is furthest off on a log scale.
    """

    bound: float
    bound_error: float
    pareto_k: float
    mean_error: float
    sd_ratio: float


class Scorer:
    """Scores Gaussians over the unconstrained vector of a target, always with the same draws."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.bound = BoundEvaluator(target)
        self._history_bound = BoundEvaluator(target, HISTORY_DRAWS, num_randomisations=1)

    def history_bound(self, mean: np.ndarray, cov: np.ndarray) -> float:
        """A quick estimate of the bound."""
        return self._history_bound(mean, cov).value

    def __call__(self, mean: np.ndarray, cov: np.ndarray) -> Score:
        """The score; k-hat and the errors are NaN where there is no bound."""
        bound = self.bound(mean, cov)
        if not np.isfinite(bound.value):
            return Score(*bound, np.nan, np.nan, np.nan)
        pareto_k = smoothed_weights(self.bound.log_ratios(mean, cov))[1]
        draws = self.target.parameters(self.bound.samples(mean, cov))
        reference_sd = np.sqrt(np.diag(self.target.reference.cov))
        mean_error = np.abs(draws.mean(axis=0) - self.target.reference.mean) / reference_sd
        sd_ratio = draws.std(axis=0) / reference_sd
        furthest = sd_ratio[np.abs(np.log(sd_ratio)).argmax()]
        return Score(*bound, pareto_k, float(mean_error.max()), float(furthest))
