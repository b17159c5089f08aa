"""Expectations of single observations, and of a part of a log density, under Gaussians."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from ngvi.families.points import spherical_points
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.options import DEFAULTS
from ngvi.workflow.rows import ObservedRows, Predictors, curvature_of


@functools.lru_cache(maxsize=4)
def points(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noise ``(K, d)`` and weights ``(K,)``, always the same: exact for cubic functions."""
    rng, groups = np.random.default_rng(0), DEFAULTS.num_groups
    groups = max(groups, -(-DEFAULTS.min_points // (2 * dim + 1)))
    found = spherical_points(rng, dim, groups)
    noise = np.concatenate([group.noise for group in found])
    return noise, np.concatenate([group.weights for group in found]) / groups


@dataclasses.dataclass(frozen=True)
class Expected:
    """Expectations of a log density under a Gaussian or, with a leading axis, several."""

    value: Any
    gradient: np.ndarray  #: ``E[grad l]``, shape ``(d,)``.
    curvature: np.ndarray  #: ``-E[hess l]``, shape ``(d, d)``.

    @classmethod
    def by_points(
        cls, q: DenseGaussian, values: np.ndarray, gradients: np.ndarray
    ) -> tuple[Expected, np.ndarray]:
        """Estimate them from values and gradients at :func:`points`, by Stein's lemma.

        :param values: shape ``(K,)``.
        :param gradients: shape ``(K, d)``.
        :return: and what is left of the gradients beside affine ones, shape ``(K, d)``.
        """
        noise, weights = points(q.dim)
        gradient = weights @ gradients
        curvature = -np.swapaxes(weights[:, None] * gradients, -1, -2) @ (noise @ q.inverse)
        curvature = 0.5 * (curvature + np.swapaxes(curvature, -1, -2))
        steps = noise @ np.swapaxes(q.factor, -1, -2)
        rest = gradients - gradient[..., None, :] + steps @ curvature
        return cls(values @ weights, gradient, curvature), rest

    def plus(self, other: Expected) -> Expected:
        """Return the sum."""
        return Expected(
            self.value + other.value,
            self.gradient + other.gradient,
            self.curvature + other.curvature,
        )

    def take(self, index: Any) -> Expected:
        """Return expectations under some of several Gaussians."""
        return Expected(self.value[index], self.gradient[index], self.curvature[index])


@dataclasses.dataclass(frozen=True, eq=False)
class PredictorSites:
    """Expectations of elements that see one or two predictors: a few numbers each.

    Under several Gaussians there is an axis of them before the elements'.
    """

    predictors: Predictors
    means: np.ndarray  #: Means of the predictors, shape ``(P, M)``.
    spreads: np.ndarray  #: ``J C``, shape ``(P, M, d)``.
    value: np.ndarray
    gradient: np.ndarray  #: Gradients by predictor, shape ``(P, M)``.
    curvature: np.ndarray  #: Curvatures by two predictors, shape ``(P, P, M)``.

    @classmethod
    def under(cls, predictors: Predictors, q: DenseGaussian) -> PredictorSites:
        """Compute them by quadrature."""
        means, spreads = predictors.under(q)
        found = predictors.expected(means, spreads)
        gradient, curvature = np.array(found.first), curvature_of(found)
        return cls(predictors, means, spreads, np.asarray(found.value), gradient, curvature)

    def total(self, weights: np.ndarray) -> Expected:
        """Return the sum with these weights, of shape ``(M,)``."""
        # Of one element there is as much to do as it has predictors.
        used: Any = np.flatnonzero((weights != 0).reshape(-1, weights.shape[-1]).any(0))
        used = slice(None) if len(used) == weights.shape[-1] else used
        weights, slopes = weights[..., used], self.predictors.slopes[:, used]
        count, gradient, curvature = len(slopes), np.zeros(()), np.zeros(())
        for p in range(count):
            gradient = gradient + (weights * self.gradient[p][..., used]) @ slopes[p]
            for r in range(count):
                scaled = (weights * self.curvature[p, r][..., used])[..., None] * slopes[r]
                curvature = curvature + slopes[p].T @ scaled
        value = np.where(weights != 0, weights * self.value[..., used], 0.0).sum(-1)
        return Expected(value, gradient, curvature)

    def gradients(self) -> np.ndarray:
        """Return the gradients by element, shape ``(M, d)``."""
        return np.einsum("pm,pmd->md", self.gradient, self.predictors.slopes)


@dataclasses.dataclass(frozen=True, eq=False)
class PointSites:
    """Expectations of elements under one Gaussian, from gradients at points, by Stein's lemma."""

    value: np.ndarray
    gradient: np.ndarray  #: Shape ``(M, d)``.
    curvature: np.ndarray  #: Shape ``(M, d, d)``.

    @classmethod
    def under(cls, rows: ObservedRows, q: DenseGaussian) -> PointSites:
        noise, weights = points(q.dim)
        scores = noise @ q.inverse
        num = sum(site.size for site in rows.sites)
        value, gradient, curvature = (np.zeros((num, *[q.dim] * rank)) for rank in range(3))
        size = max(1, DEFAULTS.max_numbers // (num * q.dim))
        for start in range(0, len(noise), size):
            some = slice(start, start + size)
            values, jacobian = rows.jacobian(q.sample(noise[some]))
            value = value + weights[some] @ values
            weighted = np.moveaxis(weights[some, None, None] * jacobian, 0, -1)
            gradient = gradient + weighted.sum(-1)
            curvature -= weighted @ scores[some]
        return cls(value, gradient, 0.5 * (curvature + np.swapaxes(curvature, 1, 2)))

    def total(self, weights: np.ndarray) -> Expected:
        used = np.flatnonzero(weights)
        weights = weights[used]
        return Expected(
            weights @ self.value[used],
            weights @ self.gradient[used],
            np.tensordot(weights, self.curvature[used], 1),
        )

    def gradients(self) -> np.ndarray:
        return self.gradient


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnSites:
    """Expectations of elements from their values at draws, along their slopes at the mean.

    Exact in the limit of many draws for an element that sees one affine function of the latents.
    """

    slopes: np.ndarray  #: Scaled to the standard deviation 1, shape ``(M, d)``.
    first: np.ndarray  #: Expected derivatives along these, shape ``(M,)``.
    second: np.ndarray  #: Expected second derivatives, shape ``(M,)``.

    @classmethod
    def at(
        cls, rows: ObservedRows, q: DenseGaussian, theta: np.ndarray, values: np.ndarray
    ) -> DrawnSites:
        """Fit a parabola to each element's values, shape ``(K, M)``, at draws ``(K, d)``."""
        slopes = rows.jacobian(q.mean[None])[1][0]
        spread = np.linalg.norm(slopes @ q.factor, axis=1)
        is_seen = np.isfinite(values).all(0) & (spread > 0)
        slopes = np.where(is_seen[:, None], slopes, 0.0) / np.where(is_seen, spread, 1.0)[:, None]
        steps, seen = (theta - q.mean) @ slopes.T, np.where(is_seen, values, 0.0)
        bases = steps, steps**2 - (steps**2).mean(0)
        first, half = ((one * seen).sum(0) / np.maximum((one**2).sum(0), 1.0) for one in bases)
        return cls(slopes, first, 2.0 * half)

    def total(self, weights: np.ndarray) -> Expected:
        """Return the sum with these weights, of shape ``(M,)``; its value is not known."""
        used = np.flatnonzero(weights)
        slopes, weights = self.slopes[used], weights[used]
        curvature = -(weights * self.second[used] * slopes.T) @ slopes
        return Expected(np.nan, (weights * self.first[used]) @ slopes, curvature)


#: Expectations of all elements under one Gaussian.
ElementSites = PredictorSites | PointSites | DrawnSites
