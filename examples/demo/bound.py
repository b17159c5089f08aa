"""The bound of a logistic regression without Monte Carlo noise, and its exact optimum.

Only a yardstick for the demo: neither guide sees it. Under ``q = N(m, S)`` the linear
predictor of one loan is a scalar Gaussian, so that every expectation in the bound is a
one-dimensional integral, done here by Gauss-Hermite quadrature.
"""

from __future__ import annotations

import numpy as np

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
WEIGHTS = WEIGHTS / np.sqrt(2 * np.pi)


class ExactBound:
    """``E_q[log p(y, w)] + H(q)`` with ``w ~ N(0, prior_scale^2 I)``.

    :param X: design matrix, shape (n, d).
    :param y: responses 0 or 1, shape (n,).
    :param prior_scale: prior standard deviation of each weight.
    """

    def __init__(self, X: np.ndarray, y: np.ndarray, prior_scale: float) -> None:
        self.X, self.y = X.astype(np.float64), y.astype(np.float64)
        self.prior_precision = prior_scale**-2

    def value(self, mean: np.ndarray, covariance: np.ndarray) -> float:
        """The bound in nats."""
        predictor = self._predictor(mean, covariance)
        likelihood = self.y @ (self.X @ mean) - np.sum(np.logaddexp(0, predictor) @ WEIGHTS)
        dim, lam = len(mean), self.prior_precision
        prior = 0.5 * dim * np.log(lam / (2 * np.pi)) - 0.5 * lam * (
            mean @ mean + np.trace(covariance)
        )
        entropy = 0.5 * dim * (1 + np.log(2 * np.pi)) + 0.5 * np.linalg.slogdet(covariance)[1]
        return float(likelihood + prior + entropy)

    def optimum(
        self, max_steps: int = 100, is_diagonal: bool = False
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """The best bound of any Gaussian, with its mean and covariance.

        Iterates the conditions for an optimum, ``S^-1 = -E[hess]`` and ``E[grad] = 0``, by steps
        that are halved until the bound rises.

        :param is_diagonal: of any mean field, whose ``S^-1`` is the diagonal.
        """
        dim = self.X.shape[1]
        mean, covariance = np.zeros(dim), np.eye(dim)
        old = np.eye(dim)
        best = self.value(mean, covariance)
        for _ in range(max_steps):
            probability = 1 / (1 + np.exp(-self._predictor(mean, covariance)))
            expected = probability @ WEIGHTS
            curvature = (probability * (1 - probability)) @ WEIGHTS
            precision = (self.X.T * curvature) @ self.X + self.prior_precision * np.eye(dim)
            gradient = self.X.T @ (self.y - expected) - self.prior_precision * mean
            step = np.linalg.solve(precision, gradient)
            if is_diagonal:
                precision = np.diag(np.diag(precision))
            for length in 0.5 ** np.arange(30):
                trial = mean + length * step
                blend = old + length * (precision - old)
                inverse = np.linalg.inv(blend)
                value = self.value(trial, inverse)
                if value > best:
                    break
            else:
                break  # nothing raises it: the rest is rounding
            previous, best = best, value
            mean, covariance, old = trial, inverse, blend
            if best - previous < 1e-10:
                break
        return best, mean, covariance

    def _predictor(self, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
        # The linear predictor at each node: shape (n, nodes).
        scale = np.sqrt(np.sum(self.X @ covariance * self.X, 1))
        return (self.X @ mean)[:, None] + scale[:, None] * NODES
