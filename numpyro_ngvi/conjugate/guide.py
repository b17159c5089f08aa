"""The guide with exponential families of some sites beside the Gaussian of all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoGuide, AutoGuideList
from numpyro.infer.initialization import init_to_median, init_to_uniform
from numpyro.infer.util import log_density

from ngvi._docs import shared_doc
from ngvi.conjugate import guide
from ngvi.conjugate.numpy_kinds import NUMPY_KINDS, as_numpy
from ngvi.errors import check_init_loc_fn, check_model, check_quantiles
from numpyro_ngvi.conjugate.kinds import FACTORS, Factor, Random
from numpyro_ngvi.families import Family
from numpyro_ngvi.guide.checks import subsampled_latents
from numpyro_ngvi.guide.landing import calling_elbo
from numpyro_ngvi.guide.natural_gaussian import NaturalGaussianGuide
from numpyro_ngvi.guide.prototype import started_trace
from numpyro_ngvi.pytree import register_with_flax
from numpyro_ngvi.tracing.arguments import Arguments
from numpyro_ngvi.tracing.compilation import compiled
from numpyro_ngvi.tracing.sites import is_enumerated

SUPPORTS = {
    "positive": constraints.positive,
    "real": constraints.real,
    "unit_interval": constraints.unit_interval,
    "simplex": constraints.simplex,
}


class FactorDistribution(dist.Distribution):
    """A factor as a NumPyro distribution.

    :param factor: with natural parameters.
    :param event_dim: of the site.
    """

    arg_constraints: ClassVar[dict] = {}
    reparametrized_params: ClassVar[list] = []
    pytree_data_fields = ("factor",)

    def __init__(self, factor: Factor, event_dim: int = 0) -> None:
        self.factor = factor
        split = len(factor.shape) - event_dim
        super().__init__(factor.shape[:split], factor.shape[split:], validate_args=False)

    @property
    def support(self) -> Any:
        base = SUPPORTS[self.factor.support]
        extra = self.event_dim - base.event_dim
        return constraints.independent(base, extra) if extra else base

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        elbo = calling_elbo()
        if elbo is not None:  # NaturalELBO gives values
            raise NotImplementedError(guide.stock_elbo(self.factor.site, type(elbo).__name__))
        return _draw(self.factor, key, tuple(sample_shape))

    def log_prob(self, value: jax.Array) -> jax.Array:
        found = self.factor.log_prob(value)
        extra = self.event_dim - SUPPORTS[self.factor.support].event_dim
        return found.sum(tuple(range(-extra, 0)))

    @property
    def mean(self) -> jax.Array:
        return self.factor.mean


@partial(jax.jit, static_argnums=2)
def _draw(factor: Factor, key: jax.Array, sample_shape: tuple[int, ...]) -> jax.Array:
    return factor.draw(Random(key, sample_shape))


class Factors(AutoGuide):
    """The factors of some sites; a part of :class:`ConjugateGuide`."""

    def __init__(self, model: Callable, prefix: str) -> None:
        super().__init__(model, prefix=prefix)
        self.initial: dict[str, Factor] = {}
        self.frames: dict[str, tuple] = {}
        self.event_dims: dict[str, int] = {}

    def parameter(self, site: str) -> str:
        """The name of a factor's parameter."""
        return f"{self.prefix}_{site}_factor"

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        plates = {
            frame.name: numpyro.plate(frame.name, frame.size, dim=frame.dim)
            for frames in self.frames.values()
            for frame in frames
        }
        values = {}
        for site, initial in self.initial.items():
            factor = numpyro.param(self.parameter(site), initial)
            with ExitStack() as stack:
                for frame in self.frames[site]:
                    stack.enter_context(plates[frame.name])
                fn = FactorDistribution(factor, self.event_dims[site])
                values[site] = numpyro.sample(site, fn)
        return values

    def factors(self, params: Mapping[str, Any]) -> dict[str, Factor]:
        """The factors by site.

        :param params: from ``svi.get_params(svi_state)``.
        """
        names = {site: self.parameter(site) for site in self.initial}
        for name in names.values():
            if not isinstance(params.get(name), Factor):
                raise ValueError(
                    f"params has no '{name}'. Pass svi.get_params(svi_state) of the SVI that "
                    f"trained this guide (prefix={self.prefix!r})."
                )
        return {site: params[name] for site, name in names.items()}

    def sample_posterior(
        self,
        rng_key: jax.Array,
        params: dict[str, Any],
        *args: Any,
        sample_shape: tuple[int, ...] = (),
        **kwargs: Any,
    ) -> dict[str, jax.Array]:
        found = self.factors(params)
        keys = random.split(rng_key, len(found))
        each = zip(keys, found.items(), strict=True)
        return {site: _draw(one, key, tuple(sample_shape)) for key, (site, one) in each}

    def median(self, params: dict[str, Any]) -> dict[str, jax.Array]:
        return self.quantiles(params, 0.5)

    def quantiles(self, params: dict[str, Any], quantiles: Any) -> dict[str, jax.Array]:
        check_quantiles(quantiles)
        return {
            site: jnp.asarray(as_numpy(one).quantiles(quantiles), one.loc.dtype)
            for site, one in self.factors(params).items()
        }


