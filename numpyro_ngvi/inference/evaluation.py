"""Computations of an objective, as pure functions of arrays that say what else they read.

Two fits of a model that does the same are two equal :class:`Evaluation`: what was traced and
compiled for the first one serves the second one.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi.estimators.table import EstimateCost
from ngvi.families.points import Points
from numpyro_ngvi import estimators as curvature
from numpyro_ngvi.estimators.moments import Draws
from numpyro_ngvi.inference.metric import flat, gradient_of
from numpyro_ngvi.inference.space import State, not_gaussian, posteriors
from numpyro_ngvi.tracing.traced import Operations

#: The rows of a subsampled plate, and the arrays among the model's arguments.
Data = tuple[jax.Array | None, list]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Programs of a log density; each is given the arrays that it holds first.

    :param density: of the latents by site, the state, the keys of guide and model, and the data.
    :param dims: of the latents by site.
    :param estimator: of groups, and with ``cost`` what one takes; neither matters to values.
    :param at_once: how many draws share a pass, with gradients and without.
    """

    density: Operations
    dims: tuple[tuple[str, int], ...]
    estimator: str
    cost: EstimateCost
    at_once: tuple[int, int]

    def one_group(
        self, held: list, state: State, points: Points, seed: jax.Array, data: Data
    ) -> tuple:
        """Return the bound, natural gradient, its dual, and the gradient of other parameters."""
        model_key, guide_key = random.split(random.key(seed))
        here = posteriors(state)
        keys = jnp.broadcast_to(guide_key, (len(points.weights),))
        points = curvature.PointsBySite(by_site(self.dims, points.noise), points.weights, keys)

        def log_density(latents: dict[str, jax.Array], others: State, key: jax.Array) -> jax.Array:
            return self.density(held, latents, {**state, **others}, key, model_key, data)

        evaluate = curvature.Differentiator(log_density, self.at_once[0], not_gaussian(state))
        estimate = curvature.make_estimator(self.estimator, self.cost)(evaluate, here, points)
        return _of_group(here, points, estimate)

    def some_values(
        self, held: list, state: State, theta: jax.Array, seed: jax.Array, data: Data
    ) -> jax.Array:
        """Return the log density at points ``(N, d)``."""
        model_key, guide_key = random.split(random.key(seed))
        keys = random.split(guide_key, len(theta))

        def value(one: tuple) -> jax.Array:
            latents = by_site(self.dims, one[0])
            return self.density(held, latents, state, one[1], model_key, data)

        return curvature.in_passes(value, (theta, keys), self.at_once[1])

    def some_points(
        self, held: list, state: State, theta: jax.Array, data: Data
    ) -> tuple[jax.Array, jax.Array]:
        """Return the log density at points ``(N, d)``, and its gradients."""

        def value(theta: jax.Array) -> jax.Array:
            latents, key = by_site(self.dims, theta), random.key(0)
            return self.density(held, latents, state, key, random.key(0), data)

        return jax.vmap(jax.value_and_grad(value))(theta)


@dataclasses.dataclass(frozen=True)
class GroupAverages:
    """Groups from the gradients at their points, which :meth:`Evaluation.some_points` has found.

    :param dims: of the latents by site.
    :param estimator: of groups, and with ``cost`` what one takes.
    """

    dims: tuple[tuple[str, int], ...]
    estimator: str
    cost: EstimateCost

    def group(self, state: State, points: Points, values: jax.Array, slopes: jax.Array) -> tuple:
        """Return what :meth:`Evaluation.one_group` does."""
        noise, found = (by_site(self.dims, part) for part in (points.noise, slopes))
        here, evaluate = posteriors(state), Draws(values, found, ())
        points = curvature.PointsBySite(noise, points.weights, points.weights)
        estimate = curvature.make_estimator(self.estimator, self.cost)(evaluate, here, points)
        return _of_group(here, points, estimate)


def _of_group(here: dict, points: curvature.PointsBySite, estimate: Any) -> tuple:
    """Return the bound, natural gradient, its dual, and the gradient of other parameters."""
    first = points.some(slice(len(estimate.values)))
    # Not finite, if a value is not: the search is to see it.
    gains = first.weights * (estimate.values - curvature.log_q(here, first.noise))
    value = jnp.sum(gains) / jnp.sum(first.weights)
    found = [estimate.directions[site] for site in here]
    of_direction = gradient_of(list(here.values()), found)
    return value, flat(found), of_direction, estimate.params


def by_site(dims: tuple[tuple[str, int], ...], vectors: jax.Array) -> dict[str, jax.Array]:
    """Return the parts of vectors ``(..., d)``, by site."""
    ends = np.cumsum([dim for _, dim in dims])[:-1]
    parts = jnp.split(vectors, ends, -1)
    return {site: part for (site, _), part in zip(dims, parts, strict=True)}
