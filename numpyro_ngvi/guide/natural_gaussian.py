"""The guide: a model's latents <-> one Gaussian family."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.distributions.transforms import Transform, biject_to
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_median

from ngvi._docs import shared_doc
from ngvi.errors import (
    InvalidStartError,
    NoLatentsError,
    check_create_plates,
    check_init_loc_fn,
    check_model,
    check_names,
    check_quantiles,
    no_distribution,
    no_latents,
    note_foreign_arguments,
)
from ngvi.guide import calm
from ngvi.guide import natural_gaussian as guide
from ngvi.guide.landing import check_sticking_the_landing
from ngvi.latents.choice import Choice
from ngvi.latents.dynamic_supports import check_no_dynamic_supports
from ngvi.latents.layout import Layout
from ngvi.latents.subsampling import check_no_local_latents
from numpyro_ngvi.families import Family
from numpyro_ngvi.families.registry import REGISTRY
from numpyro_ngvi.guide.checks import (
    CheckedSites,
    LatentShapes,
    check_empty_plates,
    invalid_start,
    is_enumerated,
    is_impossible_by_chance,
    next_site,
    of_half_precision,
    site_of,
    subsampled_latents,
)
from numpyro_ngvi.guide.dynamic_supports import dynamic_sites, running_supports
from numpyro_ngvi.guide.landing import called_by_linear_elbo
from numpyro_ngvi.guide.layout import layout_of
from numpyro_ngvi.guide.local_latents import (
    Visits,
    full_locs,
    one_support,
    unpacking,
)
from numpyro_ngvi.guide.posterior import NaturalNormal, to_distribution, to_transform
from numpyro_ngvi.guide.prototype import CompiledPrototype
from numpyro_ngvi.pytree import register_with_flax
from numpyro_ngvi.tracing.compilation import compiled
from numpyro_ngvi.tracing.partly_observed import idle_latents


@contextlib.contextmanager
def _without_support_warnings() -> Iterator[None]:
    # What NumPyro warns of during set-up, the guide's own error says with the site's name.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Out-of-support values")
        yield


@shared_doc(guide.NaturalGaussianGuide)
class NaturalGaussianGuide(guide.NaturalGaussianGuide, AutoContinuous, CompiledPrototype):
    """``jax.grad`` of the loss is the natural gradient.

    Optimise the parameter with ``numpyro_ngvi.Snngm`` or ``Nagm``:

    >>> from numpyro.infer import Trace_ELBO
    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, Snngm(), Trace_ELBO(), rng_key=jax.random.key(0))
    >>> losses = [svi.step(y) for _ in range(300)]
    >>> f"{guide.median(svi.params)['mean']:.1f}"
    '2.0'
    >>> print(guide)
    NaturalGaussianGuide(family='covariance_cholesky' [auto: 1 latents, dense up to 1000], d=1, ...)

    The guide has one parameter, ``{prefix}_posterior``, whose value is a
    :class:`~numpyro_ngvi.families.Family`.

    :param prefix: prefix of the guide's sites.
    """

    def __init__(
        self,
        model: Callable,
        family: str | type[Family] | Family = "auto",
        *,
        prefix: str = "auto",
        init_loc_fn: Callable = init_to_median,
        init_scale: float | None = None,
        create_plates: Callable | None = None,
        sticking_the_landing: bool | str = "auto",
    ) -> None:
        self._requested_scale = calm.check_scale(init_scale)
        self._requested_family = REGISTRY.requested(family)
        self.model_as_given = model  # with its enumerated latents
        self._sticking_the_landing = check_sticking_the_landing(sticking_the_landing)
        self._told: tuple[tuple, dict] | None = None
        self.missed_curvature: list[str] | None = None  # what NaturalELBO has found, of sites
        self.not_additive: Exception | None = None  # likewise, of all, ...
        self.is_looked_at = False  #: ... once it was looked for
        check_model(model)
        super().__init__(
            CheckedSites(handlers.block(model, hide_fn=is_enumerated)),
            prefix=prefix,
            init_loc_fn=check_init_loc_fn(init_loc_fn),
            create_plates=check_create_plates(create_plates),
        )

    # -- set-up -----------------------------------------------------------------------

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        try:
            with _without_support_warnings():
                super()._setup_prototype(*args, **kwargs)
        except Exception as error:
            # A guide that failed to set up is not set up: the next call fails as well.
            trace, self.prototype_trace = self.prototype_trace, None
            # NumPyro refuses local latents last, when all else is set up.
            refused = trace is not None and "local latent variables" in str(error)
            if refused and self.create_plates is not None:
                self.prototype_trace = trace
            else:
                self._explain(error, trace, args, kwargs)
                raise
        try:
            own = (self._parameter_name, f"_{self.prefix}_latent")
            check_names(self.prototype_trace, own, "rename it, or give the guide another prefix=.")
            self._dynamic = dynamic_sites(self.model, self.prototype_trace, args, kwargs)
            self._hold_all_elements()
            trace = self.prototype_trace
            self.idle_latents = idle_latents(self.model_as_given, trace, args, kwargs)
            layout = layout_of(self, self.model_as_given, args, kwargs)
            self.family, self._family_reason = self._choose_family(layout)
            self.family = self.family.for_layout(layout)
            self.sites = layout.sites
            if self.create_plates is not None:
                self._visits(self._prototype_frames).check(self.family)
        except Exception:
            self.prototype_trace = None
            raise
        register_with_flax()
        initial = partial(self.family.initial, scale=self._init_scale)
        self._initial_posterior = compiled(initial, runs_once=True)(self._init_latent)
        self._latent_shapes = LatentShapes(
            self.prototype_trace, args, kwargs, subsampled=self.create_plates is not None
        )

    def _hide_data(self, args: tuple, kwargs: dict) -> bool:
        hides = is_impossible_by_chance(self.model_as_given, self.init_loc_fn, args, kwargs)
        self.model.hides_data = hides
        return hides

    def _explain(self, error: Exception, trace: Any, args: tuple, kwargs: dict) -> None:
        """Say what NumPyro's own errors leave out, which name no site."""
        check_empty_plates(error)
        if "found no latent variables" in str(error):
            sites, params = (
                [name for name, site in trace.items() if site["type"] == kind]
                for kind in ("sample", "param")
            )
            raise NoLatentsError(
                no_latents(sites, params, "random_flax_module, random_nnx_module or their like")
            ) from error
        if trace is not None:
            check_no_local_latents(subsampled_latents(trace), self._no_local_latents)
        if "has a delta distribution" in str(error):
            return  # which says it all
        is_start = "Cannot find valid initial parameters" in str(error)
        if not is_start and not isinstance(error, (TypeError, ValueError)):
            return
        with _without_support_warnings():
            reason = invalid_start(self.model, self.init_loc_fn, args, kwargs)
            half = of_half_precision(self.model, self.init_loc_fn, args, kwargs)
        if is_start or reason is not None:
            raise InvalidStartError(
                "The bound is not finite at the guide's starting point: "
                f"{reason or 'its value or its gradient is not finite'}. Check the data and "
                "the priors, or start elsewhere with init_loc_fn=init_to_value(values={...})."
                f"{half}"
            ) from error
        name = site_of(error)
        if name is not None and type(error) in (TypeError, ValueError):
            raise type(error)(f"The model fails at site '{name}': {error}{half}") from error
        if " got invalid " in str(error):
            name = next_site(self.model, self.init_loc_fn, args, kwargs)
            if name is not None:
                raise ValueError(f"{no_distribution(name, error)}{half}") from error

    def _choose_family(self, layout: Layout) -> Choice:
        local = subsampled_latents(self.prototype_trace)
        return REGISTRY.suitable(self._requested_family, local, layout)

    def _hold_all_elements(self) -> None:
        """Let the latent vector have all elements of plates that the prototype subsamples."""
        self._supports: dict[str, Any] = {}
        self._checked_plates: set[frozenset[str]] = set()
        local = subsampled_latents(self.prototype_trace)
        if not local:
            return
        check_no_dynamic_supports(self._dynamic)
        self._init_locs = full_locs(self._init_locs, self.prototype_trace, local)
        self._init_latent, self._unpack_latent = unpacking(self._init_locs)
        self.latent_dim = jnp.size(self._init_latent)
        for name in self._init_locs:
            axes = [latent.axis for latent in local if latent.site == name]
            support = self.prototype_trace[name]["fn"].support
            self._supports[name] = one_support(support, axes, name)

    def set_up(self, *args: Any, **kwargs: Any) -> dict[str, Family]:
        """What the first call does before it draws; later calls only check the arguments.

        As NumPyro's guides do, it takes a key from the handler around it.

        :return: the guide's parameters at its start.
        """
        if self.prototype_trace is None:
            with note_foreign_arguments(args, kwargs, "jnp.asarray"):
                self._setup_prototype(*args, **kwargs)
        else:
            self._latent_shapes.check(self.model, args, kwargs)
        is_traced = any(
            isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))
        )
        if not is_traced:
            self._told = (args, kwargs)
        return {self._parameter_name: self._initial_posterior}

    def take_arguments(self) -> tuple[tuple, dict] | None:
        """Those of the last call that was no part of a trace, once; None if there was none."""
        told, self._told = self._told, None
        return told

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        self.set_up(*args, **kwargs)
        if self.create_plates is None and not self._dynamic:
            return super().__call__(*args, **kwargs)
        plates: dict[str, Any] = {}
        if self.create_plates is not None:
            plates = self._create_plates(*args, **kwargs)  # their sites carry the indices
        visits = self._visits(plates)
        latent = self._sample_visited(visits) if visits.are_partial else self._sample_latent()
        values = self._unpack_latent(latent)
        supports = self._supports
        if self._dynamic:
            run = self.prototype_trace, self._dynamic, values, args, kwargs
            supports = running_supports(self.model, *run)
        return visits.sample(values, self.prototype_trace, supports, plates)

    def _sample_visited(self, visits: Visits) -> jax.Array:
        family = numpyro.param(self._parameter_name, self._initial_posterior)
        if visits.plates not in self._checked_plates:
            visits.check(family)
            self._checked_plates.add(visits.plates)
        posterior = NaturalNormal(visits.of(family), self._sticks_the_landing())
        infer = {"is_auxiliary": True, "is_visited": True}
        with self._named_apart():
            return numpyro.sample(f"_{self.prefix}_latent", posterior, infer=infer)

    def _sample_latent(self, *args: Any, **kwargs: Any) -> jax.Array:
        with self._named_apart():
            return super()._sample_latent(*args, **kwargs)

    @contextlib.contextmanager
    def _named_apart(self) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            if "unique names" not in str(error):
                raise
            raise ValueError(
                f"Two guides in one run have prefix={self.prefix!r}: make one of them with "
                "NaturalGaussianGuide(..., prefix='another')."
            ) from error

    def _visits(self, plates: dict[str, Any]) -> Visits:
        """The elements that plates (or frames of the prototype, the first ones) visit."""
        around = {plate.name for site in self.sites for plate in site.plates}
        indices = {
            name: plate._indices if isinstance(plate, numpyro.plate) else np.arange(plate.size)
            for name, plate in plates.items()
            if name in around
        }
        return Visits(self.sites, indices)

    def _get_posterior(self) -> NaturalNormal:
        family = numpyro.param(self._parameter_name, self._initial_posterior)
        return NaturalNormal(family, self._sticks_the_landing())

    @property
    def _parameter_name(self) -> str:
        return f"{self.prefix}_posterior"

    def _sticks_the_landing(self) -> bool:
        if self._sticking_the_landing == "auto":
            return called_by_linear_elbo()
        return bool(self._sticking_the_landing)

    # -- what the user reads ----------------------------------------------------------

    def get_base_dist(self) -> dist.Distribution:
        """``N(0, I)`` over the latent vector."""
        self._check_set_up()
        zeros = jnp.zeros_like(self._init_latent)
        return dist.Normal(zeros, jnp.ones_like(zeros)).to_event(1)

    def get_transform(self, params: dict[str, Any]) -> Transform:
        """The transform from :meth:`get_base_dist` to the posterior.

        :param params: from ``svi.get_params(svi_state)``.
        """
        return to_transform(self._family_of(params))

    def get_posterior(self, params: dict[str, Any]) -> dist.Distribution:
        """The Gaussian over the unconstrained latent vector, as a NumPyro distribution.

        :param params: from ``svi.get_params(svi_state)``.
        :return: a distribution with event shape ``(d,)``.
        """
        return to_distribution(self._family_of(params))

    def median(self, params: dict[str, Any]) -> dict[str, jax.Array]:
        """Posterior median of every latent site, constrained.

        :param params: from ``svi.get_params(svi_state)``.
        """
        return self._unpack_and_constrain(self._family_of(params).mean, params)

    def quantiles(self, params: dict[str, Any], quantiles: Any) -> dict[str, jax.Array]:
        """Posterior quantiles of every latent site, constrained.

        :param params: from ``svi.get_params(svi_state)``.
        :param quantiles: a number or a list of numbers in (0, 1).
        :return: by site, the shape of ``quantiles`` followed by the site's shape.
        """
        check_quantiles(quantiles)
        family = self._family_of(params)
        levels = jnp.asarray(quantiles)[..., None]
        latent = dist.Normal(family.mean, family.stddev).icdf(levels)
        return self._unpack_and_constrain(latent, params)

    def sample_posterior(
        self,
        rng_key: jax.Array,
        params: dict[str, Any],
        *args: Any,
        sample_shape: tuple[int, ...] = (),
        **kwargs: Any,
    ) -> dict[str, jax.Array]:
        """Draws of every latent site, constrained, and of the deterministic sites.

        :param rng_key: a JAX random key.
        :param params: from ``svi.get_params(svi_state)``.
        :param sample_shape: shape of independent draws.
        """
        family = self._family_of(params)
        noise = random.normal(rng_key, (*sample_shape, family.dim), family.loc.dtype)
        return self._unpack_and_constrain(family.sample(noise), params)

    def _unpack_and_constrain(self, latent_sample: jax.Array, params: Any) -> dict[str, jax.Array]:
        self._check_set_up()
        if not self._supports:
            return super()._unpack_and_constrain(latent_sample, params)
        # Deterministic sites are those of a minibatch: the model does not run with all elements.
        values = self._unpack_latent(latent_sample)
        return {name: biject_to(self._supports[name])(value) for name, value in values.items()}

    def _check_set_up(self) -> None:
        if self.prototype_trace is None:
            raise RuntimeError(
                "The guide has no posterior before its first call: run svi.init(...) or "
                "svi.step(...) once."
            )

    def _family_of(self, params: dict[str, Any]) -> Family:
        found = params.get(self._parameter_name) if isinstance(params, Mapping) else None
        if not isinstance(found, Family):
            raise ValueError(
                f"params has no '{self._parameter_name}'. Pass svi.get_params(svi_state) of the "
                f"SVI that trained this guide (prefix={self.prefix!r})."
            )
        return found

    def _at_start(self) -> Family:
        return self._initial_posterior
