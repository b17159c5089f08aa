"""The variational bound, with natural gradients by Bonnet and Price."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.infer.elbo import ELBO

from ngvi._docs import shared_doc
from ngvi.conjugate.guide import check_no_conjugate_sites
from ngvi.estimators import natural_elbo as elbo
from ngvi.estimators.additive_terms import NotASumError
from ngvi.estimators.choice import MAX_BATCHES, Cost, is_noisy, points_at_once
from ngvi.guide.subsampled_latents import log_q_of_minibatch, natural_gradient_of_minibatch
from numpyro_ngvi.conjugate.guide import ConjugateSites
from numpyro_ngvi.elbo.host import tell_host
from numpyro_ngvi.estimators import (
    Families,
    Points,
    make_estimator,
    num_products,
    orthogonal_points,
    standard_normal,
    unlike,
)
from numpyro_ngvi.estimators.moments import Estimate, dot, finite_draws, in_passes, masked_mean
from numpyro_ngvi.estimators.stein import stein_direction
from numpyro_ngvi.estimators.threefry import split
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.guide import NaturalGaussianGuide
from numpyro_ngvi.tracing import (
    LogDensity,
    conjugate_sites_in,
    examples,
    hessian_obstacle,
    latent_site,
    posteriors_in,
    sites_with_missed_curvature,
)
from numpyro_ngvi.tracing.arguments import typed_key


@shared_doc(elbo.NaturalELBO)
class NaturalELBO(elbo.NaturalELBO, ELBO):
    """The bound in nats is minus the loss; the log evidence of this model is -6.63.

    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, BLR(), NaturalELBO(4), rng_key=jax.random.key(0))
    >>> losses = [svi.step(y) for _ in range(20)]
    >>> f"{-losses[-1]:.2f}"
    '-6.63'

    :param vectorize_particles: as in NumPyro's ELBOs, for the value of the bound.
    """

    can_infer_discrete = True
    #: In the mutable state: give it, and a step returns there how many draws it has left out, and
    #: its program calls nobody. Such a program can be kept on disk.
    COUNT = "_ngvi_num_dropped"

    def __init__(
        self,
        num_particles: int = 10,
        curvature: str = "auto",
        *,
        num_gradients: int | None = None,
        antithetic: bool = True,
        quasi_random: bool = False,
        vectorize_particles: bool = True,
    ) -> None:
        self._set_options(num_particles, curvature, num_gradients, antithetic, quasi_random)
        super().__init__(num_particles=num_particles, vectorize_particles=vectorize_particles)
        self._counts: list[Any] = []  # of steps of which some may be under way

    @property
    def num_dropped(self) -> int:
        jax.block_until_ready((jax.live_arrays(), self._counts))  # steps have yet to count theirs
        self._add_counts(stacklevel=3)
        return self._num_dropped

    def count_later(self, num_dropped: jax.Array, stacklevel: int = 2) -> None:
        """Count what a step has returned as :attr:`COUNT`, once it is known; waits for nothing."""
        self._counts.append(num_dropped)
        self._add_counts(stacklevel + 1)

    def _add_counts(self, stacklevel: int) -> None:
        while self._counts and self._counts[0].is_ready():
            self._count(int(self._counts.pop(0)), stacklevel + 1)

    def loss_with_mutable_state(
        self,
        rng_key: jax.Array,
        param_map: dict[str, Any],
        model: Callable,
        guide: Callable,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The loss in nats, whose gradient is the natural gradient, and the mutable state."""
        param_map = dict(param_map)
        is_returned = param_map.pop(self.COUNT, None) is not None
        model_key, guide_key, *_ = keys = split(typed_key(rng_key), 2 + MAX_BATCHES)
        draw_keys = keys[2:]
        told = _Told(model, guide)  # before the guide runs again
        density = LogDensity(model, guide, args, kwargs, model_key)
        _check_same_model(density, guide)
        posteriors = posteriors_in(param_map)
        if not posteriors:  # every latent is a conjugate site
            value, mutable_state = density.with_mutable_state({}, param_map, guide_key)
            mutable_state = _where_finite(mutable_state, param_map)
            mutable_state = _with_count(mutable_state, is_returned, jnp.zeros(()))
            return {"loss": -value, "mutable_state": mutable_state}
        here, frozen = jax.lax.stop_gradient((posteriors, param_map))
        visited = {}
        if told.has_plates:
            visited = density.visited(here, frozen, guide_key)
        partners = not all(
            isinstance(part, (NaturalGaussianGuide, ConjugateSites))
            for part in getattr(guide, "_guides", [guide])
        )
        means = {site: family.mean for site, family in here.items()}
        obstacle = functools.partial(
            hessian_obstacle, density, means, frozen, guide_key, told.missed_curvature
        )

        def at(latents: dict[str, jax.Array], _: Any, key: jax.Array) -> jax.Array:
            return density(latents, frozen, key)

        def unlike_sum() -> Exception | None:
            if len(posteriors) < len(param_map):
                return NotASumError("the model has parameters of its own")
            is_asked_for = self.curvature == "quadrature"
            return unlike(at, here, (), guide_key, check=False) or told.unlike_sum(is_asked_for)

        curvature, cost = self._chosen(
            sum(family.dim for family in here.values()),
            max(map(num_products, here.values())),
            obstacle,
            partners,
            (family.couples() for family in here.values()),
            None if partners else unlike_sum,
            guide,
            stacklevel=1,
        )
        if curvature == "gauss_newton":
            check_no_conjugate_sites(one.site for one in conjugate_sites_in(param_map).values())
        at_once = points_at_once(max(map(np.size, jax.tree.leaves((args, kwargs))), default=1))

        def by_examples(latents: dict[str, jax.Array], _: Any, key: jax.Array) -> tuple:
            return tuple(examples(density, latents, frozen, key))

        estimator = make_estimator(curvature, cost, at_once, split=by_examples, partners=partners)

        def batch(draw_key: jax.Array) -> tuple[Estimate, jax.Array]:
            points = self._points(draw_key, guide_key, here, cost, partners)
            estimate = estimator(at, here, points)
            directions = dict(estimate.directions)
            for site, weights in visited.items():
                of_entropy = None
                if curvature == "stein":
                    noise = points.noise[site]
                    nothing = jnp.zeros_like(noise)
                    of_entropy = stein_direction(here[site], nothing, noise, estimate.kept)
                directions[site] = natural_gradient_of_minibatch(
                    here[site], directions[site], weights, of_entropy
                )
            estimate = estimate._replace(directions=directions)
            # Those of quadrature have the whole entropy in them, and no noise that others cancel.
            counts = {} if curvature == "quadrature" else visited
            return estimate, _bound(estimate.values, estimate.kept, here, points, counts)

        together = _until_quiet if cost.max_batches > 1 else _once
        summary = jax.lax.stop_gradient(together(batch, draw_keys))
        if not is_returned:
            summary = tell_host(self._count, summary.num_dropped, summary)
        directions, value, kept, num_dropped = summary
        mutable_state = None
        if curvature == "mean" or len(posteriors) < len(param_map):
            points = self._points(draw_keys[0], guide_key, here, cost, partners)
            first = points.some(slice(cost.num_hessians))
            kept = jnp.broadcast_to(kept[: cost.num_hessians], (cost.num_hessians,))
            values, first, mutable_state = self._differentiable_values(
                density, here, first, param_map, kept, at_once
            )
            value = _bound(values, kept & finite_draws(values), here, first, visited)
        loss = -value
        for site, family in posteriors.items():
            loss = loss - _as_gradient(directions[site], family)
        mutable_state = _where_finite(mutable_state, param_map)
        mutable_state = _with_count(mutable_state, is_returned, num_dropped)
        return {"loss": loss, "mutable_state": mutable_state}

    # -- the value --------------------------------------------------------------------

    def _differentiable_values(
        self,
        density: LogDensity,
        here: Families,
        points: Points,
        params: dict[str, Any],
        kept: jax.Array,
        at_once: int,
    ) -> tuple[jax.Array, Points, Any]:
        """The log density as a function of the ordinary parameters.

        :return: values at the draws, the points that they belong to, and the model's mutable
            state after the first of them.
        """
        # The gradient of a dropped draw would be NaN times zero: a good draw stands in.
        count = len(points.weights)
        points = points.some(jnp.where(kept, jnp.arange(count), jnp.argmax(kept)))
        params = {
            name: jax.lax.stop_gradient(value) if isinstance(value, Family) else value
            for name, value in params.items()
        }

        def particle(argument: Any) -> tuple[jax.Array, Any]:
            latents, key = argument
            return density.with_mutable_state(latents, params, key)

        arguments = (points.of(here), points.keys)
        if count == 1:
            value, mutable_state = particle(jax.tree.map(lambda leaf: leaf[0], arguments))
            return value[None], points, mutable_state
        if self.vectorize_particles:
            values, mutable_state = in_passes(particle, arguments, at_once)
        else:
            values, mutable_state = jax.lax.map(particle, arguments)
        # All have begun with the same; NumPyro's ELBOs would forget it.
        return values, points, jax.tree.map(lambda leaf: leaf[0], mutable_state)

    # -- draws ------------------------------------------------------------------------

    def _points(
        self, key: jax.Array, guide_key: jax.Array, here: Families, cost: Cost, partners: bool
    ) -> Points:
        count = cost.num_gradients
        if not partners:  # there are no other draws than those of the latent vectors
            keys = jnp.broadcast_to(guide_key, (count,))
        elif cost.num_groups:  # differences of gradients are those of the same draws
            keys = jnp.repeat(random.split(guide_key, cost.num_groups), count // cost.num_groups)
        else:
            keys = random.split(guide_key, count)
        dims = [family.dim for family in here.values()]
        dtype = next(iter(here.values())).loc.dtype
        if cost.num_groups:
            joined, weights = orthogonal_points(key, sum(dims), cost.num_groups, dtype)
            parts = jnp.split(joined, np.cumsum(dims)[:-1], -1)
            return Points(dict(zip(here, parts, strict=True)), weights, keys)
        of_sites = random.split(key, len(here)) if len(here) > 1 else key[None]
        noise = {
            site: standard_normal(
                of_site,
                (cost.num_hessians, count - cost.num_hessians),
                family.dim,
                family.loc.dtype,
                antithetic=self.antithetic,
                quasi_random=self.quasi_random,
            )
            for of_site, (site, family) in zip(of_sites, here.items(), strict=True)
        }
        return Points(noise, jnp.full(count, 1.0 / count, dtype), keys)


class _Summary(NamedTuple):
    """What is left of a step's draws."""

    directions: Families
    value: jax.Array  #: of the bound
    kept: jax.Array  #: which draws count, of the first batch
    num_dropped: jax.Array  #: of all


def _once(batch: Callable, keys: jax.Array) -> _Summary:
    estimate, value = batch(keys[0])
    return _Summary(estimate.directions, value, estimate.kept, jnp.sum(~estimate.kept))


def _until_quiet(batch: Callable, keys: jax.Array) -> _Summary:
    """Batches of points until their mean has little noise
    (:func:`ngvi.estimators.choice.is_noisy`).

    :param batch: an estimate and the bound, from a key.
    """
    batch = jax.jit(batch)  # of which JAX remembers the program that it has read for its shapes

    def advance(state: tuple) -> tuple:
        directions, kept, sums = state
        estimate, value = batch(keys[sums[0].astype(int)])
        # A mean of those so far, which is not divided once more at the end.
        part = 1.0 / (sums[0] + 1.0)
        directions = jax.tree.map(
            lambda mean, new: mean + part.astype(new.dtype) * (new - mean),
            directions,
            estimate.directions,
        )
        kept = jnp.where(sums[0] == 0, estimate.kept, kept)
        dropped = jnp.where(estimate.kept, 0, 1).astype(value.dtype)
        num_dropped = dot(dropped, dropped)
        # One array leaves a program sooner than several numbers.
        return directions, kept, sums + jnp.stack([1, *estimate.spread, value, num_dropped])

    def goes_on(state: tuple) -> jax.Array:
        count, noise, square, _, _ = state[-1]
        return (count == 0) | is_noisy(count, noise, square)

    estimate, value = jax.eval_shape(batch, keys[0])
    shapes = estimate.directions, estimate.kept
    start = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    sums = jnp.zeros(5, value.dtype)
    directions, kept, sums = jax.lax.while_loop(goes_on, advance, (*start, sums))
    count, _, _, value, num_dropped = sums
    return _Summary(directions, value / count, kept, num_dropped)


def _bound(
    values: jax.Array,
    kept: jax.Array,
    here: Families,
    points: Points,
    visited: dict[str, jax.Array],
) -> jax.Array:
    """In nats, of the first draws that are kept, as many as there are values; NaN of none.

    :param visited: how often a minibatch counts each coordinate, by site, where it visits a part.
    """
    if not len(values):
        return jnp.asarray(jnp.nan)
    first = points.some(slice(len(values)))
    gains = values - log_q_of_minibatch(here, first.noise, visited)
    return masked_mean(gains, kept[: len(values)], first.weights)


def _where_finite(mutable_state: Any, before: dict[str, Any]) -> Any:
    """The mutable state after a step, or that before it: of a batch with a NaN no step is taken,
    and its running averages would never be finite again.
    """
    if not mutable_state or any(name not in before for name in mutable_state):
        return mutable_state  # none, or the first of it
    old = {name: before[name] for name in mutable_state}
    numbers = [x for x in jax.tree.leaves(mutable_state) if jnp.issubdtype(x.dtype, jnp.inexact)]
    finite = jnp.isfinite(sum((jnp.sum(0 * x) for x in numbers), jnp.zeros(())))
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), mutable_state, old)


