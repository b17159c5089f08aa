"""The guide: a model's latents <-> one Gaussian family."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.distributions.transforms import Transform, biject_to
from numpyro.infer import SVI, TraceEnum_ELBO
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_median

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi._foreign import note_foreign_arguments
from ngvi._lock import serialised
from ngvi.errors import (
    NoLatentsError,
    check_create_plates,
    check_init_loc_fn,
    check_quantiles,
    no_latents,
)
from ngvi.families.draws import marginal_quantiles, noise_dim
from ngvi.guide import natural_gaussian as guide
from ngvi.guide.checks import invalid_start
from ngvi.guide.distributions import check_not_mixture
from ngvi.latents.choice import FamilyName
from ngvi.latents.subsampling import check_no_local_latents
from numpyro_ngvi.families import Family, Mixture
from numpyro_ngvi.families.registry import REGISTRY
from numpyro_ngvi.guide.checks import (
    CheckedSites,
    LatentShapes,
    check_svi,
    subsampled_latents,
    without_density,
)
from numpyro_ngvi.guide.distributions import StructuredNormal, StructuredTransform
from numpyro_ngvi.guide.dynamic_supports import running_supports
from numpyro_ngvi.guide.layout import layout_of
from numpyro_ngvi.guide.posterior import NaturalNormal, drawing
from numpyro_ngvi.guide.prototype import set_up_prototype
from numpyro_ngvi.guide.sticking_the_landing import LINEAR_ELBOS, calling_elbo
from numpyro_ngvi.guide.subsampled_latents import InPlates, Minibatch, full_locs, unpacking
from numpyro_ngvi.pytree import register_with_flax
from numpyro_ngvi.tracing.arguments import is_traced
from numpyro_ngvi.tracing.compilation import compiled
from numpyro_ngvi.tracing.partly_observed import idle_latents


@contextlib.contextmanager
def _without_support_warnings() -> Iterator[None]:
    # What NumPyro warns of during set-up, the guide's own error says with the site's name.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Out-of-support values")
        yield


@shared_doc(guide.NaturalGaussianGuide)
class NaturalGaussianGuide(guide.NaturalGaussianGuide, AutoContinuous):
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

    _registry = REGISTRY
    _svi = SVI
    _init_locs: dict[str, jax.Array]
    #: The findings about the same model that guides of one fit share while they are set up.
    _of_fit: dict | None = None
    _normal, _structured, _minibatch_type = NaturalNormal, StructuredNormal, Minibatch
    _dist: ClassVar[Any] = dist
    _calling_elbo = staticmethod(calling_elbo)
    _linear_elbos: ClassVar[Any] = LINEAR_ELBOS
    _subsampled_latents = staticmethod(subsampled_latents)

    @door
    def __init__(
        self,
        model: Callable,
        family: Family | type[Family] | FamilyName = "auto",
        *,
        prefix: str = "auto",
        init_loc_fn: Callable = init_to_median,
        init_scale: float | None = None,
        create_plates: Callable | None = None,
        sticking_the_landing: bool | str = "auto",
    ) -> None:
        self._take_options(model, family, init_scale, sticking_the_landing)
        self.model_as_given = model  # with its enumerated latents
        self._new_arguments: tuple[tuple, dict] | None = None
        # What NaturalELBO has found: sites, an obstacle, and whether it was looked for.
        self.missed_curvature: list[str] | None = None
        self.not_additive: Exception | None = None
        self.is_looked_at = False
        super().__init__(
            CheckedSites(model),
            prefix=prefix,
            init_loc_fn=check_init_loc_fn(init_loc_fn),
            create_plates=check_create_plates(create_plates),
        )

    # -- set-up -----------------------------------------------------------------------

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        try:
            with _without_support_warnings():
                self._init_scale = set_up_prototype(self, args, kwargs)
        except Exception as error:
            trace, self.prototype_trace = self.prototype_trace, None
            self._explain(error, trace, args, kwargs)
            raise
        try:
            self._plates = LatentShapes.plate_sizes(self.prototype_trace)
            self._check_latents()
            local = self._take_supports(self._init_locs)
            self._init_locs = full_locs(self._init_locs, self.prototype_trace, local)
            self._init_latent, self._unpack_latent = unpacking(self._init_locs)
            self.latent_dim = jnp.size(self._init_latent)
            trace = self.prototype_trace
            self.idle_latents = idle_latents(self.model_as_given, trace, args, kwargs)
            self._take_layout(layout_of(self, self.model_as_given, args, kwargs))
        except Exception:
            # A guide that failed to set up is not set up: the next call fails as well.
            self.prototype_trace = None
            raise
        register_with_flax()
        initial = partial(self.family.initial, scale=self._init_scale)
        self._initial_posterior = compiled(initial, runs_once=True)(self._init_latent)
        self._latent_shapes = LatentShapes(
            self.prototype_trace, self._plates, args, kwargs, subsampled=self._has_plates
        )
        check_svi(self, {self._parameter_name: self._initial_posterior})

    def hide_data(self, args: tuple, kwargs: dict) -> bool:
        """Leave the data out of the set-up if only enumerated latents make them impossible.

        These are drawn now and summed out later.

        :return: whether they are left out.
        """
        is_possible = False
        with contextlib.suppress(Exception):  # the set-up fails as well, and says why
            if self.model.enumerated:
                _, is_possible = without_density(self.model, self.init_loc_fn, args, kwargs)
        self.model.hides_data = is_possible
        return is_possible

    def _check_latents(self) -> None:
        trace = self.prototype_trace
        if not sum(map(jnp.size, self._init_locs.values())):
            sites, params = (
                [name for name, site in trace.items() if site["type"] == kind]
                for kind in ("sample", "param")
            )
            sites = [*self.model.enumerated, *sites]
            prior = "random_flax_module, random_nnx_module or their like"
            raise NoLatentsError(no_latents(sites, params, prior))
        if not self._has_plates:
            check_no_local_latents(subsampled_latents(trace), self._no_local_latents)

    def _explain(self, error: Exception, trace: Any, args: tuple, kwargs: dict) -> None:
        """Say what NumPyro's own errors leave out, which name no site."""
        if trace is not None:
            check_no_local_latents(subsampled_latents(trace), self._no_local_latents)
        if "has a delta distribution" in str(error):
            return  # which says it all
        is_start = "Cannot find valid initial parameters" in str(error)
        if is_start or isinstance(error, (TypeError, ValueError)):
            with _without_support_warnings():
                bad, _ = without_density(self.model, self.init_loc_fn, args, kwargs)
            if is_start or bad:
                raise invalid_start(bad) from error

    def set_up(self, *args: Any, **kwargs: Any) -> dict[str, Family]:
        """Set the guide up at its first call; later calls only check the arguments.

        As NumPyro's guides do, it takes a key from the handler around it.

        :return: the guide's parameters at its start.
        """
        if self.prototype_trace is None:
            with note_foreign_arguments(args, kwargs, "jnp.asarray"):
                self._setup_prototype(*args, **kwargs)
        else:
            self._latent_shapes.check(self.model_as_given, args, kwargs)
        if not is_traced((args, kwargs)):
            self._new_arguments = (args, kwargs)
        return {self._parameter_name: self._initial_posterior}

    def take_arguments(self) -> tuple[tuple, dict] | None:
        """Return the arguments of the last call outside of a trace, once, or None."""
        found, self._new_arguments = self._new_arguments, None
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        self.set_up(*args, **kwargs)
        # Or it would take the plates of the model's latents for axes without a name.
        in_plates = bool(self._prototype_frames) and isinstance(calling_elbo(), TraceEnum_ELBO)
        if not self._has_plates and not self._dynamic and not in_plates:
            return super().__call__(*args, **kwargs)
        plates: dict[str, Any] = {}
        if self._has_plates or in_plates:
            plates = self._create_plates(*args, **kwargs)  # their sites carry the indices
        minibatch = self._minibatch(plates, InPlates if in_plates else Minibatch)
        latent = (
            self._sample_subsampled(minibatch) if minibatch.are_partial else self._sample_latent()
        )
        values = self._unpack_latent(latent)
        supports = self._supports
        if self._dynamic:
            known = self.prototype_trace, self._dynamic, values
            supports = running_supports(self.model, (args, kwargs), *known)
        return minibatch.sample(values, self.prototype_trace, supports, plates)

    def _sample_latent(self, *args: Any, **kwargs: Any) -> jax.Array:
        return self._sample_at_site(self._get_posterior().expand_by(kwargs.get("sample_shape", ())))

    def _sample_at_site(self, posterior: Any, is_minibatch: bool = False) -> jax.Array:
        infer = {"is_auxiliary": True, "is_minibatch": is_minibatch}
        return numpyro.sample(f"_{self.prefix}_latent", posterior, infer=infer)

    def _family(self) -> Family:
        found = numpyro.param(self._parameter_name, self._initial_posterior)
        dim = found.loc.shape[-1]
        if dim != self.latent_dim:
            raise ValueError(
                f"The guide is given parameters of {dim} latents, and its model has "
                f"{self.latent_dim}. Call it once with its data, handlers.seed(guide, 0)(X, y)."
            )
        return found

    @property
    def _parameter_name(self) -> str:
        return f"{self.prefix}_posterior"

    # -- what the user reads ----------------------------------------------------------

    def get_base_dist(self) -> dist.Distribution:
        """``N(0, I)`` over the latent vector."""
        self._check_set_up()
        zeros = jnp.zeros_like(self._init_latent)
        return dist.Normal(zeros, jnp.ones_like(zeros)).to_event(1)

    def get_transform(self, params: dict[str, Any]) -> Transform:
        """Return the transform from :meth:`get_base_dist` to the posterior.

        :param params: from ``svi.get_params(svi_state)``.
        """
        family = self._family_of(params)
        check_not_mixture(family)
        return StructuredTransform(family)

    def get_posterior(self, params: dict[str, Any]) -> dist.Distribution:
        """Return the Gaussian over the unconstrained latent vector, as a NumPyro distribution.

        :param params: from ``svi.get_params(svi_state)``.
        :return: a distribution with event shape ``(d,)``.
        """
        return self._distribution(self._family_of(params))

    @serialised
    def median(self, params: dict[str, Any]) -> dict[str, jax.Array]:
        """Posterior median of every latent site, constrained.

        :param params: from ``svi.get_params(svi_state)``.
        """
        family = self._family_of(params)
        if not isinstance(family, Mixture):
            return self._unpack_and_constrain(family.mean, params)
        half = jnp.asarray(0.5)
        return self._unpack_and_constrain(self._latent_quantiles(params, half), params)

    @serialised
    def quantiles(self, params: dict[str, Any], quantiles: Any) -> dict[str, jax.Array]:
        """Posterior quantiles of every latent site, constrained.

        They are the Gaussian's, or the mixture's, even if a fit's ``sample`` corrects its draws.

        :param params: from ``svi.get_params(svi_state)``.
        :param quantiles: a number or a list of numbers in (0, 1).
        :return: by site, the shape of ``quantiles`` followed by the site's shape.
        :raises ValueError: for numbers outside (0, 1).
        """
        check_quantiles(quantiles)
        latent = self._latent_quantiles(params, jnp.asarray(quantiles))
        return NaturalGaussianGuide._unpack_and_constrain(self, latent, params)

    def _latent_quantiles(self, params: dict[str, Any], levels: jax.Array) -> jax.Array:
        """Return quantiles in the model's coordinates, levels first."""
        return marginal_quantiles(self._family_of(params), dist.Normal, levels)

    @serialised
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
        draws = drawing((*sample_shape, noise_dim(family)))(rng_key, family)
        return self._unpack_and_constrain(draws, params)

    def _unpack_and_constrain(self, latent_sample: jax.Array, params: Any) -> dict[str, jax.Array]:
        self._check_set_up()
        if not self._supports:
            # NumPyro's is a loop, which would be compiled anew at each call.
            return compiled(super()._unpack_and_constrain)(latent_sample, params)
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
