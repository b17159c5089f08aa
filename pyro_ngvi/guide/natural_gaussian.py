"""The guide: a model's latents <-> one Gaussian family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoContinuous
from pyro.infer.autoguide.guides import prototype_hide_fn
from pyro.infer.autoguide.initialization import init_to_median
from torch import Tensor
from torch.distributions import Distribution, Transform

from pyro_ngvi.families import Family
from pyro_ngvi.families.registry import resolve_family
from pyro_ngvi.guide.checks import (
    LatentShapes,
    check_init_scale,
    check_no_discrete_latents,
    check_no_local_latents,
    check_start,
    is_enumerated,
    quiet_trace,
)
from pyro_ngvi.guide.landing import called_by_linear_elbo, check_sticking_the_landing
from pyro_ngvi.guide.posterior import (
    NaturalNormal,
    PosteriorParameters,
    to_distribution,
    to_transform,
)


def _hide_fn(site: dict[str, Any]) -> bool:
    return prototype_hide_fn(site) or is_enumerated(site)


class NaturalGaussianGuide(AutoContinuous):
    """A Gaussian over all latents, whose gradients are natural gradients.

    A drop-in for Pyro's Gaussian autoguides: with any stock ELBO, ``backward`` leaves on the
    guide's parameters ``F^-1`` times the Euclidean gradient, where ``F`` is the Fisher
    information of the Gaussian in its coordinates (Tan, *Analytic natural gradient updates
    for Cholesky factor in Gaussian variational approximation*, Theorem 1). Optimise it with
    ``pyro_ngvi.Snngm`` or ``Nagm``::

        guide = NaturalGaussianGuide(model)
        svi = SVI(model, guide, Snngm({"lr": 1e-3}), Trace_ELBO())

    The guide has one submodule, ``posterior``, whose parameters are the coordinates of a
    :class:`~pyro_ngvi.families.Family` over the unconstrained latent vector of length ``d``
    (sites in the order of the model, flattened). Discrete latents marked for enumeration are
    left to ``TraceEnum_ELBO``.

    :param model: a Pyro model.
    :param family: ``"auto"``, ``"covariance_cholesky"`` (alias ``"full"``), ``"diagonal"``,
        or a class or specification from :mod:`pyro_ngvi.families`. ``"auto"`` is dense up to
        1000 latents and diagonal beyond; ``print(guide)`` tells.
    :param init_loc_fn: a per-site initialisation function of Pyro.
    :param init_scale: initial standard deviation of every unconstrained latent.
    :param create_plates: makes the plates of a subsampled likelihood, as in Pyro's
        autoguides; latents in subsampled plates are not supported.
    :param sticking_the_landing: whether ``log q`` is differentiated only through the draw
        (Roeder, Wu and Duvenaud, 2017; ``grad h`` in Tan's algorithm 1N), so that the noise of
        the gradient vanishes where ``q`` is exact. ``"auto"`` does so for the stock ELBOs that
        are linear in ``log q`` (``Trace_ELBO``, ``TraceEnum_``, ``TraceGraph_`` and
        ``TraceMeanField_ELBO``) and for no other: for ``RenyiELBO``, say, it would be wrong.
    :raises ValueError: for an unknown family or a non-positive ``init_scale``; on the first
        call, for discrete or local latents or a start without finite density, by site.
    :raises RuntimeError: on the first call, if the model has no latents.
    """

    def __init__(
        self,
        model: Callable,
        family: str | type[Family] | Family = "auto",
        *,
        init_loc_fn: Callable = init_to_median,
        init_scale: float = 0.1,
        create_plates: Callable | None = None,
        sticking_the_landing: bool | str = "auto",
    ) -> None:
        self._init_scale = check_init_scale(init_scale)
        resolve_family(family, dim=1)  # an unknown name fails here, not on the first call
        self._requested_family = family
        self._sticking_the_landing = check_sticking_the_landing(sticking_the_landing)
        super().__init__(model, init_loc_fn=init_loc_fn)
        self.create_plates = create_plates

    _prototype_hide_fn = staticmethod(_hide_fn)

    # -- set-up -----------------------------------------------------------------------

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        trace = quiet_trace(self.model, args, kwargs)
        check_no_discrete_latents(trace)
        check_no_local_latents(trace)
        try:
            super()._setup_prototype(*args, **kwargs)
            latents = dict(self.prototype_trace.iter_stochastic_nodes())
            start = {name: site["value"].detach() for name, site in latents.items()}
            check_start(self.model, start, args, kwargs)
        except Exception:
            self.prototype_trace = None  # a guide that failed to set up is not set up
            raise
        self.family, self._family_reason = resolve_family(self._requested_family, self.latent_dim)
        self._latent_shapes = LatentShapes(self.prototype_trace, args, kwargs)
        self.posterior = PosteriorParameters(
            self.family.initial(self._init_loc(), self._init_scale)
        )

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        # Pickling a guide drops its model, in the copy and in the original.
        if self.prototype_trace is not None and self._model is not None:
            self._latent_shapes.check(self.model, args, kwargs)
        return super().forward(*args, **kwargs)

    def sample_latent(self, *args: Any, **kwargs: Any) -> Tensor:
        """A draw of the unconstrained latent vector, with natural gradients."""
        posterior = NaturalNormal(self._family(), self._sticks_the_landing())
        return pyro.sample(f"_{self._pyro_name}_latent", posterior, infer={"is_auxiliary": True})

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

    def __repr__(self) -> str:
        if self.prototype_trace is None:
            family = self._requested_family
            name = family if isinstance(family, str) else getattr(family, "name", family)
            return f"NaturalGaussianGuide(family={name!r}, not set up yet)"
        num_parameters = self.posterior.family().num_parameters
        return (
            f"NaturalGaussianGuide(family={self.family.name!r} [{self._family_reason}], "
            f"d={self.latent_dim}, {num_parameters} parameters)"
        )
