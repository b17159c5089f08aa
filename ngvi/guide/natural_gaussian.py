"""The guide: a model's latents <-> one Gaussian family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ngvi._door import written_here
from ngvi.errors import check_finite, check_model
from ngvi.families.mixture import Mixture
from ngvi.families.steps import has_parts
from ngvi.guide.checks import warn_of_rule
from ngvi.guide.distributions import check_has_gradient, to_distribution
from ngvi.guide.layout import summary
from ngvi.guide.sticking_the_landing import caller_of_type, check_sticking_the_landing
from ngvi.guide.subsampled_latents import Minibatch
from ngvi.latents.choice import Choice, Registry
from ngvi.latents.dynamic_supports import check_no_dynamic_supports
from ngvi.latents.forest import Forest
from ngvi.latents.layout import Layout, Site
from ngvi.latents.subsampling import WAYS_OUT, WITHOUT_PLATES, SubsampledLatent


class NaturalGaussianGuide:
    """A Gaussian over all latents, whose gradients are natural gradients.

    A drop-in for the PPL's Gaussian autoguides. With any stock ELBO, the gradient of the loss
    with respect to the guide's parameters is ``F^-1`` times the Euclidean gradient. Here ``F`` is
    the Fisher information of the Gaussian in its coordinates (Tan, *Analytic natural gradient
    updates for Cholesky factor in Gaussian variational approximation*, Theorem 1).

    The family is over the unconstrained latent vector of length ``d`` (sites in the order of the
    model, flattened). Discrete latents marked for enumeration are left to ``TraceEnum_ELBO``. A
    support that depends on another latent is evaluated at each draw.

    :param model: a model of the PPL.
    :param family: ``"auto"``, ``"covariance_cholesky"`` (alias ``"full"``), ``"diagonal"``,
        or a class or specification from ``families``. ``"auto"`` is dense up to 200 latents.
        Beyond, it is sparse if the model has locals. Otherwise it is dense up to 1000 latents (2000
        if quadrature applies), of low rank up to 100,000, and diagonal for more. ``print(guide)``
        shows the choice.
    :param init_loc_fn: a per-site initialisation function of the PPL. If the density explodes
        around the default, medians of more draws are used (:mod:`~ngvi.guide.robust_init`).
    :param init_scale: initial standard deviation of every unconstrained latent. None, the default,
        is 0.1, or narrower if the density explodes at that width, as with covariates in raw units
        (:mod:`~ngvi.guide.robust_init`).
    :param create_plates: a function that makes the subsampled plates, as in the PPL's autoguides.
        The guide holds their latents for all elements of the plate. A step moves the latents in
        its minibatch along the natural gradient of the bound of all data
        (:mod:`~ngvi.guide.subsampled_latents`). This needs the family ``"diagonal"``,
        ``"block_diagonal"`` or ``"sparse_precision"`` (the choice of ``"auto"``), and works with
        ``NaturalELBO``, stock ELBOs and ``fit``.
        With stock ELBOs use one particle, or particles that share their minibatch: a latent in
        one of ``K`` minibatches takes ``1 / K`` of a step. An optimiser's momentum keeps moving a
        latent after its minibatch.
    :param sticking_the_landing: whether ``log q`` is differentiated only through the draw
        (Roeder, Wu and Duvenaud, 2017; ``grad h`` in Tan's algorithm 1N), so that the gradient
        noise vanishes where ``q`` is exact. ``"auto"`` does so only for the stock ELBOs that
        are linear in ``log q`` (``Trace_ELBO``, ``TraceEnum_``, ``TraceGraph_`` and
        ``TraceMeanField_ELBO``); for others, such as ``RenyiELBO``, it would be wrong.
    :raises ValueError: for an unknown family or a non-positive ``init_scale``; on the first
        call, for discrete or local latents or a start without finite density, by site.
    :raises RuntimeError: on the first call, if the model has no latents.
    """

    #: The reason why latents in a subsampled plate are refused if nobody makes the plates.
    _no_local_latents: ClassVar[str] = f"{WITHOUT_PLATES} {WAYS_OUT}"

    # What a package adds: its families, its classes, and methods of these names.
    _registry: ClassVar[Registry]
    _normal: ClassVar[Any]  #: The package's ``NaturalNormal``.
    _structured: ClassVar[Any]  #: The package's ``StructuredNormal``.
    _dist: ClassVar[Any]  #: The PPL's distributions.
    _svi: ClassVar[type]  #: The PPL's ``SVI``.
    _calling_elbo: ClassVar[Any]
    _minibatch_type: ClassVar[type[Minibatch]]
    _linear_elbos: ClassVar[tuple[type, ...]]  #: Exact types of those linear in ``log q``.
    _subsampled_latents: ClassVar[Any]  #: Find the subsampled latents of a trace.
    _family: Callable[[], Any]  #: Return the family at the parameters' current values.
    _at_start: Callable[[], Any]  #: Return the family before there are any.
    _sample_at_site: Callable[..., Any]  #: Draw the latent vector.

    prototype_trace: Any
    _prototype_frames: Any
    _dynamic: list[str]
    _plates: dict[str, tuple[int, int]]  #: Sizes of the model's plates at first, see ``checks``.
    sites: tuple[Site, ...]
    latent_dim: int
    family: Any
    create_plates: Any

    # -- set-up -----------------------------------------------------------------------

    def _take_options(
        self, model: Any, family: Any, init_scale: Any, sticking_the_landing: Any
    ) -> None:
        check_model(model)
        self._model_name = getattr(model, "__qualname__", type(model).__name__)
        scale = None if init_scale is None else check_finite(init_scale, "init_scale")
        self._requested_scale = scale
        self._requested_family = self._registry.requested(family)
        self._sticking_the_landing = check_sticking_the_landing(sticking_the_landing)

    def _choose_family(self, layout: Layout) -> Choice:
        local = self._subsampled_latents(self.prototype_trace)
        return self._registry.suitable(self._requested_family, local, layout)

    @property
    def _has_plates(self) -> bool:
        """Presence of plates that the user makes."""
        return self.create_plates is not None

    def _take_layout(self, layout: Layout) -> None:
        """Choose the family for the latents."""
        family, self._family_reason = self._choose_family(layout)
        self.family, self.sites = family.for_layout(layout), layout.sites
        if check := vars(self).pop("_check_layout", None):  # of a file, before there are numbers
            check(self.family, self.sites)
        if self._has_plates:
            self._minibatch(self._prototype_frames).check(self.family, has_parts(self.family))
        if (svi := caller_of_type(self._svi)) is not None:
            warn_of_rule(self, getattr(svi, "_optim_as_given", svi.optim))

    def _minibatch(
        self, plates: Mapping[str, Any], kind: type[Minibatch] | None = None
    ) -> Minibatch:
        return (kind or self._minibatch_type).of_plates(self.sites, plates)

    def _take_supports(self, names: Iterable[str]) -> list[SubsampledLatent]:
        """Find supports for all elements of plates that the prototype subsamples.

        :param names: of the latent sites.
        :return: the latents in these plates.
        """
        self._supports: dict[str, Any] = {}
        self._checked_plates: set[frozenset[str]] = set()
        local = self._subsampled_latents(self.prototype_trace)
        if local:
            check_no_dynamic_supports(self._dynamic)
        trace = getattr(self.prototype_trace, "nodes", self.prototype_trace)
        for name in names if local else ():
            axes = [latent.axis for latent in local if latent.site == name]
            support = trace[name]["fn"].support
            self._supports[name] = self._minibatch_type.one_support(support, axes, name)
        return local

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if meant := written_here("NaturalGaussianGuide", name):
                raise AttributeError(f"A guide has no attribute {name!r}: write {meant}.")
            of_others = getattr(super(), "__getattr__", self.__getattribute__)  # torch's modules
            return of_others(name)

    def again(self, model: Any, **options: Any) -> Any:
        """Make a guide of another model with the same latents, of the same kind and family."""
        return type(self)(model, self.family, **options)  # type: ignore[call-arg]

    # -- draws ------------------------------------------------------------------------

    def _sample_subsampled(self, minibatch: Minibatch) -> Any:
        family = self._family()
        if minibatch.plates not in self._checked_plates:
            minibatch.check(family, has_parts(family))
            self._checked_plates.add(minibatch.plates)
        posterior = self._normal(minibatch.of(family), self._sticks_the_landing())
        return self._sample_at_site(posterior, is_minibatch=True)

    def _get_posterior(self) -> Any:
        """Return the distribution of the latent vector, whose draws have natural gradients."""
        family = self._family()
        if isinstance(family, Mixture):
            check_has_gradient(self._calling_elbo())
            return self._structured(family)
        return self._normal(family, self._sticks_the_landing())

    def _distribution(self, family: Any) -> Any:
        return to_distribution(family, self._dist, self._structured)

    def _sticks_the_landing(self) -> bool:
        if self._sticking_the_landing == "auto":
            return type(self._calling_elbo()) in self._linear_elbos
        return bool(self._sticking_the_landing)

    # -- what others read -------------------------------------------------------------

    @property
    def own_sites(self) -> tuple[Site, ...]:
        """The sites by what the Gaussian is over."""
        return self.sites

    @property
    def paths(self) -> Forest | None:
        """The forest of the latents, if the log density is a sum over its locals."""
        requested = self._requested_family
        if self.family.name != "sparse_precision":
            return None
        is_found = requested is None or requested.family.structure is None
        return self.family.structure if is_found else None

    def __repr__(self) -> str:
        if self.prototype_trace is None:
            family = self._requested_family
            name = "auto" if family is None else family.family.name
            return f"NaturalGaussianGuide(family={name!r}, not set up yet)"
        return (
            f"NaturalGaussianGuide(family={self.family.name!r} [{self._family_reason}], "
            f"d={self.latent_dim}, {summary(self._at_start())})"
        )
