"""What a fit evaluates: the bound with its natural gradient, in one program for all groups."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi.curvature import CURVATURES_OF_FIT, check_curvature, choose, points_at_once
from ngvi.fit.engine import Direction, Draws, Measured
from ngvi.fit.groups import Groups
from ngvi.points import Points
from numpyro_ngvi import curvature
from numpyro_ngvi.families.coordinates import families_in
from numpyro_ngvi.fit.geometry import covector, flat
from numpyro_ngvi.fit.importance import subsampled_plate
from numpyro_ngvi.fit.parameters import Parameters, Place, ordinary, posteriors
from numpyro_ngvi.tracing import LogDensity, hessian_obstacle
from numpyro_ngvi.tracing.arguments import Arguments
from numpyro_ngvi.tracing.compilation import compiled


class Evaluator:
    """Runs a model with a guide; see :class:`ngvi.fit.engine.Evaluator`.

    :param model: a NumPyro model.
    :param guide: a guide with one or more ``NaturalGaussianGuide``.
    :param parameters: of both.
    :param kind: one of :data:`ngvi.curvature.CURVATURES_OF_FIT`.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        parameters: Parameters,
        kind: str = "auto",
    ) -> None:
        check_curvature(kind, CURVATURES_OF_FIT)
        self.model, self.guide, self._parameters = model, guide, parameters
        self._arguments = Arguments(args, kwargs)
        products = max(curvature.num_products(family) for family in families_in(parameters.initial))
        dim = parameters.dim
        obstacle = functools.partial(self._obstacle, args, kwargs)
        kind = choose(kind, dim, products, obstacle).curvature
        data_size = max((np.size(array) for array in self._arguments.arrays), default=1)
        groups = Groups.of(kind, dim, products, data_size)
        self.draws, self._cost = groups.draws, groups.cost
        self._estimator = curvature.make_estimator(kind, self._cost, points_at_once(data_size))
        self.num_gradients = self.num_hessian_products = 0
        self._group = compiled(self._one_group)
        self._point = compiled(self._one_point)
        start = parameters.constrain(ordinary(parameters.initial))
        self.is_subsampled = subsampled_plate(model, start, args, kwargs) is not None

    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        """The bound and its natural gradient; not finite where the model is not."""
        self.num_gradients += len(draws) * self._cost.num_gradients
        self.num_hessian_products += len(draws) * self._cost.num_products
        dtype, found = self._parameters.dtype, []
        for group in draws:
            points = Points(*(part.astype(dtype) for part in group.points))
            found.append(self._compiled(self._group, place, points, np.uint32(group.seed)))
        values, vectors, covectors, gradients = zip(*jax.device_get(found), strict=True)
        vectors = np.stack(vectors)
        leaves = zip(*map(jax.tree.leaves, gradients), strict=True)
        mean = Direction(
            vectors.mean(0),
            sum(covectors) / len(draws),
            [sum(leaf) / len(draws) for leaf in leaves],
        )
        return Measured(np.array(values, float), vectors, mean)

    def value_and_gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """The log density and its gradient at one vector of all latents, shape ``(d,)``."""
        self.num_gradients += 1
        value, gradient = self._compiled(self._point, theta.astype(self._parameters.dtype))
        return float(value), np.asarray(gradient, float)

    def _compiled(self, function: Callable, *inputs: Any) -> Any:
        try:
            return function(*inputs, self._arguments.arrays)
        except (TypeError, ValueError, IndexError):
            if not self._arguments.arrays:
                raise
            self._arguments.hold_constant()  # the model does what cannot be traced
            return function(*inputs, self._arguments.arrays)

    # -- compiled ---------------------------------------------------------------------

    def _one_point(self, theta: jax.Array, arrays: list) -> tuple[jax.Array, jax.Array]:
        density = self._density(arrays, random.key(0))
        params = self._parameters.constrain(self._parameters.initial)
        return jax.value_and_grad(
            lambda theta: density(self._by_site(theta), params, random.key(0))
        )(theta)

    def _one_group(self, place: Place, points: Points, seed: jax.Array, arrays: list) -> tuple:
        model_key, guide_key = random.split(random.key(seed))
        density, here = self._density(arrays, model_key), posteriors(place)
        keys = jnp.broadcast_to(guide_key, (len(points.weights),))
        points = curvature.Points(self._by_site(points.noise), points.weights, keys)

        def log_density(latents: dict[str, jax.Array], others: Place, key: jax.Array) -> jax.Array:
            return density(latents, self._parameters.constrain({**place, **others}), key)

        estimate = self._estimator(log_density, here, points, ordinary(place))
        first = points.some(slice(len(estimate.values)))
        # Not finite, if a value is not: the search is to see it.
        gains = first.weights * (estimate.values - curvature.log_q(here, first.noise))
        value = jnp.sum(gains) / jnp.sum(first.weights)
        found = [estimate.directions[site] for site in here]
        of_direction = covector(list(here.values()), found)
        return value, flat(found), of_direction, estimate.ordinary

    def _density(self, arrays: list, model_key: jax.Array) -> LogDensity:
        args, kwargs = self._arguments.rebuilt(arrays)
        return LogDensity(self.model, self.guide, args, kwargs, model_key)

    def _by_site(self, noise: jax.Array) -> dict[str, jax.Array]:
        dims = self._parameters.dims
        ends = np.cumsum(list(dims.values()))[:-1]
        return dict(zip(dims, jnp.split(noise, ends, -1), strict=True))

    def _obstacle(self, args: tuple, kwargs: dict) -> Exception | None:
        """Why the log density has no Hessians, or None."""
        density = LogDensity(self.model, self.guide, args, kwargs, random.key(0))
        initial = self._parameters.initial
        params = self._parameters.constrain(initial)
        means = {site: family.mean for site, family in posteriors(initial).items()}
        return hessian_obstacle(density, means, params, random.key(0))
