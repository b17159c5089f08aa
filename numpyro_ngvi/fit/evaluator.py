"""What a fit evaluates: the bound with its natural gradient, in one program for all groups."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from ngvi.fit.engine import Direction, Draws, Measured
from ngvi.fit.groups import NUMBERS_AT_ONCE, Groups, check_curvature, choose
from ngvi.points import Points
from numpyro_ngvi.curvature import hessian_moments, num_products, stein_direction
from numpyro_ngvi.curvature.draws import default_num_gradients
from numpyro_ngvi.curvature.spherical import spherical_direction
from numpyro_ngvi.families.base import Family, standard_normal_log_prob
from numpyro_ngvi.families.coordinates import families_in
from numpyro_ngvi.fit.geometry import covector, flat
from numpyro_ngvi.fit.importance import subsampled_plate
from numpyro_ngvi.fit.parameters import Parameters, Place, ordinary, posteriors
from numpyro_ngvi.tracing import LogDensity, why_no_hessian
from numpyro_ngvi.tracing.arguments import Arguments

#: Points that are evaluated at once: no more than this, and than so many times the data.
POINTS_AT_ONCE = 512


class Evaluator:
    """Runs a model with a guide; see :class:`ngvi.fit.engine.Evaluator`.

    :param model: a NumPyro model.
    :param guide: a guide with one or more ``NaturalGaussianGuide``.
    :param parameters: of both.
    :param curvature: one of :data:`ngvi.fit.groups.CURVATURES`.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        parameters: Parameters,
        curvature: str = "auto",
    ) -> None:
        check_curvature(curvature)
        self.model, self.guide, self._parameters = model, guide, parameters
        self._arguments = Arguments(args, kwargs)
        self._data_size = max((np.size(array) for array in self._arguments.arrays), default=1)
        products = max(num_products(family) for family in families_in(parameters.initial))
        dim = parameters.dim
        curvature = choose(
            curvature, dim, products, functools.partial(self._obstacle, args, kwargs)
        )
        self._groups = Groups.of(curvature, dim, products, self._data_size, default_num_gradients)
        self.draws = self._groups.draws
        self.num_gradients = self.num_hessian_products = 0
        self._group = jax.jit(self._one_group)
        self._point = jax.jit(self._one_point)
        start = parameters.constrain(ordinary(parameters.initial))
        self.is_subsampled = subsampled_plate(model, start, args, kwargs) is not None

    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        """The bound and its natural gradient; not finite where the model is not."""
        self.num_gradients += len(draws) * self._groups.num_gradients
        self.num_hessian_products += len(draws) * self._groups.num_products
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
        density = self._density(arrays, model_key)
        here, kind = posteriors(place), self._groups.curvature
        noise = self._by_site(points.noise)
        draws = {site: family.sample(noise[site]) for site, family in here.items()}
        keys = jnp.broadcast_to(guide_key, (len(points.weights),))

        def log_density(latents: dict[str, jax.Array], others: Place, key: jax.Array) -> jax.Array:
            return density(latents, self._parameters.constrain({**place, **others}), key)

        gradient_of_ordinary = {}
        if kind == "spherical" or self._parameters.has_ordinary:
            values, gradients, gradient_of_ordinary = self._gradients(
                log_density, place, draws, keys, points
            )
        directions = {}
        for site, family in here.items():
            if kind == "spherical":
                directions[site] = spherical_direction(
                    family, gradients[site], draws[site], points.weights
                )
                continue

            def of_site(theta: jax.Array, context: Any, site: str = site) -> jax.Array:
                others, key = context
                return log_density({**others, site: theta}, {}, key)

            others = {name: value for name, value in draws.items() if name != site}
            context = (others, keys)
            if kind == "hessian":
                moments = hessian_moments(
                    of_site, draws[site], context, family, self._groups.num_hessians
                )
                site_values = moments.values
                directions[site] = family.bonnet_price(moments.gradient, moments.hessian)
            else:
                directions[site], _, site_values = stein_direction(
                    of_site, noise[site], context, family
                )
        if kind == "spherical":
            value = jnp.sum(points.weights * (values - _log_q(here, noise)))
        else:
            count = len(site_values)
            log_q = _log_q(here, {site: z[:count] for site, z in noise.items()})
            value = jnp.mean(site_values - log_q)
        found = list(directions.values())
        of_direction = covector(list(here.values()), found)
        return value, flat(found), of_direction, gradient_of_ordinary

    def _gradients(
        self, log_density: Callable, place: Place, draws: dict, keys: jax.Array, points: Points
    ) -> tuple:
        """Values and gradients at all points, and the weighted sum of the ordinary gradients."""

        def at(argument: Any) -> tuple:
            latents, key, weight = argument
            value, (gradient, of_ordinary) = jax.value_and_grad(log_density, (0, 1))(
                latents, ordinary(place), key
            )
            return value, gradient, jax.tree.map(lambda leaf: weight * leaf, of_ordinary)

        arguments, count = (draws, keys, points.weights), len(points.weights)
        at_once = max(8, min(POINTS_AT_ONCE, NUMBERS_AT_ONCE // self._data_size))
        if count <= at_once:
            values, gradients, of_ordinary = jax.vmap(at)(arguments)
        else:
            values, gradients, of_ordinary = jax.lax.map(at, arguments, batch_size=at_once)
        return values, gradients, jax.tree.map(lambda leaf: jnp.sum(leaf, 0), of_ordinary)

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
        return why_no_hessian(lambda v: density(v, params, random.key(0)), means)


def _log_q(here: dict[str, Family], noise: dict[str, jax.Array]) -> jax.Array:
    return sum(
        standard_normal_log_prob(noise[site]) - family.log_det_scale()
        for site, family in here.items()
    )
