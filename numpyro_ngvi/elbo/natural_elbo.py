"""The variational bound, with natural gradients by Bonnet and Price."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import random
from numpyro.infer.elbo import ELBO

from ngvi.curvature import (
    Cost,
    check_curvature,
    choose,
    cost_of_step,
    points_at_once,
)
from numpyro_ngvi.curvature import (
    Families,
    Points,
    log_q,
    make_estimator,
    num_products,
    orthogonal_points,
    standard_normal,
)
from numpyro_ngvi.curvature.moments import finite_draws, in_passes, masked_mean
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.guide import NaturalGaussianGuide
from numpyro_ngvi.tracing import LogDensity, examples, hessian_obstacle, posteriors_in


class NaturalELBO(ELBO):
    """The bound on the log evidence, with second-order natural gradients.

    A loss for stock ``SVI`` with a ``NaturalGaussianGuide``. The value is the bound's; the
    gradient with respect to the guide's posterior is the natural gradient that Bonnet's and
    Price's theorems give from the model's own gradients and Hessians,

        dL/dmu = E[grad log p],        dL/dSigma = (E[hess log p] + Sigma^-1) / 2,

    averaged over draws. Any other parameter, of the model or of the partners in an
    ``AutoGuideList``, gets its ordinary gradient. All draws of a step share its minibatch.
    Use it with ``BLR`` (or with ``Snngm``, as Tan's second-order variant)::

        svi = SVI(model, NaturalGaussianGuide(model), BLR(), NaturalELBO())

    :param num_particles: ``K``, how much a step averages over. With Hessians, ``K`` draws, each of
        which takes a gradient and a Hessian; with ``"spherical"``, one group of ``2 d + 1`` points
        for every two particles, which costs about as much as two Hessians; else ``K`` draws with
        a gradient.
    :param num_gradients: how many draws the gradient is averaged over, the ``K`` among them.
        With Hessians, nearly all of a step's noise is the gradient's, and a gradient costs no more
        than one of the Hessian's products: by default ``10 K``, or fewer, so that they add at most
        a quarter to the cost of the Hessians. With ``"spherical"`` it is rounded up to whole
        groups, and with ``"stein"`` and ``"mean"`` it has no meaning.
    :param curvature: where ``E[hess log p]`` comes from. ``"spherical"``: differences of gradients
        at orthogonal points, with far less noise than random draws, whose Hessian is exact for a
        cubic ``log p`` (:mod:`numpyro_ngvi.curvature.spherical`). ``"hessian"``: automatic
        differentiation, exactly and only as much as the family needs. ``"gauss_newton"``:
        squared gradients of single examples, which needs the observations in a plate (Tan,
        S5.1). ``"stein"``: gradients alone (Lin, Khan and Schmidt, 2019). ``"mean"``: gradient and
        Hessian at the mean (delta method). ``"auto"``, as in ``fit``: ``"hessian"`` for structured
        families, if the model can be differentiated twice, else ``"spherical"`` up to 2000
        latents, else ``"stein"``; beside partners that draw values of their own, ``"hessian"``
        rather than ``"spherical"`` (:func:`ngvi.curvature.choose`).
    :param antithetic: whether random draws come in pairs ``z, -z``; orthogonal points always do.
    :param quasi_random: whether random draws come from a scrambled Sobol sequence.
    :param vectorize_particles: as in NumPyro's ELBOs, for the value of the bound.
    :raises ValueError: for an unknown curvature or a ``num_particles`` below 1; on the first call,
        if the guide holds no ``NaturalGaussianGuide``, if the model has no Hessian and
        ``curvature="hessian"`` asks for it, or no examples for ``"gauss_newton"``.
    """

    can_infer_discrete = True

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
        check_curvature(curvature)
        if not isinstance(num_particles, int) or num_particles < 1:
            raise ValueError(
                f"num_particles must be an integer, at least 1, got {num_particles!r}."
            )
        if num_gradients is not None and num_gradients < num_particles:
            raise ValueError(
                f"num_gradients must be at least num_particles={num_particles}, got "
                f"{num_gradients}."
            )
        super().__init__(num_particles=num_particles, vectorize_particles=vectorize_particles)
        self.curvature, self.num_gradients = curvature, num_gradients
        self.antithetic, self.quasi_random = antithetic, quasi_random
        self._num_dropped = 0

    @property
    def num_dropped(self) -> int:
        """Draws left out so far because their value, gradient or Hessian was not finite."""
        jax.effects_barrier()
        return self._num_dropped

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
        model_key, guide_key, draw_key = random.split(rng_key, 3)
        density = LogDensity(model, guide, args, kwargs, model_key)
        posteriors = posteriors_in(param_map)
        here, frozen = jax.lax.stop_gradient((posteriors, param_map))
        partners = not all(
            isinstance(part, NaturalGaussianGuide) for part in getattr(guide, "_guides", [guide])
        )
        curvature, cost = self._chosen(density, here, frozen, guide_key, partners)
        at_once = points_at_once(max(map(np.size, jax.tree.leaves((args, kwargs))), default=1))
        points = self._points(draw_key, guide_key, here, cost, partners)

        def at(latents: dict[str, jax.Array], _: Any, key: jax.Array) -> jax.Array:
            return density(latents, frozen, key)

        def split(latents: dict[str, jax.Array], _: Any, key: jax.Array) -> tuple:
            return tuple(examples(density, latents, frozen, key))

        estimator = make_estimator(curvature, cost, at_once, split=split, partners=partners)
        estimate = jax.lax.stop_gradient(estimator(at, here, points))
        self._report(jnp.sum(~estimate.kept))
        count = cost.num_hessians
        first, kept = points.some(slice(count)), estimate.kept[:count]
        kept, values = jnp.broadcast_to(kept, (count,)), estimate.values
        mutable_state = None
        if not len(values) or len(posteriors) < len(param_map):
            values, first, mutable_state = self._differentiable_values(
                density, here, first, param_map, kept, at_once
            )
        kept = kept & finite_draws(values)
        loss = -masked_mean(values - log_q(here, first.noise), kept, first.weights)
        for site, family in posteriors.items():
            loss = loss - _as_gradient(estimate.directions[site], family)
        return {"loss": loss, "mutable_state": mutable_state}

    def _chosen(
        self,
        density: LogDensity,
        here: Families,
        params: dict[str, Any],
        key: jax.Array,
        partners: bool,
    ) -> tuple[str, Cost]:
        """The estimator's name, ``"auto"`` resolved, and what it evaluates."""
        dim = sum(family.dim for family in here.values())
        products = max(map(num_products, here.values()))
        means = {site: family.mean for site, family in here.items()}
        obstacle = functools.partial(hessian_obstacle, density, means, params, key)
        choice = choose(self.curvature, dim, products, obstacle, partners=partners)
        if choice.obstacle is not None:
            warnings.warn(
                f"{choice.obstacle}: curvature={choice.curvature!r} is used instead.", stacklevel=2
            )
        name = choice.curvature
        return name, cost_of_step(name, dim, products, self.num_particles, self.num_gradients)

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
            state.
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
        if mutable_state is not None:
            warnings.warn(
                "mutable state is currently ignored when num_particles > 1.", stacklevel=2
            )
        return values, points, None

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
            noise, weights = orthogonal_points(key, sum(dims), cost.num_groups, dtype)
            parts = jnp.split(noise, np.cumsum(dims)[:-1], -1)
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

    def _report(self, num_dropped: jax.Array) -> None:
        def report() -> None:
            jax.debug.callback(self._count, num_dropped)

        jax.lax.cond(num_dropped > 0, report, lambda: None)

    def _count(self, num_dropped: Any) -> None:
        if not self._num_dropped and num_dropped:
            warnings.warn(
                f"NaturalELBO left out {int(num_dropped)} draws of a step whose "
                "value, gradient or Hessian is not finite. It counts them in num_dropped.",
                stacklevel=2,
            )
        self._num_dropped += int(num_dropped)


@jax.custom_jvp
def _as_gradient(direction: Family, family: Family) -> jax.Array:
    """Zero, with ``direction`` as its gradient."""
    return jnp.zeros((), family.loc.dtype)


@_as_gradient.defjvp
def _(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    products = jax.tree.map(lambda d, p: jnp.sum(d * p), primals[0], tangents[1])
    return _as_gradient(*primals), sum(jax.tree.leaves(products))
