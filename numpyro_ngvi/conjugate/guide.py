"""The guide with exponential families of some sites beside the Gaussian of all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from jax.scipy import special
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer.autoguide import AutoGuide, AutoGuideList
from numpyro.infer.initialization import init_to_median, init_to_uniform
from numpyro.infer.util import log_density

from ngvi._docs import shared_doc
from ngvi.conjugate import guide, site
from ngvi.conjugate.conjugacy import Density
from ngvi.errors import check_init_loc_fn, check_quantiles
from ngvi.latents.choice import FamilyName
from numpyro_ngvi.families import Family
from numpyro_ngvi.guide.checks import subsampled_latents
from numpyro_ngvi.guide.natural_gaussian import NaturalGaussianGuide
from numpyro_ngvi.guide.prototype import started_trace
from numpyro_ngvi.guide.sticking_the_landing import calling_elbo
from numpyro_ngvi.pytree import register, register_with_flax
from numpyro_ngvi.tracing.arguments import Arguments, is_traced
from numpyro_ngvi.tracing.compilation import compiled
from numpyro_ngvi.tracing.sites import is_enumerated


@register
class ConjugateSite(site.ConjugateSite):
    """A conjugate site whose natural parameters are an array: a pytree."""

    xp = jnp
    digamma = staticmethod(special.digamma)
    lgamma = staticmethod(special.gammaln)

    def at(self, signs: Any) -> jax.Array:
        return _at(self, jnp.asarray(signs, self.loc.dtype))

    def _jvp(self, function: Callable, at: jax.Array, tangent: jax.Array) -> jax.Array:
        return jax.jvp(function, (at,), (tangent,))[1]


@jax.custom_jvp
def _at(here: ConjugateSite, signs: jax.Array) -> jax.Array:
    return here.points(signs)


@_at.defjvp
def _at_jvp(primals: Any, tangents: Any) -> Any:
    (here, signs), (change, _) = primals, tangents
    return here.points(signs), here.draw_jvp(change.natural, signs)


class Random:
    """Independent draws.

    :param sample_shape: leading axes.
    """

    def __init__(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> None:
        self._key, self._sample_shape = key, sample_shape

    def gamma(self, concentration: jax.Array) -> jax.Array:
        return self._drawn(random.gamma, concentration, concentration)

    def normal(self, like: jax.Array) -> jax.Array:
        return self._drawn(random.normal, like)

    def uniform(self, like: jax.Array) -> jax.Array:
        return self._drawn(random.uniform, like)

    def _drawn(self, draw: Callable, like: jax.Array, *parameters: jax.Array) -> jax.Array:
        self._key, key = random.split(self._key)
        return draw(key, *parameters, (*self._sample_shape, *like.shape), like.dtype)


class ConjugateDistribution(guide.ConjugateDistribution, dist.Distribution):
    """The density of a conjugate site as a NumPyro distribution.

    :param conjugate_site: with natural parameters.
    :param event_dim: of the site.
    """

    arg_constraints: ClassVar[dict] = {}
    reparametrized_params: ClassVar[list] = []
    pytree_data_fields = ("conjugate_site",)
    constraints = constraints

    def __init__(self, conjugate_site: ConjugateSite, event_dim: int) -> None:
        self.conjugate_site = conjugate_site
        shape = conjugate_site.shape
        split = len(shape) - event_dim
        super().__init__(shape[:split], shape[split:], validate_args=False)

    def sample(self, key: jax.Array, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        elbo = calling_elbo()
        if elbo is not None:  # NaturalELBO gives values
            self._refuse(elbo)
        return _draw(self.conjugate_site, key, tuple(sample_shape))

    def log_prob(self, value: jax.Array) -> jax.Array:
        return self._summed(self.conjugate_site.log_prob(value))

    @property
    def mean(self) -> jax.Array:
        return self.conjugate_site.mean


@partial(jax.jit, static_argnums=2)
def _draw(one: ConjugateSite, key: jax.Array, sample_shape: tuple[int, ...]) -> jax.Array:
    return one.draw(Random(key, sample_shape))


class ConjugateSites(guide.ConjugateSites, AutoGuide):
    """Some conjugate sites; a part of :class:`ConjugateGuide`."""

    _ppl, _distribution = numpyro, ConjugateDistribution

    def __init__(self, model: Callable, prefix: str) -> None:
        super().__init__(model, prefix=prefix)
        self.initial: dict[str, ConjugateSite] = {}
        self.frames, self.event_dims = {}, {}

    def start(self, one: ConjugateSite, site: dict[str, Any]) -> None:
        super().start(one, site)
        self.initial[one.site] = one

    def parameter(self, site: str) -> str:
        """Return the name of a site's parameter."""
        return f"{self.prefix}_{site}_conjugate"

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        frames = [frame for frames in self.frames.values() for frame in frames]
        plates = {one.name: numpyro.plate(one.name, one.size, dim=one.dim) for one in frames}
        pairs = self.initial.items()
        sites = {name: numpyro.param(self.parameter(name), one) for name, one in pairs}
        return self._sampled(sites, plates)

    def at(self, params: Mapping[str, Any]) -> dict[str, ConjugateSite]:
        """Return the sites by name.

        :param params: from ``svi.get_params(svi_state)``.
        """
        names = {site: self.parameter(site) for site in self.initial}
        for name in names.values():
            if not isinstance(params.get(name), ConjugateSite):
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
        found = self.at(params)
        each = zip(random.split(rng_key, len(found)), found.items(), strict=True)
        return {name: _draw(one, key, tuple(sample_shape)) for key, (name, one) in each}

    def median(self, params: dict[str, Any]) -> dict[str, jax.Array]:
        return self.quantiles(params, 0.5)

    def quantiles(self, params: dict[str, Any], quantiles: Any) -> dict[str, jax.Array]:
        check_quantiles(quantiles)
        sites = self.at(params).items()
        return {name: jnp.asarray(one.quantiles(quantiles), one.loc.dtype) for name, one in sites}