@shared_doc(guide.ConjugateGuide, NaturalGaussianGuide)
class ConjugateGuide(guide.ConjugateGuide, AutoGuideList):
    """Of its parameters each factor is one, ``{prefix}_{site}_factor``, and the Gaussian another.

    :param prefix: prefix of the guide's sites and parameters.
    """

    def __init__(
        self,
        model: Callable,
        conjugate: Mapping[str, str],
        family: str | type[Family] | Family = "auto",
        *,
        prefix: str = "auto",
        init_loc_fn: Callable = init_to_median,
        init_scale: float | None = None,
        pace: float = 1.0,
    ) -> None:
        self.conjugate, self._pace = guide.check_declared(conjugate), guide.check_pace(pace)
        check_model(model)
        super().__init__(model, prefix=prefix, init_loc_fn=check_init_loc_fn(init_loc_fn))
        # What the Gaussian's model is given for these sites while it is set up.
        self._given: dict[str, jax.Array] = {}
        rest = handlers.block(handlers.substitute(model, data=self._given), hide=[*self.conjugate])
        gaussian = NaturalGaussianGuide(
            rest, family, prefix=prefix, init_loc_fn=init_loc_fn, init_scale=init_scale
        )
        self._guides = [Factors(model, prefix), gaussian]

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        if self.prototype_trace is None:
            self._set_up(args, kwargs)
        values: dict[str, jax.Array] = {}
        for part in self._guides:
            values.update(part(*args, **kwargs))
        return values

    # -- set-up -----------------------------------------------------------------------

    def _set_up(self, args: tuple, kwargs: dict) -> None:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            raise ValueError(guide.NEEDS_DATA)
        key = numpyro.prng_key()
        if key is None or isinstance(key, jax.core.Tracer):
            key = random.key(0)
        trace = started_trace(self.model, self.init_loc_fn, key, args, kwargs)
        latents = {
            name: site
            for name, site in trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        guide.check_sites(
            self.conjugate,
            [name for name, site in latents.items() if not is_enumerated(site)],
            [name for name, site in trace.items() if site.get("is_observed")],
            [name for name, site in latents.items() if is_enumerated(site)],
        )
        for local in subsampled_latents(trace):
            if local.site in self.conjugate:
                guide.check_not_subsampled(local.site, local.plate)
        plain, first = {}, self._guides[0]
        for site, kind in self.conjugate.items():
            fn, value = latents[site]["fn"], np.asarray(latents[site]["value"])
            guide.check_support(site, kind, value.shape, _contains(fn, value))
            plain[site] = NUMPY_KINDS[kind].initial(site, value)
            first.frames[site] = latents[site]["cond_indep_stack"]
            first.event_dims[site] = fn.event_dim
        rest = [name for name in latents if name not in plain]
        with handlers.block():
            for site, one in guide.checked(
                plain, *self._density(plain, rest, args, kwargs)
            ).items():
                loc = jnp.asarray(one.loc, latents[site]["value"].dtype)
                first.initial[site] = FACTORS[one.name](
                    loc, site, one.shape, one.columns, self._pace
                )
                self._given[site] = jnp.asarray(one.mean, loc.dtype)
        if not rest:
            self._guides = [first]
        first.prototype_trace = self.prototype_trace = trace
        register_with_flax()

    def _density(
        self, plain: dict[str, Any], rest: list[str], args: tuple, kwargs: dict
    ) -> tuple[Callable, Callable, str]:
        """The gradient of the log density in values of the sites, its value, and the dtype."""
        # At the start weights may all be zero, and the sites seem not to meet.
        trace = started_trace(self.model, init_to_uniform, random.key(0), args, kwargs)
        others = {name: trace[name]["value"] for name in rest}
        seeded = handlers.seed(self.model, random.key(0))
        dtypes = {site: trace[site]["value"].dtype for site in plain}
        arguments = Arguments(args, kwargs)

        def run(values: dict[str, jax.Array], arrays: list) -> tuple[jax.Array, Any]:
            args, kwargs = arguments.rebuilt(arrays)

            def value(values: dict[str, jax.Array]) -> jax.Array:
                return log_density(seeded, args, kwargs, {**others, **values})[0]

            return jax.value_and_grad(value)(values)

        program = compiled(run, runs_once=True)

        def at(values: dict[str, np.ndarray]) -> tuple[jax.Array, Any]:
            arrays = {site: jnp.asarray(x, dtypes[site]) for site, x in values.items()}
            return program(arrays, arguments.arrays)

        def gradient(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {site: np.asarray(g, float) for site, g in at(values)[1].items()}

        def value(values: dict[str, np.ndarray]) -> float:
            return float(at(values)[0])

        try:
            at({site: np.asarray(trace[site]["value"]) for site in plain})
        except Exception:  # noqa: BLE001  a model may do with its arguments what cannot be traced
            arguments.hold_constant()
            program = compiled(run, runs_once=True)
        return gradient, value, str(next(iter(dtypes.values())))

    # -- what the user reads ----------------------------------------------------------

    def factors(self, params: dict[str, Any]) -> dict[str, Factor]:
        """The factors by site, with ``parameters()``, ``mean`` and ``log_prob``.

        :param params: from ``svi.get_params(svi_state)``.
        """
        return self._guides[0].factors(params)

    def sample_posterior(
        self, rng_key: jax.Array, params: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, jax.Array]:
        """Draws of every latent site, constrained.

        :param rng_key: a JAX random key.
        :param params: from ``svi.get_params(svi_state)``.
        :param sample_shape: shape of independent draws.
        """
        keys = random.split(rng_key, len(self._guides))
        draws = {}
        for key, part in zip(keys, self._guides, strict=True):
            draws.update(part.sample_posterior(key, params, *args, **kwargs))
        return self._latents(draws)

    def median(self, params: dict[str, Any]) -> dict[str, jax.Array]:
        """Posterior median of every latent site, constrained; of a simplex, by coordinate.

        :param params: from ``svi.get_params(svi_state)``.
        """
        return self._latents(super().median(params))

    def quantiles(self, params: dict[str, Any], quantiles: Any) -> dict[str, jax.Array]:
        """Posterior quantiles of every latent site, constrained.

        :param params: from ``svi.get_params(svi_state)``.
        :param quantiles: a number or a list of numbers in (0, 1).
        :return: by site, the shape of ``quantiles`` followed by the site's shape.
        """
        return self._latents(super().quantiles(params, quantiles))

    def _latents(self, values: dict[str, jax.Array]) -> dict[str, jax.Array]:
        # Deterministic sites are those of the Gaussian's model, where factors are held fixed.
        trace = self.prototype_trace
        return {name: x for name, x in values.items() if trace[name]["type"] == "sample"}


def _contains(fn: dist.Distribution, value: np.ndarray) -> Callable[[np.ndarray], bool]:
    def contains(x: np.ndarray) -> bool:
        return bool(jnp.all(fn.support(jnp.asarray(x, value.dtype))))

    return contains
