"""What a fit evaluates: the bound with its natural gradient, and steps of the posterior.

The search (:mod:`~ngvi.fit.search`) sees this class and numpy's numbers, nothing of the
PPL, so that it is the same in both packages. A *place* is the parameters of model and guide, a
*direction* a change of all Gaussians among them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import optax
from jax import random

from ngvi.fit.engine import Draws, Measured, Step
from ngvi.points import Points, spherical_points
from numpyro_ngvi.curvature import hessian_moments, num_products, stein_direction
from numpyro_ngvi.curvature.draws import default_num_gradients
from numpyro_ngvi.curvature.spherical import spherical_direction
from numpyro_ngvi.families.base import Family, standard_normal_log_prob
from numpyro_ngvi.families.coordinates import families_in, ordinary_mask, replace_families
from numpyro_ngvi.fit.arguments import Arguments
from numpyro_ngvi.fit.memory import quasi_newton
from numpyro_ngvi.optim.trust_region import longest_within, slope_along
from numpyro_ngvi.tracing import LogDensity, posteriors_in, why_no_hessian

Place = dict[str, Any]
Direction = list[Family]

CURVATURES = ("auto", "spherical", "hessian", "stein")

#: ``curvature="auto"`` takes Hessians for structured families, whose Hessians take fewer products
#: than ``d`` over the first number, and fewer than the second.
CHEAP_HESSIAN = 8
MAX_PRODUCTS = 2000
#: Otherwise the ``2 d + 1`` gradients of a group up to this many latents, then gradients at few
#: points.
MAX_SPHERICAL_DIM = 2000

#: Draws in a group with Hessians, in antithetic pairs, and in one with gradients only.
MIN_HESSIANS, MAX_HESSIANS = 4, 64
NUM_STEIN = 10

#: Points that are evaluated at once: no more than this, and than so many times the data.
POINTS_AT_ONCE = 512
NUMBERS_AT_ONCE = 2**25

#: Pairs of the quasi-Newton memory, fewer if they have more than so many numbers.
MAX_PAIRS = 6
MAX_NUMBERS = 20_000_000


#: A standard deviation of an unconstrained latent that tells of an improper posterior.
TOO_WIDE = 1e7


class Engine:
    """Evaluates a model and a guide, compiled once.

    :param model: a NumPyro model.
    :param guide: a guide with one or more ``NaturalGaussianGuide``.
    :param rng_key: for the initial parameters.
    :param curvature: one of :data:`CURVATURES`.
    :ivar initial: the parameters before the first step.
    :ivar dim: the number of latents of all Gaussians.
    :ivar eps: the precision of the floating point numbers.
    :ivar has_ordinary: whether there are parameters that are not Gaussian.
    :ivar num_gradients: gradients of the log density so far.
    :ivar num_hessian_products: Hessian-vector products so far.
    """

    def __init__(
        self,
        model: Callable,
        guide: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        rng_key: jax.Array,
        curvature: str = "auto",
    ) -> None:
        self.model, self.guide = model, guide
        svi = numpyro.infer.SVI(model, guide, optax.sgd(0.0), numpyro.infer.Trace_ELBO())
        state = svi.init(rng_key, *args, **kwargs)
        self.constrain = svi.constrain_fn
        self.initial: Place = svi.optim.get_params(state.optim_state)
        families = _posteriors(self.initial)
        self.dims = {site: family.dim for site, family in families.items()}
        self.dim = sum(self.dims.values())
        self.eps = max(float(jnp.finfo(q.loc.dtype).eps) for q in families.values())
        self.has_ordinary = any(not isinstance(v, Family) for v in self.initial.values())
        self._arguments = Arguments(args, kwargs)
        self.curvature = self._choose(curvature, args, kwargs)
        products = max(num_products(family) for family in families.values())
        self.num_hessians = self._hessians_per_group(products)
        self._num_gradients_per_group = {
            "spherical": 2 * self.dim + 1,
            "hessian": default_num_gradients(self.num_hessians, products),
            "stein": NUM_STEIN,
        }[self.curvature]
        if self.curvature != "hessian":
            products = 0
        self._num_products_per_group = self.num_hessians * products
        self.num_gradients = self.num_hessian_products = 0
        self._adam = optax.masked(optax.adam(1.0), ordinary_mask)
        self._adam_state = self._adam.init(self.initial) if self.has_ordinary else None
        size = sum(leaf.size for leaf in jax.tree.leaves(families_in(self.initial)))
        self.max_pairs = int(min(MAX_PAIRS, MAX_NUMBERS // (2 * size)))
        self._group = jax.jit(self._one_group)

    # -- draws ------------------------------------------------------------------------

    def draws(self, rng: np.random.Generator, num_groups: int) -> list[Draws]:
        """Fresh groups of draws."""
        if self.curvature == "spherical":
            points = spherical_points(rng, self.dim, num_groups)
        else:
            points = [self._antithetic(rng) for _ in range(num_groups)]
        seeds = rng.integers(2**31, size=num_groups)
        return [Draws(group, int(seed)) for group, seed in zip(points, seeds, strict=True)]

    def _antithetic(self, rng: np.random.Generator) -> Points:
        first = self.num_hessians if self.curvature == "hessian" else 0
        rest = self._num_gradients_per_group - first
        noise = []
        for count in (first, rest):
            half = rng.standard_normal((-(-count // 2), self.dim))
            noise.extend((half, -half[: count // 2]))
        noise = np.concatenate(noise)
        return Points(noise, np.full(len(noise), 1.0 / len(noise)))

    # -- evaluations ------------------------------------------------------------------

    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        """The bound and its natural gradient, by group."""
        self.num_gradients += len(draws) * self._num_gradients_per_group
        self.num_hessian_products += len(draws) * self._num_products_per_group
        dtype = families_in(place)[0].loc.dtype
        results = []
        for group in draws:
            points = Points(*(jnp.asarray(part, dtype) for part in group.points))
            seed = jnp.asarray(group.seed, jnp.uint32)
            try:
                result = self._group(place, points, seed, self._arguments.arrays)
            except (TypeError, ValueError, IndexError):
                if not self._arguments.arrays:
                    raise
                self._arguments.hold_constant()  # the model does what cannot be traced
                result = self._group(place, points, seed, self._arguments.arrays)
            results.append(result)
        values = np.asarray([float(value) for value, _ in results])
        return Measured(values, [direction for _, direction in results])

    def _one_group(self, place: Place, points: Points, seed: jax.Array, arrays: list) -> tuple:
        key = random.key(seed)
        args, kwargs = self._arguments.rebuilt(arrays)
        model_key, guide_key = random.split(key)
        density = LogDensity(self.model, self.guide, args, kwargs, model_key)
        here = _posteriors(place)
        noise = self._by_site(points.noise)
        draws = {site: family.sample(noise[site]) for site, family in here.items()}
        keys = jnp.broadcast_to(guide_key, (len(points.weights),))

        def log_density(latents: dict[str, jax.Array], place: Place, key: jax.Array) -> jax.Array:
            return density(latents, self.constrain(place), key)

        if self.curvature == "spherical" or len(here) > 1 or self.has_ordinary:
            values, gradients, ordinary = self._gradients(log_density, place, draws, keys, points)
        directions = {}
        for site, family in here.items():
            if self.curvature == "spherical":
                directions[site] = spherical_direction(
                    family, gradients[site], draws[site], points.weights
                )
                continue

            def of_site(theta: jax.Array, context: Any, site: str = site) -> jax.Array:
                others, key = context
                return log_density({**others, site: theta}, place, key)

            others = {name: value for name, value in draws.items() if name != site}
            context = (others, keys)
            if self.curvature == "hessian":
                moments = hessian_moments(of_site, draws[site], context, family, self.num_hessians)
                site_values = moments.values
                directions[site] = family.bonnet_price(moments.gradient, moments.hessian)
            else:
                directions[site], _, site_values = stein_direction(
                    of_site, noise[site], context, family
                )
        if self.curvature == "spherical":
            log_q = self._log_q(here, noise)
            value = jnp.sum(points.weights * (values - log_q))
        else:
            count = len(site_values)
            log_q = self._log_q(here, {site: z[:count] for site, z in noise.items()})
            value = jnp.mean(site_values - log_q)
        # In the order in which the parameters hold them.
        ordered = [directions[site] for site in here]
        return value, (ordered, ordinary if self.has_ordinary else None)

    def _gradients(
        self, log_density: Callable, place: Place, draws: dict, keys: jax.Array, points: Points
    ) -> tuple:
        def at(argument: Any) -> tuple:
            latents, key, weight = argument
            if not self.has_ordinary:
                value, gradient = jax.value_and_grad(log_density)(latents, place, key)
                return value, gradient, None
            value, (gradient, of_place) = jax.value_and_grad(log_density, (0, 1))(
                latents, place, key
            )
            return value, gradient, jax.tree.map(lambda leaf: weight * leaf, of_place)

        arguments = (draws, keys, points.weights)
        count = len(points.weights)
        size = max((np.size(array) for array in self._arguments.arrays), default=1)
        at_once = max(8, min(POINTS_AT_ONCE, NUMBERS_AT_ONCE // size))
        if count <= at_once:
            values, gradients, ordinary = jax.vmap(at)(arguments)
        else:
            values, gradients, ordinary = jax.lax.map(at, arguments, batch_size=at_once)
        return values, gradients, jax.tree.map(lambda leaf: jnp.sum(leaf, 0), ordinary)

    @staticmethod
    def _log_q(here: dict[str, Family], noise: dict[str, jax.Array]) -> jax.Array:
        return sum(
            standard_normal_log_prob(noise[site]) - family.log_det_scale()
            for site, family in here.items()
        )

    def _by_site(self, noise: jax.Array) -> dict[str, jax.Array]:
        ends = np.cumsum(list(self.dims.values()))[:-1]
        return dict(zip(self.dims, jnp.split(noise, ends, -1), strict=True))

    # -- directions -------------------------------------------------------------------

    def mean(self, measured: Measured) -> Any:
        """The average direction over all groups."""
        count = len(measured.directions)
        return jax.tree.map(lambda *leaves: sum(leaves) / count, *measured.directions)

    def deviations(self, measured: Measured, mean: Any) -> list[Any]:
        """The groups' directions minus their mean."""
        return [jax.tree.map(jnp.subtract, one, mean) for one in measured.directions]

    def difference(self, left: Any, right: Any) -> Any:
        """``left - right``."""
        return jax.tree.map(jnp.subtract, left, right)

    def slope(self, place: Place, direction: Any, change: Direction) -> float:
        """The derivative of the bound along a change of the Gaussians, in nats."""
        return float(_slope(families_in(place), direction[0], change))

    def corrected(
        self, place: Place, direction: Any, pairs: list[tuple[Direction, Any]]
    ) -> tuple[Any, float, float]:
        """The quasi-Newton direction, from what earlier steps did to the natural gradient.

        :param pairs: changes of the Gaussians, and the falls of the direction along them.
        :return: the direction, the gain that a quadratic bound would have along it, and the gain
            that the Fisher metric predicts, both in nats.
        """
        families = families_in(place)
        pairs = pairs[-self.max_pairs :] if self.max_pairs else []
        if not pairs:
            half = 0.5 * float(_slope(families, direction[0], direction[0]))
            return direction, half, half
        missing = self.max_pairs - len(pairs)
        steps, falls = ([pair[0] for pair in pairs], [pair[1][0] for pair in pairs])
        zeros = jax.tree.map(jnp.zeros_like, families)
        stack = functools.partial(jax.tree.map, lambda *leaves: jnp.stack(leaves))
        steps = stack(*([zeros] * missing + steps))
        falls = stack(*([zeros] * missing + falls))
        result, gain, fisher = quasi_newton(families, direction[0], steps, falls)
        return (result, direction[1]), float(gain), float(fisher)

    # -- steps ------------------------------------------------------------------------

    def step(self, place: Place, direction: Any, rho: float, radius: float) -> Step | None:
        """The step ``rho`` along a direction, shorter if it would leave the trust region.

        :param radius: the largest ``KL(new || old)``, in nats.
        :return: None if no step leads to a finite Gaussian.
        """
        families = families_in(place)
        dtype = families[0].loc.dtype
        moved, change, numbers = _advance(
            families, direction[0], jnp.asarray(rho, dtype), jnp.asarray(radius, dtype)
        )
        slope, length, backward, rho = (float(number) for number in numbers)
        if not (np.isfinite(slope) and length <= radius):
            return None
        return Step(replace_families(place, moved), change, slope, length, backward, rho)

    def update_ordinary(self, place: Place, direction: Any, step_size: float) -> Place:
        """Move the parameters that are not Gaussian, by Adam with this learning rate."""
        if not self.has_ordinary:
            return place
        ascent = jax.tree.map(jnp.negative, direction[1])
        updates, self._adam_state = self._adam.update(ascent, self._adam_state, place)
        updates = jax.tree.map(lambda leaf: step_size * leaf, updates)
        zeros = jax.tree.map(jnp.zeros_like, families_in(place))
        return optax.apply_updates(place, replace_families(updates, zeros))

    # -- places -----------------------------------------------------------------------

    def at(self, locs: dict[str, np.ndarray] | None, scale: float) -> Place:
        """The initial parameters with ``N(loc, scale^2 I)``.

        :param locs: by site; by default the guide's.
        """
        families = _posteriors(self.initial)
        new = []
        for site, family in families.items():
            loc = family.loc if locs is None else jnp.asarray(locs[site], family.loc.dtype)
            new.append(family.initial(loc, scale))
        return replace_families(self.initial, new)

    def locs(self, place: Place) -> dict[str, np.ndarray]:
        """The Gaussians' means by site."""
        return {site: np.asarray(q.mean, float) for site, q in _posteriors(place).items()}

    def stddevs(self, place: Place) -> dict[str, np.ndarray]:
        """The Gaussians' marginal standard deviations by site."""
        return {site: np.asarray(q.stddev, float) for site, q in _posteriors(place).items()}

    def is_too_wide(self, place: Place) -> bool:
        """Whether a standard deviation is one that hardly any proper posterior has."""
        return any(np.max(sd) > TOO_WIDE for sd in self.stddevs(place).values())

    def value_and_gradient(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """The log density and its gradient at one joint latent vector."""
        self.num_gradients += 1
        if not hasattr(self, "_at_one_point"):
            self._at_one_point = jax.jit(self._one_point)
        dtype = families_in(self.initial)[0].loc.dtype
        value, gradient = self._at_one_point(jnp.asarray(theta, dtype), self._arguments.arrays)
        return float(value), np.asarray(gradient, float)

    def _one_point(self, theta: jax.Array, arrays: list) -> tuple[jax.Array, jax.Array]:
        args, kwargs = self._arguments.rebuilt(arrays)
        density = LogDensity(self.model, self.guide, args, kwargs, random.key(0))

        def function(theta: jax.Array) -> jax.Array:
            latents = self._by_site(theta)
            return density(latents, self.constrain(self.initial), random.key(0))

        return jax.value_and_grad(function)(theta)

    def joint(self, locs: dict[str, np.ndarray]) -> np.ndarray:
        """One vector of the latents of all sites."""
        return np.concatenate([locs[site] for site in self.dims])

    def split(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """The latents by site: the inverse of :meth:`joint`."""
        ends = np.cumsum(list(self.dims.values()))[:-1]
        return dict(zip(self.dims, np.split(theta, ends), strict=True))

    # -- choices ----------------------------------------------------------------------

    def _choose(self, curvature: str, args: tuple, kwargs: dict) -> str:
        if curvature not in CURVATURES:
            known = ", ".join(repr(name) for name in CURVATURES)
            raise ValueError(f"Unknown curvature={curvature!r}. Choose one of {known}.")
        if curvature in ("spherical", "stein"):
            return curvature
        families = _posteriors(self.initial)
        products = max(num_products(family) for family in families.values())
        otherwise = "spherical" if self.dim <= MAX_SPHERICAL_DIM else "stein"
        if curvature == "auto" and (CHEAP_HESSIAN * products > self.dim or products > MAX_PRODUCTS):
            return otherwise
        density = LogDensity(self.model, self.guide, args, kwargs, random.key(0))
        params = self.constrain(self.initial)
        means = {site: family.mean for site, family in families.items()}
        error = why_no_hessian(lambda v: density(v, params, random.key(0)), means)
        if error is None:
            return "hessian"
        if curvature == "hessian":
            raise ValueError(
                f"The log density cannot be differentiated twice ({error}). Use "
                "curvature='spherical' or 'stein', which need gradients only."
            ) from error
        return otherwise

    def _hessians_per_group(self, products: int) -> int:
        """As many Hessians as cost about what a group of orthogonal points would."""
        size = max((np.size(array) for array in self._arguments.arrays), default=1)
        affordable = min(self.dim // products, MAX_HESSIANS, NUMBERS_AT_ONCE // size)
        return max(MIN_HESSIANS, 2 * (affordable // 2))


def _posteriors(place: Place) -> dict[str, Family]:
    """By site, in the order of ``families_in``, which is that of the sorted parameters' names."""
    return posteriors_in({name: place[name] for name in sorted(place)})


# Compiled once for all fits with the same families.
_slope = jax.jit(slope_along)


@jax.jit
def _advance(families: list, directions: list, rho: jax.Array, radius: jax.Array) -> tuple:
    def advance(rho: jax.Array) -> list:
        return [f.natural_step(d, rho) for f, d in zip(families, directions, strict=True)]

    moved, length, rho = longest_within(radius, families, advance, rho)
    change = jax.tree.map(jnp.subtract, moved, families)
    slope = slope_along(families, directions, change)
    backward = sum(old.kl_divergence(new) for new, old in zip(moved, families, strict=True))
    return moved, change, (slope, length, backward, rho)