@shared_doc(guide.ConjugateGuide, NaturalGaussianGuide)
class ConjugateGuide(guide.ConjugateGuide, AutoGuideList):
    """Each conjugate site is one of its parameters, ``{prefix}_{site}_conjugate``.

    The Gaussian is another one, if there are other latents.

    >>> from numpyro_ngvi.conjugate import ConjugateGuide
    >>> def normal(y):
    ...     mean = sample("mean", dist.Normal(0.0, 10.0))
    ...     precision = sample("precision", dist.Gamma(2.0, 2.0))
    ...     with plate("rows", 3):
    ...         sample("y", dist.Normal(mean, precision**-0.5), obs=y)
    >>> guide = ConjugateGuide(normal, {"precision": "gamma"})
    >>> svi = SVI(normal, guide, BLR(), NaturalELBO(), rng_key=jax.random.key(0))
    >>> losses = [svi.step(y) for _ in range(20)]

    :param prefix: prefix of the guide's sites and parameters.
    """

    _site = ConjugateSite

    def __init__(
        self,
        model: Callable,
        conjugate: Mapping[str, str],
        family: Family | type[Family] | FamilyName = "auto",
        *,
        prefix: str = "auto",
        init_loc_fn: Callable = init_to_median,
        init_scale: float | None = None,
        relative_step_size: float = 1.0,
    ) -> None:
        self._take_options(model, conjugate, relative_step_size)
        super().__init__(model, prefix=prefix, init_loc_fn=check_init_loc_fn(init_loc_fn))
        rest = handlers.block(handlers.substitute(model, data=self._given), self._is_hidden)
        gaussian = NaturalGaussianGuide(
            rest, family, prefix=prefix, init_loc_fn=init_loc_fn, init_scale=init_scale
        )
        self._guides = [ConjugateSites(model, prefix), gaussian]

    def _is_hidden(self, site: dict[str, Any]) -> bool:
        """Say whether the Gaussian's model hides a site.

        Deterministic sites are wrong there, where conjugate sites are held fixed.
        """
        return site["type"] == "deterministic" or site.get("name") in self.conjugate

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        if is_traced((args, kwargs)):
            raise ValueError(
                "The first call of a ConjugateGuide takes the data: call svi.init(...), "
                "svi.step(...) or svi.run(...) outside of jax.jit once."
            )
        key = numpyro.prng_key()
        if key is None or isinstance(key, jax.core.Tracer):
            key = random.key(0)
        trace = started_trace(self.model, self.init_loc_fn, key, args, kwargs)
        sites = {name: site for name, site in trace.items() if site["type"] == "sample"}
        first, local = self._guides[0], subsampled_latents(trace)
        with handlers.block():
            if not self._set_up_sites(first, sites, local, is_enumerated, args, kwargs):
                self._guides = [first]
        first.prototype_trace = self.prototype_trace = trace
        register_with_flax()

    @staticmethod
    def _array(values: Any, like: jax.Array) -> jax.Array:
        return jnp.asarray(values, like.dtype)

    def _density(self, rest: list[str], args: tuple, kwargs: dict) -> Density:
        # At the start weights may all be zero, and the sites seem not to meet.
        trace = started_trace(self.model, init_to_uniform, random.key(0), args, kwargs)
        others = {name: trace[name]["value"] for name in rest}
        seeded = handlers.seed(self.model, random.key(0))
        arguments = Arguments(args, kwargs)

        def value(values: dict[str, jax.Array], arrays: list) -> jax.Array:
            return log_density(seeded, *arguments.rebuilt(arrays), {**others, **values})[0]

        run = jax.value_and_grad(value)
        program = compiled(run, runs_once=True)

        def density(values: Mapping[str, np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
            at = {name: self._array(x, trace[name]["value"]) for name, x in values.items()}
            value, gradient = program(at, arguments.arrays)
            return float(value), {name: np.asarray(g, float) for name, g in gradient.items()}

        try:
            density({name: trace[name]["value"] for name in self.conjugate})
        except Exception:  # noqa: BLE001  a model may do with its arguments what cannot be traced
            arguments.hold_constant()
            program = compiled(run, runs_once=True)
        return density

    def conjugate_sites(self, params: dict[str, Any]) -> dict[str, ConjugateSite]:
        """Return the conjugate sites by name, with ``parameters()``, ``mean`` and ``log_prob``.

        :param params: from ``svi.get_params(svi_state)``.
        """
        return self._guides[0].at(params)

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
        return draws