def _with_count(mutable_state: Any, is_returned: bool, num_dropped: jax.Array) -> Any:
    if not is_returned:
        return mutable_state
    return {**(mutable_state or {}), NaturalELBO.COUNT: num_dropped.astype(int)}


def _check_same_model(density: LogDensity, guide: Any) -> None:
    """Refuse the guide of another model, of which NumPyro would only warn.

    :raises ValueError: naming the guide's sites that the model lacks.
    """
    for part in getattr(guide, "_guides", [guide]):
        if isinstance(part, NaturalGaussianGuide):
            part._latent_shapes.require_sites(density.sites)


class _Told:
    """What is known of the model where a guide starts, in whose trace nothing has a value.

    By the arguments that the guide was set up with; where these were traced as well, nothing is
    known, and nothing found.
    """

    def __init__(self, model: Callable, guide: Callable) -> None:
        parts = getattr(guide, "_guides", [guide])
        self._parts = [part for part in parts if isinstance(part, NaturalGaussianGuide)]
        self._run = model, guide
        self._arguments = self._parts[0].take_arguments() if self._parts else None
        self._params = {}
        if self._arguments is not None:
            self._params = {part._parameter_name: part._initial_posterior for part in self._parts}
        self._here = {latent_site(name): family for name, family in self._params.items()}

    @property
    def has_plates(self) -> bool:
        """Whether the user makes the plates of a guide, which may hold more than a minibatch."""
        return any(part.create_plates is not None for part in self._parts)

    def missed_curvature(self) -> list[str] | None:
        """Which sites' curvature is not their Hessian's, as :func:`hessian_obstacle` asks."""
        if not self._parts:
            return None
        first = self._parts[0]
        if self._arguments is not None:
            first.missed_curvature = sites_with_missed_curvature(
                *self._run, *self._arguments, self._here, self._params
            )
        return first.missed_curvature

    def unlike_sum(self, is_asked_for: bool) -> Exception | None:
        """Why the log density is no sum of smooth terms, or is not known to be one.

        :param is_asked_for: whether to trust it to be one where nothing is known.
        """
        if not self._parts:
            return None
        first = self._parts[0]
        if self._arguments is not None:
            with jax.ensure_compile_time_eval():
                key = random.key(0)
            # With numbers at hand it would draw some, and these may be no valid parameters.
            density = LogDensity(*self._run, *self._arguments, key)
            with jax.ensure_compile_time_eval():
                first.unlike_sum = unlike(
                    lambda latents, _, key: density(latents, self._params, key), self._here, (), key
                )
        elif first.unlike_sum is None and not first.is_looked_at:
            return None if is_asked_for else NotASumError("nothing is known of its numbers")
        first.is_looked_at = True
        return first.unlike_sum


@jax.custom_jvp
def _as_gradient(direction: Family, family: Family) -> jax.Array:
    """Zero, with ``direction`` as its gradient."""
    return jnp.zeros((), family.loc.dtype)


@_as_gradient.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[jax.Array, Any]:
    products = jax.tree.map(lambda d, p: jnp.sum(d * p), primals[0], tangents[1])
    return _as_gradient(*primals), sum(jax.tree.leaves(products))
