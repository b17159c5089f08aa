"""Natural gradients of single observations' expected log likelihoods: *sites*.

At an optimum of the bound ``E_q[log p(y, theta)] + H(q)`` the precision of ``q`` is
``-E_q[hess log p]``, and zero is ``E_q[grad log p]`` (Khan and Rue, 2023, equations 15 to 17). Both
are sums over observations and the prior. The natural coordinates of a Gaussian are ``Sigma^-1 mu``
and ``Sigma^-1`` (times minus one half): the site of a term ``l`` adds
``E_q[grad l] - E_q[hess l] mu`` to the one and ``-E_q[hess l]`` to the other.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ngvi.families.points import spherical_points
from ngvi.inference.change import Change
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.rows import ObservedRows, Predictors, curvature_of
from ngvi.workflow.units import Units

#: From latent vectors ``(K, d)`` to values ``(K,)`` and gradients ``(K, d)``.
LogDensity = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@functools.lru_cache(maxsize=4)
def points(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Noise ``(K, d)`` and weights ``(K,)``, always the same: exact for cubic functions."""
    rng, groups = np.random.default_rng(0), DEFAULTS.num_groups
    groups = max(groups, -(-DEFAULTS.min_points // (2 * dim + 1)))
    found = spherical_points(rng, dim, groups)
    noise = np.concatenate([group.noise for group in found])
    return noise, np.concatenate([group.weights for group in found]) / groups


@dataclasses.dataclass(frozen=True)
class Expected:
    """Of a log density or of a part of it, under a Gaussian."""

    value: float
    gradient: np.ndarray  #: ``E[grad l]``, shape ``(d,)``
    curvature: np.ndarray  #: ``-E[hess l]``, shape ``(d, d)``


class ElementSites(Protocol):
    """Of all elements, under one Gaussian.

    :ivar value: expected log likelihoods, shape ``(M,)``.
    """

    value: np.ndarray

    def total(self, weights: np.ndarray) -> Expected:
        """Their sum, each so many times; shape ``(M,)``."""

    def gradients(self) -> np.ndarray:
        """By element, shape ``(M, d)``."""


@dataclasses.dataclass(frozen=True, eq=False)
class PredictorSites:
    """Of elements that see one or two predictors: a few numbers each."""

    predictors: Predictors
    means: np.ndarray  #: of the predictors, shape ``(P, M)``
    spreads: np.ndarray  #: ``J C``, shape ``(P, M, d)``
    value: np.ndarray
    gradient: np.ndarray  #: by predictor, shape ``(P, M)``
    curvature: np.ndarray  #: by two predictors, shape ``(P, P, M)``

    @classmethod
    def under(cls, predictors: Predictors, q: DenseGaussian) -> PredictorSites:
        """By quadrature."""
        means, spreads = predictors.under(q)
        found = predictors.expected(means, spreads)
        gradient, curvature = np.array(found.first), curvature_of(found)
        return cls(predictors, means, spreads, np.asarray(found.value), gradient, curvature)

    def total(self, weights: np.ndarray) -> Expected:
        slopes, count = self.predictors.slopes, self.predictors.count
        gradient = sum((weights * self.gradient[p]) @ slopes[p] for p in range(count))
        curvature: np.ndarray = np.zeros((slopes.shape[-1],) * 2)
        for p in range(count):
            for r in range(count):
                scaled = (weights * self.curvature[p, r])[:, None] * slopes[r]
                curvature = curvature + slopes[p].T @ scaled
        used = weights != 0
        value = float(weights[used] @ self.value[used])
        return Expected(value, np.asarray(gradient), curvature)

    def gradients(self) -> np.ndarray:
        return np.einsum("pm,pmd->md", self.gradient, self.predictors.slopes)


@dataclasses.dataclass(frozen=True, eq=False)
class PointSites:
    """Of any elements, from their gradients at points, by Stein's lemma."""

    value: np.ndarray
    gradient: np.ndarray  #: shape ``(M, d)``
    curvature: np.ndarray  #: shape ``(M, d, d)``

    @classmethod
    def under(cls, rows: ObservedRows, q: DenseGaussian) -> PointSites:
        noise, weights = points(q.dim)
        scores = noise @ q.inverse
        num = sum(site.size for site in rows.sites)
        value, gradient, curvature = (np.zeros((num, *[q.dim] * rank)) for rank in range(3))
        size = max(1, DEFAULTS.numbers_at_once // (num * q.dim))
        for start in range(0, len(noise), size):
            some = slice(start, start + size)
            values, jacobian = rows.jacobian(q.sample(noise[some]))
            value = value + weights[some] @ values
            weighted = weights[some, None, None] * jacobian
            gradient = gradient + weighted.sum(0)
            curvature = curvature - np.einsum("kmd,ke->mde", weighted, scores[some])
        return cls(value, gradient, 0.5 * (curvature + np.swapaxes(curvature, 1, 2)))

    def total(self, weights: np.ndarray) -> Expected:
        used = weights != 0
        return Expected(
            float(weights[used] @ self.value[used]),
            weights @ self.gradient,
            np.tensordot(weights, self.curvature, 1),
        )

    def gradients(self) -> np.ndarray:
        return self.gradient


class RestOfDensity:
    """All of a log density but its elements, and its expectations under Gaussians.

    :param log_density: its values and gradients.
    :param eps: the precision of these.
    """

    def __init__(self, log_density: LogDensity, eps: float = 0.0) -> None:
        self._log_density = log_density
        self._affine = max(DEFAULTS.affine, DEFAULTS.rounding_units * eps)
        self._exact: tuple[np.ndarray, Expected] | None = None

    @classmethod
    def gaussian(cls, q: DenseGaussian) -> RestOfDensity:
        """That is a Gaussian."""

        def log_density(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            return q.log_prob(theta), (q.mean - theta) @ q.precision

        found = cls(log_density)
        value = float(q.log_prob(q.mean[None])[0])
        found._exact = q.mean, Expected(value, np.zeros(q.dim), q.precision)
        return found

    def under(self, q: DenseGaussian) -> Expected:
        """Exact for a Gaussian prior, which is recognised; otherwise from points."""
        if self._exact is not None:
            return self._of_quadratic(q)
        noise, weights = points(q.dim)
        theta = q.sample(noise)
        values, gradients = self._log_density(theta)
        gradient = weights @ gradients
        curvature = -(weights[:, None] * gradients).T @ (noise @ q.inverse)
        curvature = 0.5 * (curvature + curvature.T)
        affine = gradients - gradient + (theta - q.mean) @ curvature
        size = np.abs(gradients).max(0) + np.abs(gradient)
        value = float(weights @ values)
        if (np.abs(affine) <= self._affine * size).all():
            inside = 0.5 * ((curvature @ q.factor) * q.factor).sum()
            self._exact = q.mean, Expected(float(value + inside), gradient, curvature)
        return Expected(value, gradient, curvature)

    def _of_quadratic(self, q: DenseGaussian) -> Expected:
        centre, at = self._exact  # type: ignore[misc]
        step = q.mean - centre
        pulled = at.curvature @ step
        value = at.value + at.gradient @ step - 0.5 * step @ pulled
        value = value - 0.5 * ((at.curvature @ q.factor) * q.factor).sum()
        return Expected(float(value), at.gradient - pulled, at.curvature)


@dataclasses.dataclass(frozen=True, eq=False)
class Target:
    """A log density as a prior and elements.

    :param weights: how many times each counts, shape ``(M,)``.
    """

    rows: ObservedRows
    prior: RestOfDensity
    weights: np.ndarray
    predictors: Predictors | None

    @classmethod
    def of(
        cls,
        rows: ObservedRows,
        total: LogDensity,
        q: DenseGaussian | None = None,
    ) -> Target:
        """Of a model's log density.

        :param total: of prior and elements together.
        :param q: near which elements with kinks are told from smooth ones.
        """
        predictors = rows.predictors()
        if predictors is not None and q is not None and not predictors.are_smooth(q):
            predictors = None
        weights = rows.weights

        def rest(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            values, gradients = total(theta)
            if predictors is None:
                found = [rows.jacobian(one[None]) for one in theta]
                own = np.concatenate([value @ weights for value, _ in found])
                slopes = np.concatenate([weights @ jacobian for _, jacobian in found])
                return values - own, gradients - slopes
            moments = predictors.derivatives(predictors.at(theta))
            pairs = zip(moments.first, predictors.slopes, strict=True)
            own = moments.value @ weights
            return values - own, gradients - sum((weights * f) @ s for f, s in pairs)

        return cls(rows, RestOfDensity(rest, rows.eps), weights, predictors)

    def changed(self, change: Change) -> Target:
        """With another prior, and without rows that are left out."""
        new = self.without(change.left_out)
        if change.mean is None or change.factor is None:
            return new
        prior = RestOfDensity.gaussian(DenseGaussian(change.mean, change.factor))
        return dataclasses.replace(new, prior=prior)

    def log_likelihood(self, theta: np.ndarray) -> np.ndarray:
        """Of all elements at latent vectors ``(K, d)``, shape ``(K, M)``."""
        if self.predictors is not None:
            return self.predictors.values(self.predictors.at(theta))
        return self.rows.log_likelihood(theta)

    def without(self, elements: np.ndarray | int) -> Target:
        """The same without some elements."""
        weights = self.weights.copy()
        weights[elements] = 0.0
        return dataclasses.replace(self, weights=weights)

    def sites(self, q: DenseGaussian) -> PredictorSites | PointSites:
        """Of all elements under a Gaussian."""
        if self.predictors is not None:
            return PredictorSites.under(self.predictors, q)
        return PointSites.under(self.rows, q)

    def under(self, q: DenseGaussian) -> Expected:
        """The whole target's."""
        of_prior, of_rows = self.prior.under(q), self.sites(q).total(self.weights)
        return Expected(
            of_prior.value + of_rows.value,
            of_prior.gradient + of_rows.gradient,
            of_prior.curvature + of_rows.curvature,
        )


@dataclasses.dataclass(frozen=True)
class Steps:
    """Where natural-gradient steps have led."""

    q: DenseGaussian
    bound: float
    gain: float  #: of the last step, in nats
    left: float  #: what half of the squared natural gradient's length says is left, in nats
    count: int


def climb(target: Target, q: DenseGaussian, num_steps: int, left: float) -> Steps | None:
    """Natural-gradient steps, of the Bayesian learning rule.

    ``S <- (1 - rho) S - rho E[hess l]``, ``mu <- mu + rho S^-1 E[grad l]``, with the new ``S``.
    ``rho`` is 1, halved until the bound does not fall. Only what the Gaussian's family has of a
    Hessian counts. None where no step leads to a Gaussian: the target may be improper.

    :param left: nats that are left to gain at most, or so many steps have been taken.
    """
    start, at, gain, count = q, target.under(q), np.inf, 0
    bound = at.value + q.entropy()
    remaining = _left(q, at)
    while count < num_steps and not remaining <= left:
        rho, found = 1.0, None
        for _ in range(DEFAULTS.num_halvings):
            new = _step(q, at, rho)
            if new is not None:
                there = target.under(new)
                value = there.value + new.entropy()
                if value >= bound - 1e-9 * abs(bound):
                    found = new, there, value
                    break
            rho *= 0.5
        if found is None:
            break
        gain, count = found[2] - bound, count + 1
        q, at, bound = found
        remaining = _left(q, at)
    # Where the target has no curvature at the end there is no Gaussian to go on to.
    white = start.factor.T @ q.within(at.curvature) @ start.factor
    if not np.isfinite(remaining) or np.linalg.eigvalsh(white)[0] < DEFAULTS.least_precision:
        return None
    return Steps(q, bound, gain, remaining, count)


def polished(target: Target, q: DenseGaussian) -> DenseGaussian:
    """At the optimum that a fit is near: sites are only there the posterior's parts."""
    steps = climb(target, q, DEFAULTS.polish_steps, DEFAULTS.polish_left)
    return steps.q if steps is not None and steps.left < DEFAULTS.tolerance else q


def _step(q: DenseGaussian, at: Expected, rho: float) -> DenseGaussian | None:
    precision = (1.0 - rho) * q.precision + rho * q.within(at.curvature)
    try:
        new = DenseGaussian.of_precision(q.mean, precision)
    except np.linalg.LinAlgError:
        return None
    shift = new.factor @ (new.factor.T @ at.gradient)
    return dataclasses.replace(new, mean=q.mean + rho * shift)


def _left(q: DenseGaussian, at: Expected) -> float:
    """Half of the squared Fisher length of the natural gradient, in nats."""
    pulled = q.factor.T @ at.gradient
    white = q.factor.T @ q.within(at.curvature) @ q.factor - np.eye(q.dim)
    return float(0.5 * (pulled @ pulled) + 0.25 * (white**2).sum())


def depends(target: Target, q: DenseGaussian) -> np.ndarray:
    """Which latents each element depends on, near the posterior; shape ``(M, d)``."""
    if target.predictors is not None:
        return (target.predictors.slopes != 0).any(0)
    noise, _ = points(q.dim)
    return (target.rows.jacobian(q.sample(noise[:2]))[1] != 0).any(0)


@dataclasses.dataclass(frozen=True, eq=False)
class Sites:
    """What each row, and the prior, adds to the posterior's natural parameters.

    These are ``Sigma^-1 mu`` and ``Sigma^-1``, of the unconstrained latent vector. Of a family that
    is not dense only its part of a precision counts.

    :ivar units: which observations are a row.
    :ivar gradient: ``E[grad l]`` of each row, shape ``(R, d)``.
    :ivar prior: of all of the log density that is no row.
    """

    units: Units
    gradient: np.ndarray
    prior: Expected
    _q: DenseGaussian
    _elements: PredictorSites | PointSites
    _weights: np.ndarray

    @classmethod
    def of(cls, target: Target, q: DenseGaussian, units: Units) -> Sites:
        """Of a target under a Gaussian."""
        elements = target.sites(q)
        by_element = target.weights[:, None] * elements.gradients()
        gradient = units.sums(by_element.T).T
        return cls(units, gradient, target.prior.under(q), q, elements, target.weights)

    def __len__(self) -> int:
        return self.units.count

    def __repr__(self) -> str:
        names = " and ".join(f"{size} of plate '{name}'" for name, size in self.units.plates)
        return f"Sites({names}, {self._q.dim} latents)"

    @property
    def predictors(self) -> PredictorSites | None:
        """Where each observation sees one or two affine functions of the latents, by these.

        ``means`` (shape ``(P, M)``), ``gradient`` and ``curvature`` (``(P, P, M)``) are of the
        predictors ``predictors.slopes @ theta + predictors.offset``.
        """
        return self._elements if isinstance(self._elements, PredictorSites) else None

    def precision(self, row: int) -> np.ndarray:
        """``-E[hess l]`` of one row, what it adds to the precision; shape ``(d, d)``."""
        weights = np.where(self.units.of_element == row, self._weights, 0.0)
        return self._q.within(self._elements.total(weights).curvature)

    def shift(self, row: int) -> np.ndarray:
        """What one row adds to ``Sigma^-1 mu``; shape ``(d,)``."""
        return self.gradient[row] + self.precision(row) @ self._q.mean

    def total(self) -> tuple[np.ndarray, np.ndarray]:
        """The sums over all rows and the prior: ``Sigma^-1 mu`` and ``Sigma^-1`` at an optimum."""
        of_rows = self._elements.total(self._weights)
        precision = self._q.within(self.prior.curvature + of_rows.curvature)
        gradient = self.prior.gradient + of_rows.gradient
        return gradient + precision @ self._q.mean, precision
