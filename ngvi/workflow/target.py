"""A log density as a prior and elements, and its expectations under Gaussians."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from ngvi.inference.change import Change
from ngvi.workflow.expected import Expected, PointSites, PredictorSites, points
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.rows import ObservedRows, Predictors, WeightedTerms

#: From latent vectors ``(K, d)`` to values ``(K,)`` and gradients ``(K, d)``.
LogDensity = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class RestOfDensity:
    """All of a log density but its elements, and its expectations under Gaussians.

    :param log_density: its values and gradients.
    :param eps: the precision of these.
    :param terms: it as a sum of functions of one or two affine functions, if it is one.
    """

    def __init__(
        self, log_density: LogDensity, eps: float = 0.0, terms: WeightedTerms | None = None
    ) -> None:
        self._log_density, self._terms = log_density, terms
        self._affine = max(DEFAULTS.affine, DEFAULTS.rounding_units * eps)
        self._exact: tuple[np.ndarray, Expected] | None = None
        self._is_looked_at = False

    @classmethod
    def gaussian(cls, q: DenseGaussian) -> RestOfDensity:
        """Build one that is a Gaussian."""

        def log_density(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return q.log_prob(theta), (q.mean - theta) @ q.precision

        found = cls(log_density)
        value = float(q.log_prob(q.mean[None])[0])
        found._exact = q.mean, Expected(value, np.zeros(q.dim), q.precision)
        return found

    @property
    def is_by_points(self) -> bool:
        """True where expectations run the model, once the first of them are known."""
        return self._exact is None and self._terms is None

    def at(self, theta: np.ndarray) -> np.ndarray:
        """Return values at latent vectors ``(K, d)``, shape ``(K,)``."""
        return self._log_density(theta)[0]

    def under(self, q: DenseGaussian) -> Expected:
        """Return expectations: exact for a Gaussian, by quadrature of terms, or from points."""
        if self._exact is None and not self._is_looked_at:
            self._look(q if q.mean.ndim == 1 else q.take(0))
        if self._exact is not None:
            return self._of_quadratic(q)
        return self._by_points(q)[0] if self._terms is None else self._of_terms(q, self._terms)

    def _look(self, q: DenseGaussian) -> None:
        """Look whether it is a quadratic function, whose gradient is affine."""
        found, affine, size = self._by_points(q)
        self._is_looked_at = True
        if (np.abs(affine) <= self._affine * size).all():
            inside = 0.5 * ((found.curvature @ q.factor) * q.factor).sum()
            self._exact = q.mean, dataclasses.replace(found, value=found.value + inside)

    def _by_points(self, q: DenseGaussian) -> tuple[Expected, np.ndarray, np.ndarray]:
        """Return expectations, what is not affine of the gradients, and their sizes."""
        theta = q.sample(points(q.dim)[0])
        values, gradients = self._log_density(theta.reshape(-1, q.dim))
        values, gradients = values.reshape(theta.shape[:-1]), gradients.reshape(theta.shape)
        found, affine = Expected.by_points(q, values, gradients)
        return found, affine, np.abs(gradients).max(-2) + np.abs(found.gradient)

    def _of_terms(self, q: DenseGaussian, known: WeightedTerms) -> Expected:
        found = PredictorSites.under(known.predictors, q).total(known.weights)
        return dataclasses.replace(found, value=found.value + known.constant)

    def _of_quadratic(self, q: DenseGaussian) -> Expected:
        centre, at = self._exact  # type: ignore[misc]
        step = q.mean - centre
        pulled = step @ at.curvature
        value = at.value + step @ at.gradient - 0.5 * (step * pulled).sum(-1)
        value = value - 0.5 * ((at.curvature @ q.factor) * q.factor).sum((-1, -2))
        curvature = np.broadcast_to(at.curvature, (*q.mean.shape, q.dim))
        return Expected(value, at.gradient - pulled, curvature)


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A log density as a prior and elements.

    :param weights: how many times each counts, shape ``(M,)``.
    :param is_models_prior: whether the prior is the model's own.
    """

    rows: ObservedRows
    prior: RestOfDensity
    weights: np.ndarray
    predictors: Predictors | None
    is_models_prior: bool = True

    @classmethod
    def of(cls, rows: ObservedRows, q: DenseGaussian | None = None) -> Target:
        """Build the target of a model's log density.

        :param q: near which elements with kinks are told from smooth ones.
        """
        predictors, terms = rows.predictors() or (None, None)
        if predictors is not None and q is not None and not predictors.are_smooth(q):
            predictors = None
        if terms is not None and q is not None and not terms.predictors.are_smooth(q):
            terms = None

        def rest(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return rows.weighted(theta, np.zeros((len(theta), len(rows.weights))))

        prior = RestOfDensity(rest if terms is None else terms.at, rows.eps, terms)
        return cls(rows, prior, rows.weights, predictors)

    def changed(self, change: Change) -> Target:
        """Return it with another prior, and without rows that are left out."""
        new = dataclasses.replace(self, weights=change.kept(self.weights))
        if change.mean is None or change.factor is None:
            return new
        prior = RestOfDensity.gaussian(DenseGaussian(change.mean, change.factor))
        return dataclasses.replace(new, prior=prior, is_models_prior=False)

    def log_likelihood(self, theta: np.ndarray) -> np.ndarray:
        """Return log likelihoods at latent vectors ``(K, d)``, shape ``(K, M)``."""
        if self.predictors is not None:
            return self.predictors.values(self.predictors.at(theta))
        return self.rows.parts(theta)[0]

    def parts(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log likelihoods at latent vectors ``(K, d)``, and log densities.

        :return: shapes ``(K, M)`` and ``(K,)``.
        """
        values, rest = self.rows.parts(theta)
        rest = rest if self.is_models_prior else self.prior.at(theta)
        return values, rest + self.counted(values).sum(1)

    def counted(self, values: np.ndarray) -> np.ndarray:
        """Return log likelihoods as often as each counts; others may be infinite."""
        return np.where(self.weights > 0, values, 0.0) * self.weights

    def sites(self, q: DenseGaussian) -> PredictorSites | PointSites:
        """Return the sites of all elements under a Gaussian."""
        if self.predictors is not None:
            return PredictorSites.under(self.predictors, q)
        return PointSites.under(self.rows, q)

    def under(self, q: DenseGaussian, weights: np.ndarray) -> Expected:
        """Return the whole target's expectations, under one Gaussian or several.

        :param weights: how many times each element counts, shape ``(M,)``, or ``(U, M)``.
        """
        if self.predictors is not None:
            of_rows = PredictorSites.under(self.predictors, q).total(weights)
            return self.prior.under(q).plus(of_rows)
        noise, _ = points(q.dim)
        theta, shape = q.sample(noise), weights.shape[:-1]
        by_point = np.broadcast_to(weights[..., None, :], (*shape, len(noise), weights.shape[-1]))
        values, gradients = self.rows.weighted(
            theta.reshape(-1, q.dim),
            by_point.reshape(-1, weights.shape[-1]),
            float(self.is_models_prior),
        )
        values, gradients = values.reshape(*shape, -1), gradients.reshape(theta.shape)
        found, _ = Expected.by_points(q, values, gradients)
        return found if self.is_models_prior else self.prior.under(q).plus(found)


def num_of_sites(target: Target, q: DenseGaussian) -> int:
    """Return how many evaluations the sites of all elements take at most."""
    return 0 if target.predictors is not None else len(points(q.dim)[0]) * (q.dim + 1)


def depends(target: Target, q: DenseGaussian) -> np.ndarray:
    """Return which latents each element depends on, near the posterior, shape ``(M, d)``."""
    if target.predictors is not None:
        return (target.predictors.slopes != 0).any(0)
    noise, _ = points(q.dim)
    return (target.rows.jacobian(q.sample(noise[:2]))[1] != 0).any(0)
