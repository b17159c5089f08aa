"""The variational bound, with natural gradients by Bonnet and Price."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.infer.elbo import ELBO

from ngvi._docs import shared_doc
from ngvi._door import door, not_made
from ngvi._warn import warn
from ngvi.estimators import natural_elbo as elbo
from ngvi.estimators.additive_terms import NotAdditiveError
from ngvi.estimators.choice import Case, Curvature, is_noisy, points_at_once
from ngvi.estimators.options import DEFAULTS
from ngvi.estimators.table import EstimateCost
from ngvi.guide.subsampled_latents import directions_of_minibatch, log_q_of_minibatch
from numpyro_ngvi.elbo.step import ElboStep, GuideSetUp, check_same_model, in_one_program
from numpyro_ngvi.estimators import (
    Averages,
    Differentiator,
    Families,
    PointsBySite,
    make_estimator,
    num_products,
    orthogonal_points,
    standard_normal,
    why_not_additive,
)
from numpyro_ngvi.estimators.moments import dot, finite_draws, in_passes, masked_mean
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.tracing import LogDensity, posteriors_in
from numpyro_ngvi.tracing.arguments import is_traced, typed_key


@dataclasses.dataclass
class CountOfDraws:
    """A count of the draws that the steps of one run have left out."""

    total: jax.Array  #: The count after the last step, which may be under way.
    known: int = 0  #: The part of it that was read.


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
    #: In the mutable state: give a number, and a step adds to it how many draws it has left out,
    #: and its program calls nobody. Such a program can be kept on disk, and JAX starts it sooner.
    COUNT = "_ngvi_num_dropped"

    @door
    def __init__(
        self,
        num_particles: int = 10,
        curvature: Curvature = "auto",
        *,
        num_gradients: int | None = None,
        antithetic: bool = True,
        vectorize_particles: bool = True,
    ) -> None:
        self._set_options(num_particles, curvature, num_gradients, antithetic)
        super().__init__(num_particles=num_particles, vectorize_particles=vectorize_particles)
        self._counts: list[CountOfDraws] = []
        self._num_outside_jit = 0

    @property
    def num_dropped(self) -> int:
        jax.effects_barrier()  # steps of the stock SVI have yet to count theirs
        for count in self._counts:
            self.add_up(count, int(count.total))
        return self._num_dropped

    def new_count(self) -> CountOfDraws:
        """Open a count for steps that return how many draws they have left out as :attr:`COUNT`."""
        self._counts.append(CountOfDraws(jnp.zeros((), int)))
        return self._counts[-1]

    def add_up(self, count: CountOfDraws, total: int) -> None:
        """Take note of how many there are after one of its steps."""
        if total > count.known:
            known, count.known = count.known, total
            self._count(total - known)

    def loss(self, *args: Any, **kwargs: Any) -> jax.Array:
        """Return the loss in nats, whose gradient is the natural gradient.

        :raises TypeError: of the class itself.
        """
        if not isinstance(self, NaturalELBO):  # whose first argument is the key
            raise TypeError(not_made("NaturalELBO"))
        return super().loss(*args, **kwargs)

    def loss_with_mutable_state(
        self,
        rng_key: jax.Array,
        param_map: dict[str, Any],
        model: Callable,
        guide: Callable,
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the loss in nats, with the natural gradient as gradient, and the mutable state."""
        run, here = (model, guide, args, kwargs), jax.lax.stop_gradient(param_map)
        settings: Any = jax.config  # whose flags have no types
        if not is_traced((rng_key, here, args, kwargs)) and not settings.jax_disable_jit:
            count = {self.COUNT: here.get(self.COUNT, jnp.zeros((), int))}
            with contextlib.suppress(Exception):  # what is wrong with the model is told below
                found, gradient = in_one_program(
                    lambda key, params: self._evaluated(key, params, run),
                    rng_key,
                    {**here, **count},
                )
                if self.COUNT not in param_map:
                    self._count(int(found["mutable_state"].pop(self.COUNT)))
                trained = {name: param_map[name] for name in gradient}
                loss = found["loss"] + _as_gradient(gradient, trained)
                return {"loss": loss, "mutable_state": found["mutable_state"] or None}
            self._warn_outside_jit()
        return self._evaluated(rng_key, param_map, run)

    def _evaluated(
        self, rng_key: jax.Array, param_map: dict, run: tuple[Callable, Callable, tuple, dict]
    ) -> dict[str, Any]:
        """Evaluate a step of model and guide with their arguments."""
        (model, guide, *_), params = run, dict(param_map)
        before = params.pop(self.COUNT, None)
        model_key, guide_key, *_ = keys = random.split(typed_key(rng_key), 2 + DEFAULTS.max_batches)
        set_up = GuideSetUp(model, guide)  # before the guide runs again
        density = LogDensity(*run, model_key)
        check_same_model(density, guide)
        posteriors, num_dropped = posteriors_in(params), jnp.zeros(())
        if posteriors:
            step = ElboStep.of(density, set_up, params, guide_key)
            loss, mutable_state, num_dropped = self._step(step, posteriors, params, keys[2:])
        else:  # every latent is a conjugate site
            value, mutable_state = density.with_mutable_state({}, params, guide_key)
            loss = -value
        mutable_state = _where_finite(mutable_state, params)
        if before is not None:
            mutable_state = {**(mutable_state or {}), self.COUNT: before + num_dropped.astype(int)}
        else:
            count = functools.partial(jax.debug.callback, self._count, num_dropped)
            jax.lax.cond(num_dropped > 0, count, lambda: None)
        return {"loss": loss, "mutable_state": mutable_state}

    def _warn_outside_jit(self) -> None:
        """Warn at the second step whose programs are compiled for it alone."""
        self._num_outside_jit += 1
        if self._num_outside_jit == 2:
            warn(
                "svi.update outside of jax.jit compiles this model at every step, for a second or "
                "two: update = jax.jit(svi.update), svi.run(...), or numpyro_ngvi.SVI(...).step."
            )

    # -- a step -----------------------------------------------------------------------

    def _step(
        self, step: ElboStep, posteriors: Families, params: dict[str, Any], draw_keys: jax.Array
    ) -> tuple[jax.Array, Any, jax.Array]:
        """Return the loss, the model's mutable state, and how many draws were left out."""
        density, here = step.density, step.here
        curvature, cost = self._estimator_of(step)
        data = jax.tree.leaves((density.args, density.kwargs))
        at_once = points_at_once(max(map(np.size, data), default=1))
        estimator: Any = make_estimator(curvature, cost, partners=step.has_partners)
        evaluate = Differentiator(step.log_density, at_once)
        if curvature == "gauss_newton":
            estimator = estimator.prepared(step)

        def batch(draw_key: jax.Array) -> tuple[Averages, jax.Array]:
            points = self._points(draw_key, step, cost)
            with jax.named_scope("moments"):
                estimate = estimator(evaluate, here, points)
            drawn = points if curvature == "stein" else None
            directions = directions_of_minibatch(
                here, estimate, step.visited, drawn, evaluate.gradient_of
            )
            estimate = estimate._replace(directions=directions)
            # Those of quadrature have the whole entropy in them, and no noise that others cancel.
            counts = {} if curvature == "quadrature" else step.visited
            return estimate, _bound(estimate.values, estimate.kept, here, points, counts)

        together = _until_quiet if cost.max_batches > 1 else _once
        found = jax.lax.stop_gradient(together(batch, draw_keys))
        value, mutable_state = found.value, None
        if len(posteriors) < len(params):
            first = self._points(draw_keys[0], step, cost).some(slice(cost.num_hessians))
            kept = found.kept[: cost.num_hessians]
            values, first, mutable_state = self._differentiable_values(
                step, first, params, kept, at_once
            )
            value = _bound(values, kept & finite_draws(values), here, first, step.visited)
        gradients = (_as_gradient(found.directions[site], q) for site, q in posteriors.items())
        return -value - sum(gradients), mutable_state, found.num_dropped

    def _estimator_of(self, step: ElboStep) -> tuple[str, EstimateCost]:
        families = step.here.values()

        def not_additive() -> Exception | None:
            if len(step.here) < len(step.params):
                return NotAdditiveError("the model has parameters of its own")
            is_asked_for = self.curvature == "quadrature"
            density = lambda latents: step.log_density(latents, (), step.guide_key)  # noqa: E731
            reason = why_not_additive(density, step.here, check=False)
            return reason or step.set_up.not_additive(is_asked_for)

        dim, products = sum(one.dim for one in families), max(map(num_products, families))
        additive = None if step.has_partners else not_additive
        how = step.hessian_obstacle, additive, step.density.guide, step.has_partners
        return self._chosen(Case(dim, products, *how), families)

    def _differentiable_values(
        self,
        step: ElboStep,
        points: PointsBySite,
        params: dict[str, Any],
        kept: jax.Array,
        at_once: int,
    ) -> tuple[jax.Array, PointsBySite, Any]:
        """Return the log density as a function of the other parameters.

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
            return step.density.with_mutable_state(latents, params, key)

        arguments = (points.of(step.here), points.keys)
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

    @jax.named_scope("draws")
    def _points(self, key: jax.Array, step: ElboStep, cost: EstimateCost) -> PointsBySite:
        here, count = step.here, cost.num_gradients
        if not step.has_partners:  # there are no other draws than those of the latent vectors
            keys = jnp.broadcast_to(step.guide_key, (count,))
        elif cost.num_groups:  # differences of gradients are those of the same draws
            of_groups = random.split(step.guide_key, cost.num_groups)
            keys = jnp.repeat(of_groups, count // cost.num_groups)
        else:
            keys = random.split(step.guide_key, count)
        dims = [family.dim for family in here.values()]
        dtype = next(iter(here.values())).loc.dtype
        if cost.num_groups:
            joined, weights = orthogonal_points(key, sum(dims), cost.num_groups, dtype)
            parts = jnp.split(joined, np.cumsum(dims)[:-1], -1)
            return PointsBySite(dict(zip(here, parts, strict=True)), weights, keys)
        of_sites = random.split(key, len(here)) if len(here) > 1 else key[None]
        noise = {
            site: standard_normal(
                of_site,
                (cost.num_hessians, count - cost.num_hessians),
                family.dim,
                family.loc.dtype,
                antithetic=self.antithetic,
            )
            for of_site, (site, family) in zip(of_sites, here.items(), strict=True)
        }
        return PointsBySite(noise, jnp.full(count, 1.0 / count, dtype), keys)


class _Summary(NamedTuple):
    """The results of a step's draws."""

    directions: Families
    value: jax.Array  #: The bound.
    kept: jax.Array  #: True if draws of the first batch count.
    num_dropped: jax.Array  #: Draws left out of all batches.


