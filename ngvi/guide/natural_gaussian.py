"""The guide: a model's latents <-> one Gaussian family."""

from __future__ import annotations

from typing import Any, ClassVar

from ngvi.guide.layout import summary
from ngvi.latents.forest import Forest
from ngvi.latents.layout import Site
from ngvi.latents.subsampling import WAYS_OUT, WITHOUT_PLATES


class NaturalGaussianGuide:
    """A Gaussian over all latents, whose gradients are natural gradients.

    A drop-in for the PPL's Gaussian autoguides: with any stock ELBO, the gradient of the loss
    with respect to the guide's parameters is ``F^-1`` times the Euclidean gradient, where ``F`` is
    the Fisher information of the Gaussian in its coordinates (Tan, *Analytic natural gradient
    updates for Cholesky factor in Gaussian variational approximation*, Theorem 1).

    The family is over the unconstrained latent vector of length ``d`` (sites in the order of the
    model, flattened). Discrete latents marked for enumeration are left to ``TraceEnum_ELBO``. A
    support that depends on another latent is that of each draw.

    :param model: a model of the PPL.
    :param family: ``"auto"``, ``"covariance_cholesky"`` (alias ``"full"``), ``"diagonal"``,
        or a class or specification from ``families``. ``"auto"`` is
        dense up to 200 latents; beyond, sparse where the model has locals, else dense up to 1000,
        or 2000 where quadrature can be taken, of low rank up to 100,000 latents, else diagonal;
        ``print(guide)`` tells.
    :param init_loc_fn: a per-site initialisation function of the PPL. Where the density explodes
        about the default, medians of more draws take its place (:mod:`~ngvi.guide.calm`).
    :param init_scale: initial standard deviation of every unconstrained latent. By default 0.1, or
        as narrow as it must be where the density explodes at draws so wide, of covariates in raw
        units, say (:mod:`~ngvi.guide.calm`; :class:`ReparametrizedGaussianGuide` takes 0.1, and
        None for this).
    :param create_plates: makes the plates that are subsampled, as in the PPL's autoguides. Latents
        inside of them are held for all elements of the plate, and a step moves those that its
        minibatch visits, along the natural gradient of the bound of all data
        (:mod:`~ngvi.guide.visits`); for families ``"diagonal"``, ``"block_diagonal"`` and
        ``"sparse_precision"`` (that of ``"auto"``), with ``NaturalELBO``, stock ELBOs and ``fit``.
        With stock ELBOs use one particle, or particles that share their minibatch: one visit in
        ``K`` minibatches is ``1 / K`` of a step. An optimiser's momentum carries a latent on after
        its visit.
    :param sticking_the_landing: whether ``log q`` is differentiated only through the draw
        (Roeder, Wu and Duvenaud, 2017; ``grad h`` in Tan's algorithm 1N), so that the noise of
        the gradient vanishes where ``q`` is exact. ``"auto"`` does so for the stock ELBOs that
        are linear in ``log q`` (``Trace_ELBO``, ``TraceEnum_``, ``TraceGraph_`` and
        ``TraceMeanField_ELBO``) and for no other: for ``RenyiELBO``, say, it would be wrong.
    :raises ValueError: for an unknown family or a non-positive ``init_scale``; on the first
        call, for discrete or local latents or a start without finite density, by site.
    :raises RuntimeError: on the first call, if the model has no latents.
    """

    #: Why latents in a subsampled plate are refused where nobody makes the plates.
    _no_local_latents: ClassVar[str] = f"{WITHOUT_PLATES} {WAYS_OUT}"

    prototype_trace: Any
    sites: tuple[Site, ...]
    latent_dim: int
    _requested_family: Any
    _family_reason: str
    family: Any

    def _at_start(self) -> Any:
        """The family with coordinates, of the guide's set-up or later."""
        raise NotImplementedError

    @property
    def own_sites(self) -> tuple[Site, ...]:
        """The sites by what the Gaussian is over."""
        return self.sites

    def again(self, model: Any, **options: Any) -> Any:
        """A guide of another model with the same latents, of the same kind and family."""
        return type(self)(model, self.family, **options)  # type: ignore[call-arg]

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
