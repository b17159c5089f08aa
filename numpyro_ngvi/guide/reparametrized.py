"""Locals as an affine map of globals and data; see :mod:`ngvi.guide.reparametrization`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.extend.core import ClosedJaxpr
from numpyro import handlers
from numpyro.infer.initialization import init_to_median
from numpyro.infer.util import potential_energy

from ngvi._docs import shared_doc
from ngvi._lock import serialised
from ngvi.guide import reparametrization, reparametrized
from ngvi.guide.reparametrization import Density
from ngvi.guide.reparametrized import check_order, check_whole
from ngvi.latents.choice import Choice, FamilyName
from ngvi.latents.layout import Layout
from ngvi.latents.local_blocks import LocalBlocks
from numpyro_ngvi.families import Family
from numpyro_ngvi.guide.natural_gaussian import NaturalGaussianGuide
from numpyro_ngvi.linalg.arrow import Arrow
from numpyro_ngvi.tracing.arguments import Arguments, as_jax, is_traced
from numpyro_ngvi.tracing.compilation import blocks, compiled, few_in_all
from numpyro_ngvi.tracing.of_sites import OfSites
from numpyro_ngvi.tracing.traced import Operations, Traced

#: Vectors whose modes are searched for at once on a processor: all wait for the slowest of them.
MODES_AT_ONCE = 4


class Reparametrization(reparametrization.Reparametrization):
    """The map of one vector in JAX; ``jax.vmap`` makes it that of many."""

    arrow = Arrow

    def _constants(self, values: np.ndarray) -> np.ndarray:
        return values

    _fixed = staticmethod(jax.lax.stop_gradient)

    def _gradient(self, function: Density, at: jax.Array) -> jax.Array:
        return jax.grad(function)(at)

    def _gradient_and_products(
        self, function: Density, at: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        if len(self._probes) == 1:  # in one pass; a program for more of them would grow
            gradient, product = jax.jvp(jax.grad(function), (at,), (self._probes[0],))
            return gradient, product[None]
        gradient, product = jax.linearize(jax.grad(function), at)
        return gradient, jax.vmap(product)(self._probes)

    def _searched(self, density: Density, latent: jax.Array) -> Any:
        # Or JAX would trace the loop's derivatives, which nobody asks for, for half of the time.
        fixed = density.fixed() if isinstance(density, OfSites) else density
        step = partial(self._next, self._given(fixed, latent))
        # Of many draws each has a state of its own, which JAX would find by tracing the step again.
        is_there = jnp.all(latent == latent)
        first = jax.tree.map(lambda leaf: jnp.where(is_there, leaf, leaf), self._first())
        return jax.lax.stop_gradient(jax.lax.while_loop(self._goes_on, step, first))

    def _given(self, density: Density, latent: jax.Array) -> Density:
        is_of_sites = isinstance(density, OfSites)
        return density.given(latent) if is_of_sites else super()._given(density, latent)

    def _with_derivatives(self, given: Density, found: Any) -> jax.Array:
        gradient = jax.grad(given)
        is_lost = found.unsettled > 0
        # The last step of a search that has arrived: it is taken without its derivatives.
        point = found.point + jnp.where(is_lost, 0.0, found.step)
        _, products = self._gradient_and_products(given, point)
        factors = jax.lax.stop_gradient(self._factors(products)[0])

        def solve(product: Callable, slope: jax.Array) -> jax.Array:
            return jax.lax.custom_linear_solve(
                product, slope, lambda _, slope: -self._newton(factors, slope), symmetric=True
            )

        return jax.lax.custom_root(gradient, point, lambda _, point: point, solve)


@dataclasses.dataclass(frozen=True)
class ModeMap:
    """The map of one model, as functions that say what else they read.

    :param density: the model's log density, of the unconstrained values by site and of parameters.
    :param locals: the names of the sites that are local.
    :param shapes: of the sites, in the vector's order; ``unpack`` is the way from it to them.
    """

    density: Operations
    blocks: LocalBlocks
    order: int
    locals: tuple[str, ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    unpack: Callable[[jax.Array], dict[str, jax.Array]] = dataclasses.field(compare=False)

    def of_each(self, held: list, start: jax.Array, latents: jax.Array, params: Any) -> tuple:
        """``(b, g)`` and what else the map gives at vectors ``(..., d)``.

        :param held: the arrays that the density holds.
        :param start: where Newton's method begins, ``(d,)``.
        """
        return _each(self._of_one(held, start, params), latents)

    def draws(self, held: list, start: jax.Array, latents: jax.Array, params: Any) -> tuple:
        """Draws ``(N, d)`` in the model's coordinates, log densities, and locals without a mode.

        The log densities are those of the guide's vectors, and include the map's determinant.
        """
        density, own = self.at(held, params), self._of_one(held, start, params)

        def one(latent: jax.Array) -> tuple:
            theta, log_det, is_lost = own(latent)
            return theta, density(theta) + log_det, is_lost

        if latents.ndim == 1 or jax.default_backend() != "cpu":
            return _each(one, latents)
        return jax.lax.map(one, latents, batch_size=MODES_AT_ONCE)

    def _of_one(self, held: list, start: jax.Array, params: Any) -> Callable:
        own = Reparametrization(self.blocks, start, self.order)
        return partial(own, self.at(held, params))

    def modes(self, held: list, start: jax.Array, latent: jax.Array, params: Any) -> Any:
        """Return the end of Newton's method."""
        own = Reparametrization(self.blocks, start, self.order)
        return own._searched(self.at(held, params), latent)

    def at(self, held: list, params: Any) -> OfSites:
        """Return the density of a whole vector."""
        program = ClosedJaxpr(self.density.program, held)
        return OfSites(program, jax.tree.leaves(params), self.unpack, self.locals)


