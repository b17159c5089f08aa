"""Locals as an affine map of globals and data; see :mod:`ngvi.guide.reparametrized`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.infer.initialization import init_to_median
from numpyro.infer.util import potential_energy

from ngvi._docs import shared_doc
from ngvi.errors import check_quantiles
from ngvi.guide import reparametrized as shared
from ngvi.guide.reparametrized import NUM_DRAWS, Density, check_order, check_whole, log_volume
from ngvi.latents.choice import Choice
from ngvi.latents.layout import Layout
from ngvi.latents.local_blocks import find_local_blocks
from numpyro_ngvi.families import Family
from numpyro_ngvi.families.registry import REGISTRY
from numpyro_ngvi.guide.natural_gaussian import NaturalGaussianGuide
from numpyro_ngvi.linalg.arrow import Arrow
from numpyro_ngvi.tracing.arguments import as_jax
from numpyro_ngvi.tracing.compilation import compiled
from numpyro_ngvi.tracing.of_sites import OfSites
from numpyro_ngvi.tracing.sites import is_enumerated

#: Draws that are mapped at once, for a user to read: one program for any number of them.
DRAWS_AT_ONCE = 100


class Reparametrization(shared.Reparametrization):
    """Of JAX, for one vector; ``jax.vmap`` makes it one of many."""

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
        return jax.lax.stop_gradient(jax.lax.while_loop(self._goes_on, step, self._first()))

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


@shared_doc(shared.ReparametrizedGaussianGuide)
class ReparametrizedGaussianGuide(shared.ReparametrizedGaussianGuide, NaturalGaussianGuide):
    """With ``SVI``, or with ``fit``.

    >>> def groups(y):
    ...     scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    ...     with numpyro.plate("groups", len(y)):
    ...         effect = numpyro.sample("effect", dist.Normal(0.0, scale))
    ...         numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)
    >>> guide = ReparametrizedGaussianGuide(groups)
    >>> fit(groups, y, guide=guide, progress_bar=False).converged
    True
    >>> print(guide)
    ReparametrizedGaussianGuide(... 3 locals of size 1 ('effect') given 1 others, order=2)

    :param prefix: prefix of the guide's sites.
    """

    def __init__(
        self,
        model: Callable,
        order: int = 2,
        family: str | type[Family] | Family = "auto",
        *,
        prefix: str = "auto",
        init_loc_fn: Callable = init_to_median,
        init_scale: float | None = 0.1,
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
        self._map_draws, self._of_each = compiled(self._mapped), compiled(self._map)

    # -- set-up -----------------------------------------------------------------------

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        self._blocks = None
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
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
        check_whole(plates, _enumerated(self.model_as_given, *self._data))
        self._blocks = find_local_blocks(layout, self._names_of_locals)
        start, mask = self._init_latent, self._blocks.mask
        self._are_local = [site.name for site in layout.sites if site.size and mask[site.start]]
        self._reparametrization = Reparametrization(self._blocks, start, self.order)
        if self._start_of_another is not None:
            self._reparametrization.start = jnp.asarray(self._start_of_another, start.dtype)

        def search(latent: jax.Array) -> Any:
            return self._reparametrization._searched(self._density({}), latent)

        found = compiled(search, runs_once=True)(self._reparametrization.start)
        self._begin_at(np.asarray(found.point), np.asarray(found.unsettled))
        self._init_latent = jnp.asarray(np.where(mask, 0, start), start.dtype)
        self._init_scale = np.where(mask, 1.0, self._init_scale).astype(start.dtype)
        return self._suitable(REGISTRY, layout.dim)

    def _own_vector(self, values: np.ndarray) -> jax.Array:
        return jnp.asarray(values)

    def _density(self, params: dict[str, Any]) -> Density:
        """The model's log density at unconstrained vectors, with these of its parameters."""
        trace = self.prototype_trace
        held = {name: s["value"] for name, s in trace.items() if s["type"] in ("param", "mutable")}

        def density(data: tuple, values: dict[str, Any], params: dict[str, Any]) -> jax.Array:
            seeded = handlers.seed(self.model, rng_seed=0)
            model = handlers.substitute(seeded, data={**held, **params})
            with handlers.block():
                return -potential_energy(model, *data, values)

        # The map calls it half a dozen times: the model's handlers are run once.
        values = self._unpack_latent(self._init_latent)
        try:
            program = jax.make_jaxpr(partial(density, as_jax(self._data)))(values, params)
        except (TypeError, IndexError):  # the model computes with its arguments, as with numpy's
            program = jax.make_jaxpr(partial(density, self._data))(values, params)
        return OfSites(program, jax.tree.leaves(params), self._unpack_latent, self._are_local)

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

    def _map(self, latents: jax.Array, params: dict[str, Any]) -> tuple:
        """``(b, g)`` and what else the map gives at vectors ``(..., d)``."""
        one = partial(self._reparametrization, self._density(params))
        for _ in range(latents.ndim - 1):
            one = jax.vmap(one)
        return one(latents)

    # -- the point in the middle ------------------------------------------------------

    def laplace(self, params: dict[str, Any]) -> jax.Array:
        """The log density of data and globals by Laplace's formula, as TMB and lme4 have it.

        No bound, and exact where locals are Gaussian given the rest. A local without a mode counts
        as at its start with unit curvature (:meth:`num_without_mode`).

        :param params: the model's own parameters by name; where globals are latent, with the
            guide's, at whose mean they are. ``svi.get_params(svi_state)``, for instance.
        """
        self._check_set_up()
        own = self._own_of(params)
        is_local, middle = self._blocks.mask, jnp.zeros_like(self._init_latent)
        if not is_local.all():
            middle = jnp.where(is_local, middle, self._family_of(params).mean)
        theta, log_det, _ = self._map(middle, own)
        return self._density(own)(theta) + log_det + log_volume(self._blocks)

    def _own_of(self, params: dict[str, Any]) -> dict[str, Any]:
        """Of the parameters those of the model's own."""
        names = [name for name, site in self.prototype_trace.items() if site["type"] == "param"]
        return {name: params[name] for name in names if name in params}

    # -- what the user reads ----------------------------------------------------------

    def _mapped(self, latents: jax.Array, params: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        """Draws ``(N, d)`` in the model's coordinates, and which locals have no mode there."""
        theta, _, troubled = self._map(latents, params)
        return theta, troubled

    def _in_models_coordinates(self, latents: jax.Array, params: dict[str, Any]) -> tuple:
        self._check_set_up()
        own = self._own_of(params)
        flat = latents.reshape(-1, latents.shape[-1])
        rows = jnp.pad(flat, ((0, -len(flat) % DRAWS_AT_ONCE), (0, 0)), "edge")
        some = [
            self._map_draws(rows[i : i + DRAWS_AT_ONCE], own)
            for i in range(0, len(rows), DRAWS_AT_ONCE)
        ]
        parts = (jnp.concatenate(part)[: len(flat)] for part in zip(*some, strict=True))
        return tuple(part.reshape(latents.shape) for part in parts)

    def _unpack_and_constrain(self, latent_sample: jax.Array, params: Any) -> dict[str, jax.Array]:
        theta, _ = self._in_models_coordinates(latent_sample, params)
        return super()._unpack_and_constrain(theta, params)

    def _draws(self, family: Family) -> jax.Array:
        return family.sample(
            random.normal(random.key(0), (NUM_DRAWS, family.dim), family.loc.dtype)
        )

    def median(self, params: dict[str, Any]) -> dict[str, jax.Array]:
        """Posterior median of every latent site, constrained; see :meth:`quantiles`.

        :param params: from ``svi.get_params(svi_state)``.
        """
        return self.quantiles(params, 0.5)

    def quantiles(self, params: dict[str, Any], quantiles: Any) -> dict[str, jax.Array]:
        """Posterior quantiles of every latent site, constrained; those of locals by always the
        same 2000 draws.

        :param params: from ``svi.get_params(svi_state)``.
        :param quantiles: a number or a list of numbers in (0, 1).
        :return: by site, the shape of ``quantiles`` followed by the site's shape.
        """
        check_quantiles(quantiles)
        family, levels = self._family_of(params), jnp.asarray(quantiles)
        theta, _ = self._in_models_coordinates(self._draws(family), params)
        of_locals = jnp.quantile(theta, levels, axis=0)
        of_globals = dist.Normal(family.mean, family.stddev).icdf(levels[..., None])
        latent = jnp.where(self._blocks.mask, of_locals, of_globals)
        return super()._unpack_and_constrain(latent, params)

    def num_without_mode(self, params: dict[str, Any]) -> dict[str, float]:
        """How many locals have, on average over the posterior, no mode given globals and data that
        Newton's method finds: there they are ``start + z``.

        :param params: from ``svi.get_params(svi_state)``.
        :return: by the sites of the locals; sites without any are left out.
        """
        draws = self._draws(self._family_of(params))[:200]
        _, troubled = self._in_models_coordinates(draws, params)
        return self._count_without_mode(np.asarray(troubled))

    _without_mode = num_without_mode


def _enumerated(model: Callable, args: tuple, kwargs: dict) -> list[str]:
    """The names of latents that are marked for enumeration."""
    found: list[str] = []

    def run() -> None:
        seeded = handlers.seed(model, rng_seed=0)
        with handlers.block():
            for name, site in handlers.trace(seeded).get_trace(*args, **kwargs).items():
                if site["type"] == "sample" and is_enumerated(site):
                    found.append(name)

    with contextlib.suppress(Exception):  # which a run with values will raise, with a better name
        jax.eval_shape(run)
    return found
