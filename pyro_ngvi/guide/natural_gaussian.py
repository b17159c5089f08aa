"""The guide: a model's latents <-> one Gaussian family."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoContinuous
from pyro.infer.autoguide.guides import prototype_hide_fn
from pyro.infer.autoguide.initialization import init_to_median
from torch import Tensor
from torch.distributions import Distribution, Transform, biject_to

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi._foreign import note_foreign_arguments
from ngvi._lock import serialised
from ngvi.errors import check_create_plates, check_init_loc_fn, check_quantiles
from ngvi.families.draws import marginal_quantiles, noise_dim
from ngvi.guide import natural_gaussian as guide
from ngvi.guide.distributions import check_not_mixture
from ngvi.guide.robust_init import ROBUST_INIT
from ngvi.latents.choice import FamilyName
from ngvi.latents.subsampling import check_no_local_latents
from pyro_ngvi.families import Family, Mixture
from pyro_ngvi.families.registry import REGISTRY
from pyro_ngvi.guide.checks import (
    LatentShapes,
    check_sites,
    check_svi,
    frozen_parts,
    is_enumerated,
    subsampled_latents,
)
from pyro_ngvi.guide.copies import Copied
from pyro_ngvi.guide.distributions import StructuredNormal, StructuredTransform
from pyro_ngvi.guide.dynamic_supports import dynamic_sites, running_supports
from pyro_ngvi.guide.layout import layout_of
from pyro_ngvi.guide.posterior import NaturalNormal, PosteriorParameters
from pyro_ngvi.guide.prototype import find_start, first_trace, robust_scale
from pyro_ngvi.guide.robust_init import ContinuousOnly, RobustStrategy
from pyro_ngvi.guide.sticking_the_landing import LINEAR_ELBOS, calling_elbo
from pyro_ngvi.guide.subsampled_latents import Minibatch, full_shapes, periodic_repeat
from pyro_ngvi.tracing.messengers import WithoutSequences, check_gradients


def _hide_fn(msg: Any) -> bool:
    return prototype_hide_fn(msg) or is_enumerated(msg)


@shared_doc(guide.NaturalGaussianGuide)
class NaturalGaussianGuide(guide.NaturalGaussianGuide, Copied, AutoContinuous):
    """``backward`` leaves the natural gradient on the parameters.

    Optimise them with ``pyro_ngvi.Snngm`` or ``Nagm``:

    >>> from pyro.infer import Trace_ELBO
    >>> guide = NaturalGaussianGuide(model)
    >>> svi = SVI(model, guide, Snngm(), Trace_ELBO())
    >>> losses = [svi.step(y) for _ in range(300)]
    >>> f"{guide.median()['mean']:.1f}"
    '2.0'
    >>> print(guide)
    NaturalGaussianGuide(family='covariance_cholesky' [auto: 1 latents, dense up to 1000], d=1, ...)

    The guide has one submodule, ``posterior``, whose parameters are the coordinates of a
    :class:`~pyro_ngvi.families.Family`.
    """

    _registry: ClassVar[Any] = REGISTRY
    _svi = pyro.infer.SVI
    _normal, _structured, _minibatch_type = NaturalNormal, StructuredNormal, Minibatch
    _dist: ClassVar[Any] = dist
    _calling_elbo = staticmethod(calling_elbo)
    _linear_elbos: ClassVar[Any] = LINEAR_ELBOS
    _subsampled_latents = staticmethod(subsampled_latents)
    _prototype_hide_fn = staticmethod(_hide_fn)

    @door
    def __init__(
        self,
        model: Callable,
        family: Family | type[Family] | FamilyName = "auto",
        *,
        init_loc_fn: Callable = init_to_median,
        init_scale: float | None = None,
        create_plates: Callable | None = None,
        sticking_the_landing: bool | str = "auto",
    ) -> None:
        self._take_options(model, family, init_scale, sticking_the_landing)
        self._strategy = RobustStrategy(check_init_loc_fn(init_loc_fn))
        super().__init__(WithoutSequences()(model), init_loc_fn=ContinuousOnly(self._strategy))
        self._model_as_given = (model,)  # without the strategy, and no submodule
        self.create_plates = check_create_plates(create_plates)

    @property
    def _needs_model(self) -> bool:
        return super()._needs_model or bool(self._dynamic)

    # -- set-up -----------------------------------------------------------------------

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        with frozen_parts(self._model_as_given):
            self._set_up(*args, **kwargs)

    def _set_up(self, *args: Any, **kwargs: Any) -> None:
        check_gradients("The first call of a guide", "Later calls and draws")
        check_svi(self)
        with note_foreign_arguments(
            args, kwargs, "torch.as_tensor", str(torch.get_default_dtype())
        ):
            trace = first_trace(self, args, kwargs)
        self._check_trace(trace)
        try:
            find_start(self, args, kwargs)
            self._dynamic = dynamic_sites(self.model, self.prototype_trace, args, kwargs)
            # A support is found in a run of the model, which takes arguments.
            self._arguments = (args, kwargs) if self._dynamic else None
            if local := self._take_supports(self._unconstrained_shapes):
                shapes = full_shapes(self._unconstrained_shapes, self.prototype_trace, local)
                self._unconstrained_shapes = shapes
                self.latent_dim = sum(shape.numel() for shape in shapes.values())
            self._take_layout(layout_of(self, self.model, args, kwargs))
            loc = self._init_loc()
        except Exception:
            self.prototype_trace = None  # a guide that failed to set up is not set up
            raise
        self._latent_shapes = LatentShapes(
            self.prototype_trace, self._plates, args, kwargs, subsampled=self._has_plates
        )
        scale = self._init_scale(loc, args, kwargs)
        self.posterior = PosteriorParameters(self.family.initial(loc, scale))

    def _check_trace(self, trace: poutine.Trace) -> None:
        check_sites(trace)
        self._plates = LatentShapes.plate_sizes(trace)
        if not self._has_plates:
            check_no_local_latents(subsampled_latents(trace), self._no_local_latents)

    def _init_scale(self, loc: Tensor, args: tuple, kwargs: dict) -> float | Tensor:
        """Return the initial sd of the latents: the user's, or else as narrow as it must be.

        :param loc: the start, in the model's coordinates.
        """
        if self._requested_scale is not None:
            return self._requested_scale
        if self._has_plates:
            return ROBUST_INIT.scale  # the model's minibatch has not all latents
        return robust_scale(self, loc, args, kwargs)

    @property
    def _has_plates(self) -> bool:
        """Presence of plates that the user makes; for a list of guides, the list's own."""
        owner = self if self.master is None else self.master()
        return owner.create_plates is not None

    def _init_loc(self) -> Tensor:
        parts = []
        for name, site in self.prototype_trace.iter_stochastic_nodes():
            value = biject_to(site["fn"].support).inv(site["value"].detach())
            parts.append(periodic_repeat(value, self._unconstrained_shapes[name]).reshape(-1))
        return torch.cat(parts)

    __call__ = serialised(AutoContinuous.__call__)
    median = serialised(AutoContinuous.median)

    # -- draws ------------------------------------------------------------------------

    def _unpack_latent(self, latent: Tensor) -> Iterator[tuple[dict[str, Any], Tensor]]:
        unpacked, supports = list(self._cut(latent)), self._supports
        if self._dynamic:
            values = {site["name"]: value for site, value in unpacked}
            model = self._model_as_given[0]
            supports = running_supports(model, self._dynamic, values, *self._arguments)
        for site, value in unpacked:
            if site["name"] not in supports:
                yield site, value
                continue
            support = supports[site["name"]]
            fn = SimpleNamespace(support=support, event_dim=site["fn"].event_dim)
            yield {**site, "fn": fn}, value

    def _cut(self, latent: Tensor) -> Iterator[tuple[dict[str, Any], Tensor]]:
        """Cut the latent vector into sites, as Pyro does, in one operation.

        Its derivative is one concatenation. That of a slice is a vector of zeros with the slice in
        it, to be added to those of all others.
        """
        sites = list(self.prototype_trace.iter_stochastic_nodes())
        shapes = [self._unconstrained_shapes[name] for name, _ in sites]
        parts = latent.split([shape.numel() for shape in shapes], -1)
        for (_, site), shape, part in zip(sites, shapes, parts, strict=True):
            if latent.dim() > 1:
                event_dim = site["fn"].event_dim + len(shape) - site["value"].dim()
                shape = torch.broadcast_shapes(shape, (*latent.shape[:-1], *[1] * event_dim))
            # A copy, which the model may write to.
            yield site, part.clone().view(shape)

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        # A copy has no model.
        if self.prototype_trace is not None and self._model is not None:
            self._latent_shapes.check(self.model, args, kwargs)
            if self._dynamic:
                self._arguments = args, kwargs
        if not self._has_plates:
            return super().forward(*args, **kwargs)
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        plates = self._create_plates(*args, **kwargs)
        minibatch = self._minibatch(plates)
        if minibatch.are_partial:
            latent = self._sample_subsampled(minibatch)
        else:
            latent = self.sample_latent(*args, **kwargs)
        values = {site["name"]: value for site, value in self._unpack_latent(latent)}
        return minibatch.sample(values, self.prototype_trace.nodes, self._supports, plates)

    def sample_latent(self, *args: Any, **kwargs: Any) -> Tensor:
        """Draw the unconstrained latent vector, with natural gradients."""
        return self._sample_at_site(self._get_posterior())

    def _sample_at_site(self, posterior: Any, is_minibatch: bool = False) -> Tensor:
        infer: Any = {"is_auxiliary": True, "is_minibatch": is_minibatch}
        return pyro.sample(f"_{self._pyro_name}_latent", posterior, infer=infer)

    # -- what the user reads ----------------------------------------------------------

    def get_base_dist(self) -> Distribution:
        """``N(0, I)`` over the latent vector."""
        loc = self._family().mean
        return dist.Normal(torch.zeros_like(loc), torch.ones_like(loc)).to_event(1)

    def get_transform(self, *args: Any, **kwargs: Any) -> Transform:
        """Return the transform from :meth:`get_base_dist` to the posterior."""
        check_not_mixture(self._family())
        return StructuredTransform(self._family())

    def get_posterior(self, *args: Any, **kwargs: Any) -> Distribution:
        """Return the Gaussian over the unconstrained latent vector, as a Pyro distribution.

        :return: a distribution with event shape ``(d,)``.
        """
        return self._distribution(self._family())

    @serialised
    @torch.no_grad()
    def quantiles(self, quantiles: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Posterior quantiles of every latent site, constrained.

        They are the Gaussian's, or the mixture's, even if a fit's ``sample`` corrects its draws.

        :param quantiles: a number or a list of numbers in (0, 1).
        :return: by site, the shape of ``quantiles`` followed by the site's shape.
        :raises ValueError: for numbers outside (0, 1).
        """
        check_quantiles(quantiles)
        family = self._family().detach()
        levels = torch.as_tensor(quantiles, dtype=family.loc.dtype, device=family.loc.device)
        found: dict[str, list[Tensor]] = {}
        for latent in self._latent_quantiles(family, torch.atleast_1d(levels)):
            for site, value in self._unpack_latent(latent):
                constrained = biject_to(site["fn"].support)(value)
                found.setdefault(site["name"], []).append(constrained)
        stacked = {name: torch.stack(values) for name, values in found.items()}
        return stacked if levels.ndim else {name: value[0] for name, value in stacked.items()}

    def _latent_quantiles(self, family: Family, levels: Tensor) -> Tensor:
        """Return quantiles in the model's coordinates, shape ``(levels, d)``."""
        return marginal_quantiles(family, dist.Normal, levels)

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        family = self._family()
        if isinstance(family, Mixture):  # Pyro's median reads the first of them
            half = family.loc.new_tensor([0.5])
            return self._latent_quantiles(family.detach(), half)[0], family.stddev
        return family.mean, family.stddev

    def _family(self) -> Family:
        if self.prototype_trace is None:
            raise RuntimeError(
                "The guide has no posterior before its first call: run svi.step(...) or "
                "guide(...) once."
            )
        return self.posterior.family()

    def _family_of(self, params: dict[str, Tensor]) -> Family:
        """Return the family at a copy of the parameter store, or at its own values without one.

        :param params: constrained parameters by their names in the store.
        """
        specification: Any = self.posterior._specification
        names = {key: f"{self.posterior._pyro_name}.{key}" for key in specification.coordinates()}
        if not params.keys() >= set(names.values()):
            return self._family().detach()
        values = {key: params[name].detach() for key, name in names.items()}
        return dataclasses.replace(specification, **values)

    def _sample(self, family: Family, num_samples: int) -> dict[str, Tensor]:
        """Draws of every latent site, constrained, from a family of this guide."""
        return self._constrained(
            family.sample(family.loc.new_empty(num_samples, noise_dim(family)).normal_())
        )

    def _constrained(self, latent: Tensor) -> dict[str, Tensor]:
        """Values of every latent site at the guide's vectors ``(N, d)``."""
        return self._in_supports(latent)

    def _in_supports(self, latent: Tensor) -> dict[str, Tensor]:
        """Values of every latent site at vectors ``(N, d)`` in the model's coordinates."""
        if self._dynamic:
            rows = [
                {site["name"]: biject_to(site["fn"].support)(value) for site, value in draw}
                for draw in map(self._unpack_latent, latent)
            ]
            return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        draws = {}
        for site in self.sites:
            value = latent[:, site.start : site.start + site.size]
            prototype = self.prototype_trace.nodes[site.name]["fn"]
            support = self._supports.get(site.name, prototype.support)
            draws[site.name] = biject_to(support)(value.reshape(len(latent), *site.shape))
        return draws

    def _at_start(self) -> Family:
        return self.posterior.family()
