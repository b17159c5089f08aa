"""A regression whose rows are numpy's: what the workflow asks of a model, without a PPL."""

from __future__ import annotations

import contextlib

import numpy as np
from scipy.special import expit

from ngvi.estimators.nodes import TermMoments
from ngvi.latents.layout import Plate
from ngvi.workflow.climb import climb
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.rows import Predictors, RowSite
from ngvi.workflow.target import Target
from ngvi.workflow.units import Units


class LogisticRows:
    """``y_i ~ Bernoulli(logits=x_i^T theta)``, with a prior ``N(0, 10^2)``."""

    def __init__(self, X, y, by_points=False, weights=None, prior_scale=10.0):
        self.prior_scale = prior_scale
        self.X, self.sign, self.by_points = X, 2.0 * y - 1.0, by_points
        self.factors, self.is_enumerated, self.eps = (), False, 1e-16
        self.weights = np.ones(len(y)) if weights is None else weights
        self.is_masked = np.zeros(len(y), bool)
        self.sites = (RowSite("y", (len(y),), (Plate("rows", len(y), 0),)),)

    running = staticmethod(contextlib.nullcontext)

    def parts(self, theta):
        rest = -0.5 * (theta**2).sum(1) / self.prior_scale**2
        return -np.logaddexp(0.0, -self.sign * (theta @ self.X.T)), rest

    def jacobian(self, theta):
        slopes = self.sign * expit(-self.sign * (theta @ self.X.T))
        return self.parts(theta)[0], slopes[..., None] * self.X

    def weighted(self, theta, weights, prior=1.0):
        values, slopes = self.jacobian(theta)
        value = (weights * values).sum(1) - 0.5 * prior * (theta**2).sum(1) / self.prior_scale**2
        slope = (weights[:, None] @ slopes)[:, 0]
        return value, slope - prior * theta / self.prior_scale**2

    def predictors(self):
        if self.by_points:
            return None

        def derivatives(at):
            p = expit(at[0])
            value = -np.logaddexp(0.0, -self.sign * at[0])
            return TermMoments(value, [0.5 * (self.sign + 1.0) - p], [-p * (1.0 - p)])

        offset = np.zeros((1, len(self.X)))
        return Predictors(offset, self.X[None], derivatives), None


def target(rows):
    """With the rows' prior."""
    return Target.of(rows)


def fitted(of):
    """The optimum of the bound."""
    dim = of.rows.X.shape[1]
    start = DenseGaussian(np.zeros(dim), np.eye(dim) + np.tri(dim, k=-1) / 100)  # not a mean field
    return climb(of, start, 1e-12).q


def units(rows):
    count = len(rows.X)
    return Units((("rows", count),), np.arange(count))


def logistic_data(separable=False):
    rng = np.random.default_rng(3)
    n, d, size = (60, 8, 4.0) if separable else (100, 5, 1.0)
    X, beta = rng.normal(size=(n, d)), rng.normal(size=d) * size
    return X, (rng.uniform(size=n) < expit(X @ beta)).astype(float)
