"""Leave-one-out densities by importance weights of a Gaussian's draws."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ngvi.inference.draws.pareto import EQUAL, USABLE, smoothed
from ngvi.inference.problem import VALUES_OF_A_GRADIENT
from ngvi.workflow.expected import DrawnSites, ElementSites, PredictorSites
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.target import Target
from ngvi.workflow.units import Units

#: PosteriorDraws of the posterior for each draw of a unit's cavity.
PART = 4


class PosteriorDraws(NamedTuple):
    """PosteriorDraws of a Gaussian, and what a target says at them."""

    theta: np.ndarray  #: Shape ``(K, d)``.
    of_units: np.ndarray  #: Log likelihoods of all units, shape ``(K, R)``.
    counted: np.ndarray  #: These as often as the posterior counts each.
    log_weights: np.ndarray  #: Importance weights of the posterior, shape ``(K,)``.
    is_gaussian: bool  #: Whether weights are of no use, and the Gaussian stands for the posterior.
    sites: ElementSites  #: Of all elements.

    @classmethod
    def of(cls, target: Target, q: DenseGaussian, units: Units, most: int) -> PosteriorDraws:
        """Draw them from ``q``, at most this many."""
        theta = q.sample(noise(q.dim, min(most, num_draws(target)), 0))
        values, log_p = target.parts(theta)
        log_weights = log_p - q.log_prob(theta)
        is_gaussian = not smoothed(log_weights).shape <= USABLE
        log_weights = np.zeros(len(theta)) if is_gaussian else log_weights
        of_units = units.sums(values), units.sums(target.counted(values))
        sites: ElementSites
        if target.predictors is not None:
            sites = PredictorSites.under(target.predictors, q)
        else:
            sites = DrawnSites.at(target.rows, q, theta, values)
        return cls(theta, *of_units, log_weights, is_gaussian, sites)

    @property
    def gradients(self) -> float:
        """The price of :meth:`under`, in gradients."""
        return len(self.theta) / PART / VALUES_OF_A_GRADIENT

    def lpd(self) -> np.ndarray:
        """Return log predictive densities given all units, shape ``(R,)``."""
        every = np.logaddexp.reduce(self.of_units + self.log_weights[:, None], 0)
        return every - np.logaddexp.reduce(self.log_weights)

    def without(self, unit: int, log_ratio: np.ndarray) -> float:
        """Return a unit's log predictive density by importance weights.

        The mean of ``1 / p(y_i | theta)`` is beside that of a Gaussian cavity's density over
        ``q``'s, which is known to be one and has nearly the same noise.

        :param log_ratio: of these densities at the draws.
        """
        used = np.isfinite(self.of_units[:, unit])
        of_rest = (self.log_weights - self.counted[:, unit])[used]
        return self._log_joint(unit) - _log_sum(of_rest) + _log_sum(log_ratio[used])

    def _log_joint(self, unit: int) -> float:
        """Return the log of the mean of ``p(theta | rest) p(y_i | theta) / q``."""
        own = self.of_units[:, unit]
        used = np.isfinite(own)
        logs = (self.log_weights - self.counted[:, unit] + own)[used]
        return _log_sum(logs) - np.log(len(self.theta))

    def under(
        self,
        target: Target,
        q: DenseGaussian,
        cavity: DenseGaussian,
        unit: int,
        elements: np.ndarray,
    ) -> tuple[float, float]:
        """Return a unit's log predictive density, and k-hat, by draws of a cavity.

        :param elements: the unit's.
        """
        theta = cavity.sample(noise(q.dim, len(self.theta) // PART, 1))
        values, log_p = target.parts(theta)
        log_p = q.log_prob(theta) if self.is_gaussian else log_p
        of_rest = log_p - target.counted(values)[:, elements].sum(1)
        value, shape = _log_average(of_rest - cavity.log_prob(theta))
        return self._log_joint(unit) - value, shape


def noise(dim: int, count: int, seed: int) -> np.ndarray:
    """Return noise and its opposite, shape ``(count, dim)``."""
    half = np.random.default_rng(seed).standard_normal((-(-count // 2), dim))
    return np.concatenate([half, -half])[:count]


def _log_average(log_weights: np.ndarray) -> tuple[float, float]:
    """``log mean w`` of smoothed weights, and k-hat; that of nearly equal ones is 0."""
    finite = log_weights[np.isfinite(log_weights)]
    if not len(finite):
        return -np.inf, np.inf
    weights, shape, _ = smoothed(finite)
    if finite.std() < EQUAL:
        return float(_log_sum(finite) - np.log(len(log_weights))), 0.0
    # The largest of the raw weights are what smoothing replaces: their sum changes with them.
    body = finite.argmin()
    scale = finite[body] - weights[body]
    return float(scale - np.log(len(log_weights))), float(shape)


def _log_sum(logs: np.ndarray) -> float:
    """``log sum exp``; numpy's own goes from one number to the next."""
    largest = logs.max()
    return float(np.log(np.exp(logs - largest).sum()) + largest)


def num_draws(target: Target) -> int:
    """Return the number of draws that the memory is enough for."""
    return max(min(DEFAULTS.num_joint, DEFAULTS.max_numbers // len(target.weights)), 1)


def psis_of(of_units: np.ndarray, log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """PSIS-LOO of each unit (Vehtari, Gelman and Gabry, 2017); k-hat, 0 where weights are equal.

    :param of_units: log likelihoods, shape ``(K, R)``; none for lack of memory.
    :param log_weights: of the posteriors without each unit, shape ``(K, R)``.
    """
    count = of_units.shape[1]
    values, shapes = np.full(count, np.nan), np.full(count, np.nan)
    for unit in range(count if len(of_units) else 0):
        used = np.isfinite(of_units[:, unit])
        if used.any():
            logs = log_weights[used, unit]
            weights, shape, _ = smoothed(logs)
            shapes[unit] = 0.0 if logs.std() < EQUAL else shape
            values[unit] = _log_sum(weights + of_units[used, unit])
    return values, shapes
