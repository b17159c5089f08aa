"""The guide: a model's latents <-> one Gaussian family."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
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
from ngvi.errors import (
    InvalidStartError,
    check_create_plates,
    check_init_loc_fn,
    check_model,
    check_names,
    check_quantiles,
    note_foreign_arguments,
)
from ngvi.guide import calm
from ngvi.guide import natural_gaussian as guide
from ngvi.guide.landing import check_sticking_the_landing
from ngvi.latents.choice import Choice
from ngvi.latents.dynamic_supports import check_no_dynamic_supports
from ngvi.latents.layout import Layout
from ngvi.latents.subsampling import check_no_local_latents
from pyro_ngvi.families import Diagonal, Family
from pyro_ngvi.families.registry import REGISTRY
from pyro_ngvi.guide.checks import (
    NUM_START_TRIES,
    Calm,
    LatentShapes,
    check_has_latents,
    check_no_discrete_latents,
    check_observed,
    check_precision,
    check_start,
    continuous_only,
    first_trace,
    frozen_parts,
    is_enumerated,
    log_density_at,
    subsampled_latents,
)
from pyro_ngvi.guide.dynamic_supports import dynamic_sites, running_supports
from pyro_ngvi.guide.landing import called_by_linear_elbo
from pyro_ngvi.guide.layout import layout_of
from pyro_ngvi.guide.local_latents import (
    Visits,
    full_shapes,
    one_support,
    periodic_repeat,
)
from pyro_ngvi.guide.posterior import (
    NaturalNormal,
    PosteriorParameters,
    to_distribution,
    to_transform,
)
from pyro_ngvi.tracing.messengers import WithoutSequences, check_gradients

#: Points that a random strategy may try.
MAX_STARTS = 50


def _hide_fn(msg: Any) -> bool:
    return prototype_hide_fn(msg) or is_enumerated(msg)


@shared_doc(guide.NaturalGaussianGuide)
class NaturalGaussianGuide(guide.NaturalGaussianGuide, AutoContinuous):
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

    def __init__(
        self,
        model: Callable,
        family: str | type[Family] | Family = "auto",
        *,
        init_loc_fn: Callable = init_to_median,
        init_scale: float | None = None,
        create_plates: Callable | None = None,
        sticking_the_landing: bool | str = "auto",
    ) -> None:
        self._requested_scale = calm.check_scale(init_scale)
        self._requested_family = REGISTRY.requested(family)
        self._sticking_the_landing = check_sticking_the_landing(sticking_the_landing)
        check_model(model)
        self._calm = Calm() if init_loc_fn is init_to_median else None
        init_loc_fn = continuous_only(self._calm or check_init_loc_fn(init_loc_fn))
        super().__init__(WithoutSequences()(model), init_loc_fn=init_loc_fn)
        self._model_as_given = (model,)  # without the strategy, and no submodule
        self.create_plates = check_create_plates(create_plates)

    _prototype_hide_fn = staticmethod(_hide_fn)

    def __getstate__(self) -> dict[str, Any]:
        self._model_as_given = None
        return super().__getstate__()

    # -- set-up -----------------------------------------------------------------------

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        with frozen_parts(self._model_as_given):
            self._set_up(*args, **kwargs)

    def _set_up(self, *args: Any, **kwargs: Any) -> None:
        check_gradients("The first call of a guide", "Later calls and draws")
        with note_foreign_arguments(args, kwargs, "torch.as_tensor", (np.ndarray,)):
            trace = self._first_trace(args, kwargs)
        check_no_discrete_latents(trace)
        check_names(trace.nodes, (f"_{self._pyro_name}_latent",), "rename it.")
        check_has_latents(trace)
        check_observed(trace)
        if not self._has_plates:
            check_no_local_latents(subsampled_latents(trace), self._no_local_latents)
        try:
            self._find_start(args, kwargs)
            self._dynamic = dynamic_sites(self.model, self.prototype_trace, args, kwargs)
            # A support is found in a run of the model, which takes arguments.
            self._arguments = (args, kwargs) if self._dynamic else None
            self._hold_all_elements()
            layout = layout_of(self, self.model, args, kwargs)
            self.family, self._family_reason = self._choose_family(layout)
            self.family = self.family.for_layout(layout)
            loc = self._init_loc()
            if not isinstance(self.family, Diagonal):
                check_precision(self.prototype_trace, loc)
            self.sites = layout.sites
            if self._has_plates:
                self._visits(self._prototype_frames).check(self.family)
        except Exception:
            self.prototype_trace = None  # a guide that failed to set up is not set up
            raise
        self._latent_shapes = LatentShapes(
            self.prototype_trace, args, kwargs, subsampled=self._has_plates
        )
        scale = self._init_scale(loc, args, kwargs)
        self.posterior = PosteriorParameters(self.family.initial(loc, scale))

    def _first_trace(self, args: tuple, kwargs: dict) -> poutine.Trace:
        """At the start, or at a calmer one if the choice is the guide's and the model fails."""
        if self._calm is None:
            return first_trace(self.model, args, kwargs)
        errors = []
        for kind in Calm.KINDS:
            self._calm.kind = kind
            try:
                return first_trace(self.model, args, kwargs)
            except Exception as error:  # noqa: BLE001  the model's own, which is raised again
                errors.append(error)
        raise errors[0]

    def _find_start(self, args: tuple, kwargs: dict) -> None:
        """Where the density is finite, calm if the choice is the guide's."""
        if self._calm is None:
            self._find_finite(args, kwargs)
            return
        errors = []
        for kind in Calm.KINDS[self._calm.kind :]:
            self._calm.kind = kind
            try:
                self._find_finite(args, kwargs)
                break
            except InvalidStartError as error:
                errors.append(error)
        else:
            raise errors[0]
        self._find_calmer(args, kwargs)

    def _find_finite(self, args: tuple, kwargs: dict) -> None:
        """Where the density is finite, in as many tries as a random strategy takes."""
        before: dict[str, Tensor] = {}
        for left in reversed(range(MAX_STARTS)):
            start: dict[str, Tensor] = {}
            try:
                start = self._next_start(args, kwargs)
                tries = 1 if before else NUM_START_TRIES
                check_start(self._model_as_given[0], start, args, kwargs, tries)
                break
            except InvalidStartError:
                is_same = before and all(torch.equal(start[n], before[n]) for n in start)
                if not left or (start and is_same):
                    raise
            before = start or before

    def _next_start(self, args: tuple, kwargs: dict) -> dict[str, Tensor]:
        try:
            super()._setup_prototype(*args, **kwargs)
        except ValueError as error:  # the first trace had none: it comes with the start
            raise InvalidStartError(str(error)) from error
        return self._start()

    def _find_calmer(self, args: tuple, kwargs: dict) -> None:
        """Take a calm start where the one that is there is low."""
        model, found = self._model_as_given[0], self.prototype_trace
        level = log_density_at(model, self._start(), args, kwargs)
        for kind in Calm.KINDS[self._calm.kind + 1 :]:
            if not calm.is_low(level):
                break
            self._calm.kind = kind
            try:
                other = log_density_at(model, self._next_start(args, kwargs), args, kwargs)
            except InvalidStartError:
                other = math.nan
            if calm.is_calmer(other, level):
                level, found = other, self.prototype_trace
            self.prototype_trace = found

    def _start(self) -> dict[str, Tensor]:
        """The constrained values of the prototype's latents."""
        latents = dict(self.prototype_trace.iter_stochastic_nodes())
        return {name: site["value"].detach() for name, site in latents.items()}

    def _init_scale(self, loc: Tensor, args: tuple, kwargs: dict) -> float | Tensor:
        """The initial sd of the latents: what the user asks for, or else a calm one.

        :param loc: the start, in the model's coordinates.
        """
        if self._requested_scale is not None:
            return self._requested_scale
        if self._has_plates:
            return calm.SCALE  # the model's minibatch has not all latents
        directions = torch.as_tensor(calm.directions(len(loc))).to(loc)
        model = self._model_as_given[0]

        def around(scale: float) -> list[float]:
            draws = (self._in_supports(loc + scale * one[None]) for one in directions)
            starts = ({name: value[0] for name, value in draw.items()} for draw in draws)
            return [log_density_at(model, start, args, kwargs) for start in starts]

        start = log_density_at(model, self._start(), args, kwargs)
        if not calm.explodes(around(calm.SCALE), start):
            return calm.SCALE
        return calm.narrow_scale([around(scale) for scale in calm.NARROWER], start, len(loc))

    @property
    def _has_plates(self) -> bool:
        """Whether the user makes the plates; for a list of guides, the list's own."""
        owner = self if self.master is None else self.master()
        return owner.create_plates is not None

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
        shapes = full_shapes(self._unconstrained_shapes, self.prototype_trace, local)
        self._unconstrained_shapes = shapes
        self.latent_dim = sum(shape.numel() for shape in shapes.values())
        for name in shapes:
            axes = [latent.axis for latent in local if latent.site == name]
            support = self.prototype_trace.nodes[name]["fn"].support
            self._supports[name] = one_support(support, axes, name)

    def _init_loc(self) -> Tensor:
        parts = []
        for name, site in self.prototype_trace.iter_stochastic_nodes():
            value = biject_to(site["fn"].support).inv(site["value"].detach())
            parts.append(periodic_repeat(value, self._unconstrained_shapes[name]).reshape(-1))
        return torch.cat(parts)

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
        """As Pyro does, in one operation, whose derivative is one concatenation. That of a slice
        is a vector of zeros with the slice in it, to be added to those of all others.
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
        # Pickling a guide drops its model, in the copy and in the original.
        if self.prototype_trace is not None and self._model is not None:
            self._latent_shapes.check(self.model, args, kwargs)
            if self._dynamic:
                self._arguments = args, kwargs
        if not self._has_plates:
            return super().forward(*args, **kwargs)
        if self.prototype_trace is None:
            self._setup_prototype(*args, **kwargs)
        plates = self._create_plates(*args, **kwargs)
        visits = self._visits(plates)
        if visits.are_partial:
            latent = self._sample_visited(visits)
        else:
            latent = self.sample_latent(*args, **kwargs)
        values = {site["name"]: value for site, value in self._unpack_latent(latent)}
        return visits.sample(values, self.prototype_trace.nodes, self._supports, plates)

    def _sample_visited(self, visits: Visits) -> Tensor:
        family = self._family()
        if visits.plates not in self._checked_plates:
            visits.check(family)
            self._checked_plates.add(visits.plates)
        posterior = NaturalNormal(visits.of(family), self._sticks_the_landing())
        return self._sample_at_site(posterior, is_visited=True)

    def _visits(self, plates: dict[str, Any]) -> Visits:
        """The elements that plates (or frames of the prototype, the first ones) visit."""
        around = {plate.name for site in self.sites for plate in site.plates}
        indices = {
            name: torch.as_tensor(plate.indices)
            if isinstance(plate, pyro.plate)
            else torch.arange(int(plate.size))
            for name, plate in plates.items()
            if name in around
        }
        return Visits(self.sites, indices)

    def sample_latent(self, *args: Any, **kwargs: Any) -> Tensor:
        """A draw of the unconstrained latent vector, with natural gradients."""
        posterior = NaturalNormal(self._family(), self._sticks_the_landing())
        return self._sample_at_site(posterior)

    def _sample_at_site(self, posterior: Any, is_visited: bool = False) -> Tensor:
        infer: Any = {"is_auxiliary": True, "is_visited": is_visited}
        try:
            return pyro.sample(f"_{self._pyro_name}_latent", posterior, infer=infer)
        except RuntimeError as error:
            if "Multiple sample sites" not in str(error):
                raise
            raise ValueError(
                f"Two guides in one run are called {self._pyro_name!r}: put them into an "
                "AutoGuideList, or make them attributes of one PyroModule, which tell them apart."
            ) from error

    def _sticks_the_landing(self) -> bool:
        if self._sticking_the_landing == "auto":
            return called_by_linear_elbo()
        return bool(self._sticking_the_landing)

    # -- what the user reads ----------------------------------------------------------

    def get_base_dist(self) -> Distribution:
        """``N(0, I)`` over the latent vector."""
        loc = self._family().loc
        return dist.Normal(torch.zeros_like(loc), torch.ones_like(loc)).to_event(1)

    def get_transform(self, *args: Any, **kwargs: Any) -> Transform:
        """The transform from :meth:`get_base_dist` to the posterior."""
        return to_transform(self._family())

    def get_posterior(self, *args: Any, **kwargs: Any) -> Distribution:
        """The Gaussian over the unconstrained latent vector, as a Pyro distribution.

        :return: a distribution with event shape ``(d,)``.
        """
        return to_distribution(self._family())

    def quantiles(self, quantiles: Any, *args: Any, **kwargs: Any) -> dict[str, list[Tensor]]:
        """Posterior quantiles of every latent site, constrained.

        :param quantiles: a list of numbers in (0, 1).
        :raises ValueError: for others.
        """
        check_quantiles(quantiles)
        return super().quantiles(quantiles, *args, **kwargs)

    def _loc_scale(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        family = self._family()
        return family.mean, family.stddev

    def _family(self) -> Family:
        if self.prototype_trace is None:
            raise RuntimeError(
                "The guide has no posterior before its first call: run svi.step(...) or "
                "guide(...) once."
            )
        return self.posterior.family()

    def _family_of(self, params: dict[str, Tensor]) -> Family:
        """The family at a copy of the parameter store, or at its own values if they are not there.

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
            family.sample(family.loc.new_empty(num_samples, family.dim).normal_())
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
