"""Nearly separable logistic regressions, a long way for a search, whose bound is exact."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr

PRIOR_SD = 10.0


def simulated(design: str, num_rows: int, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A design matrix with an intercept, and responses of which few are on the wrong side."""
    rng = np.random.default_rng(seed)
    columns = rng.standard_normal((num_rows, dim - 1))
    if design == "correlated":
        for j in range(1, dim - 1):
            columns[:, j] = 0.9 * columns[:, j - 1] + np.sqrt(1 - 0.9**2) * columns[:, j]
    scales = np.exp(rng.uniform(-2, 2, dim - 1)) if design == "scaled" else np.ones(dim - 1)
    logits = columns @ rng.standard_normal(dim - 1)
    logits *= 6.0 / logits.std()
    y = rng.random(num_rows) < 1 / (1 + np.exp(-logits))
    return np.column_stack([np.ones(num_rows), columns * scales]), y.astype(float)


class Exact:
    """The bound for ``w ~ N(0, PRIOR_SD^2 I)``, by one-dimensional quadrature of each logit."""

    #: Nodes for a narrow logit, and for what a wide one's expectations add to those of a step.
    NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(50)
    LEGENDRE, OF_LEGENDRE = np.polynomial.legendre.leggauss(60)
    LOGITS = np.concatenate([20 * (LEGENDRE + 1), -20 * (LEGENDRE + 1)])

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self.X, self.y, self.precision = X, y, PRIOR_SD**-2

    def value(self, mean: np.ndarray, root: np.ndarray) -> float:
        """In nats, of ``N(mean, root root^T)``, the root triangular."""
        dim, (softplus, _, _) = len(mean), self._expectations(mean, root)
        prior = 0.5 * dim * np.log(self.precision / (2 * np.pi))
        prior -= 0.5 * self.precision * (mean @ mean + np.sum(root**2))
        entropy = 0.5 * dim * (1 + np.log(2 * np.pi)) + np.log(np.abs(np.diag(root))).sum()
        return float(self.y @ (self.X @ mean) - softplus.sum() + prior + entropy)

    def moments(self, mean: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``E[grad l]`` and ``E[hess l]``."""
        _, p, curvature = self._expectations(mean, root)
        gradient = self.X.T @ (self.y - p) - self.precision * mean
        return gradient, -(self.X.T * curvature) @ self.X - self.precision * np.eye(len(mean))

    def optimum(self, num_steps: int = 300) -> float:
        """The best bound of any Gaussian: Newton's steps in natural parameters, shortened."""
        dim = self.X.shape[1]
        mean, precision = np.zeros(dim), 100.0 * np.eye(dim)
        best = self.value(mean, _root(precision))
        for _ in range(num_steps):
            gradient, hessian = self.moments(mean, _root(precision))
            for rho in 0.5 ** np.arange(20):
                new = (1 - rho) * precision + rho * -hessian
                there = mean + rho * np.linalg.solve(new, gradient)
                value = self.value(there, _root(new))
                if value > best:
                    break
            else:
                return best
            gained, best, mean, precision = value - best, value, there, new
            if gained < 1e-6:
                return best
        return best

    def _expectations(self, mean: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, ...]:
        """Of ``log(1 + exp x)`` and its two derivatives, by row."""
        loc, scale = self.X @ mean, np.sqrt(np.sum((self.X @ root) ** 2, 1))
        results = np.empty((3, len(loc)))
        narrow = scale < 1.5
        x = loc[narrow, None] + scale[narrow, None] * self.NODES
        weights = self.WEIGHTS / self.WEIGHTS.sum()
        results[:, narrow] = [part @ weights for part in _logistic(x)]
        loc, scale = loc[~narrow], scale[~narrow]
        # What is left of a step function is narrow, and smooth on either side of zero.
        density = np.exp(-0.5 * ((self.LOGITS - loc[:, None]) / scale[:, None]) ** 2)
        density *= np.tile(20 * self.OF_LEGENDRE, 2) / (scale[:, None] * np.sqrt(2 * np.pi))
        softplus, p, curvature = _logistic(self.LOGITS)
        ratio = loc / scale
        step = loc * ndtr(ratio) + scale * np.exp(-0.5 * ratio**2) / np.sqrt(2 * np.pi)
        results[0, ~narrow] = step + density @ (softplus - np.maximum(self.LOGITS, 0))
        results[1, ~narrow] = ndtr(ratio) + density @ (p - (self.LOGITS > 0))
        results[2, ~narrow] = density @ curvature
        return tuple(results)


def _logistic(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    p = 0.5 * (1 + np.tanh(0.5 * x))
    return np.logaddexp(0, x), p, p * (1 - p)


def _root(precision: np.ndarray) -> np.ndarray:
    return np.linalg.inv(np.linalg.cholesky(precision)).T