def _each(one: Callable, latents: jax.Array) -> tuple:
    for _ in range(latents.ndim - 1):
        one = jax.vmap(one)
    return one(latents)


@shared_doc(reparametrized.ReparametrizedGaussianGuide)
class ReparametrizedGaussianGuide(reparametrized.ReparametrizedGaussianGuide, NaturalGaussianGuide):
    """A guide for ``SVI`` or ``fit``.

    >>> def groups(y):
    ...     scale = sample("scale", dist.HalfNormal(1.0))
    ...     with plate("groups", len(y)):
    ...         effect = sample("effect", dist.Normal(0.0, scale))
    ...         sample("y", dist.Normal(effect, 1.0), obs=y)
    >>> guide = ReparametrizedGaussianGuide(groups)
    >>> fit(groups, y, guide=guide, progress_bar=False).converged
    True
    >>> print(guide)
    ReparametrizedGaussianGuide(... 3 locals of size 1 ('effect') given 1 others, order=2)

    :param prefix: prefix of the guide's sites.
    """

    _map_of = Reparametrization

    def __init__(
        self,
        model: Callable,
        family: Family | type[Family] | FamilyName = "auto",
        *,
        order: int = 2,
        prefix: str = "auto",
        init_loc_fn: Callable = init_to_median,
        init_scale: float | None = None,
        sticking_the_landing: bool | str = "auto",
    ) -> None:
        self.order = check_order(order)
        super().__init__(
            model,
            family,
            prefix=prefix,
            init_loc_fn=init_loc_fn,
            init_scale=init_scale,
            sticking_the_landing=sticking_the_landing,
        )

    # -- set-up -----------------------------------------------------------------------

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        self._blocks = None
        if is_traced((args, kwargs)):
            raise TypeError(
                "ReparametrizedGaussianGuide keeps the arguments of its first call, which are "
                "being traced: call svi.init(...) outside of jax.jit, jax.vmap and jax.grad."
            )
        self._data = args, kwargs
        super()._setup_prototype(*args, **kwargs)

    def _choose_family(self, layout: Layout) -> Choice:
        trace = self.prototype_trace
        plates = [
            name
            for name, site in trace.items()
            if site["type"] == "plate" and site["args"][1] not in (None, site["args"][0])
        ]
        check_whole(plates, sorted(self.model.enumerated))
        choice = super()._choose_family(layout)
        start, mask = self._init_latent, self._blocks.mask
        self._init_latent = jnp.asarray(np.where(mask, 0, start), start.dtype)
        self._init_scale = np.where(mask, 1.0, self._init_scale).astype(start.dtype)
        return choice

    def _start_vector(self) -> jax.Array:
        return self._init_latent

    def _modes_at(self, latent: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        found = self._by_map("modes", {}, runs_once=True)(latent)
        return np.asarray(found.point), np.asarray(found.unsettled)

    def _own_vector(self, values: np.ndarray) -> jax.Array:
        return jnp.asarray(values, self._init_latent.dtype)

    def _map(self, params: dict[str, Any]) -> tuple[ModeMap, list]:
        """Return the map of the model as it is now, and the arrays that its density holds."""
        trace = self.prototype_trace
        held = {name: s["value"] for name, s in trace.items() if s["type"] in ("param", "mutable")}

        def density(data: tuple, values: dict[str, Any], params: dict[str, Any]) -> jax.Array:
            seeded = handlers.seed(self.model, rng_seed=0)
            model = handlers.substitute(seeded, data={**held, **params})
            with handlers.block():
                return -potential_energy(model, *data, values)

        # The map calls it half a dozen times, and a fit the map: the model's handlers are run once.
        cache, key = {} if self._of_fit is None else self._of_fit, ("map", id(self), *params)
        if key not in cache:
            values = jax.eval_shape(self._unpack_latent, self._init_latent)
            try:
                found = Traced(partial(density, as_jax(self._data))).at(values, params)
            except (TypeError, IndexError):  # the model computes with its arguments as numpy's
                found = Traced(partial(density, self._data)).at(values, params)
            cache = {} if is_traced(found[1]) else cache
            cache[key] = found, self  # which keeps the id
        found, _ = cache[key]
        shapes = tuple((site.name, site.shape) for site in self.sites)
        are_local = tuple(site.name for site in self.sites if self._is_local(site))
        own = self._blocks, self.order, are_local, shapes, self._unpack_latent
        return ModeMap(found[0], *own), found[1]

    def _by_map(self, name: str, params: dict[str, Any], **options: Any) -> Callable:
        """Make a program of latent vectors from a method of :class:`ModeMap`."""
        found, held = self._map(params)
        of = found if found.density.is_known else None
        run = compiled(getattr(found, name), of=of, **options)
        return lambda latents: run(held, self._reparametrization.start, latents, params)

    def _of_each(self, latents: jax.Array, params: dict[str, Any]) -> tuple:
        return self._by_map("of_each", params)(latents)

    def _sample_latent(self, *args: Any, **kwargs: Any) -> jax.Array:
        latent = super()._sample_latent(*args, **kwargs)
        # Here rather than in the density, where they would be traced values of a loop.
        params = {
            name: numpyro.param(name, site["value"], **site["kwargs"])
            for name, site in self.prototype_trace.items()
            if site["type"] == "param"
        }
        theta, log_det, _ = self._of_each(latent, params)
        numpyro.factor(f"_{self.prefix}_log_det", -log_det)
        return theta

    # -- the point in the middle ------------------------------------------------------

    @serialised
    def laplace(self, params: dict[str, Any]) -> jax.Array:
        """Return the Laplace approximation to the log density of data and globals, as in TMB, lme4.

        It is not a bound, and is exact if locals are conditionally Gaussian. A local without a mode
        counts as at its start with unit curvature (:meth:`num_without_mode`).

        :param params: the model's parameters by name, and, for latent globals, the guide's, whose
            mean is used; for instance ``svi.get_params(svi_state)``.
        """
        self._check_set_up()
        own = self._own_of(params)
        is_local, middle = self._blocks.mask, jnp.zeros_like(self._init_latent)
        if not is_local.all():
            middle = jnp.where(is_local, middle, self._family_of(params).mean)
        theta, log_det, _ = self._of_each(middle, own)
        found, held = self._map(own)
        return found.at(held, own)(theta) + log_det + self._log_volume()

    def _own_of(self, params: dict[str, Any]) -> dict[str, Any]:
        """Select the model's own parameters."""
        names = [name for name, site in self.prototype_trace.items() if site["type"] == "param"]
        return {name: params[name] for name in names if name in params}

    # -- what the user reads ----------------------------------------------------------

    def _in_models_coordinates(self, latents: jax.Array, params: dict[str, Any]) -> tuple:
        """Return what :meth:`ModeMap.draws` does."""
        self._check_set_up()
        count = math.prod(latents.shape[:-1])
        is_short = few_in_all(count, Arguments(*self._data).data_size)
        run = self._by_map("draws", self._own_of(params), runs_once=is_short)
        if latents.ndim == 1 or isinstance(latents, jax.core.Tracer):  # a part of another program
            return run(latents)
        flat = np.asarray(latents).reshape(-1, latents.shape[-1])
        # One program does for any number of them.
        some = jax.device_get([run(rows) for rows in blocks(flat, self.draws_at_once)])
        parts = (np.concatenate(part)[:count] for part in zip(*some, strict=True))
        lead = latents.shape[:-1]
        return tuple(jax.device_put(part.reshape(*lead, *part.shape[1:])) for part in parts)

    def _unpack_and_constrain(self, latent_sample: jax.Array, params: Any) -> dict[str, jax.Array]:
        theta = self._in_models_coordinates(latent_sample, params)[0]
        return super()._unpack_and_constrain(theta, params)

    def _draws(self, family: Family) -> jax.Array:
        noise = np.random.default_rng(0).standard_normal((self.num_draws, family.dim))
        return family.sample(jnp.asarray(noise, family.loc.dtype))  # no program for the noise

    def median(self, params: dict[str, Any]) -> dict[str, jax.Array]:
        """Posterior median of every latent site, constrained; see :meth:`quantiles`.

        :param params: from ``svi.get_params(svi_state)``.
        """
        return self.quantiles(params, 0.5)

    def _latent_quantiles(self, params: dict[str, Any], levels: jax.Array) -> jax.Array:
        theta = self._in_models_coordinates(self._draws(self._family_of(params)), params)[0]
        of_globals = super()._latent_quantiles(params, levels)
        return jnp.where(self._blocks.mask, jnp.quantile(theta, levels, axis=0), of_globals)

    @serialised
    def num_without_mode(self, params: dict[str, Any]) -> dict[str, float]:
        """Count the locals that have no mode given globals and data, on average over the posterior.

        Newton's method finds none for these, and they are ``start + z``.

        :param params: from ``svi.get_params(svi_state)``.
        :return: counts by the sites of the locals; sites without any are left out.
        """
        draws = self._draws(self._family_of(params))[:200]
        troubled = self._in_models_coordinates(draws, params)[2]
        return self._count_without_mode(np.asarray(troubled))