def _once(batch: Callable, keys: jax.Array) -> _Summary:
    estimate, value = batch(keys[0])
    return _Summary(estimate.directions, value, estimate.kept, jnp.sum(~estimate.kept))


def _until_quiet(batch: Callable, keys: jax.Array) -> _Summary:
    """Take batches of points until their mean has little noise.

    See :func:`ngvi.estimators.choice.is_noisy`.

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
    points: PointsBySite,
    visited: dict[str, jax.Array],
) -> jax.Array:
    """Return the bound of the first draws that are kept, as many as there are values.

    :param visited: how often a minibatch counts each coordinate, by site, where it visits a part.
    """
    first = points.some(slice(len(values)))
    gains = values - log_q_of_minibatch(here, first.noise, visited)
    return masked_mean(gains, kept[: len(values)], first.weights)


def _where_finite(mutable_state: Any, before: dict[str, Any]) -> Any:
    """Return the mutable state after a step, or that before it: a NaN would stay for good."""
    if not mutable_state or any(name not in before for name in mutable_state):
        return mutable_state  # none, or the first of it
    old = {name: before[name] for name in mutable_state}
    numbers = [x for x in jax.tree.leaves(mutable_state) if jnp.issubdtype(x.dtype, jnp.inexact)]
    finite = jnp.isfinite(sum((jnp.sum(0 * x) for x in numbers), jnp.zeros(())))
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), mutable_state, old)


@jax.custom_jvp
def _as_gradient(direction: Any, params: Any) -> jax.Array:
    """Zero, with ``direction`` as its gradient, both pytrees."""
    return jnp.zeros((), jax.tree.leaves(params)[0].dtype)


@_as_gradient.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[jax.Array, Any]:
    products = jax.tree.map(lambda d, p: jnp.sum(d * p), primals[0], tangents[1])
    return _as_gradient(*primals), sum(jax.tree.leaves(products))
