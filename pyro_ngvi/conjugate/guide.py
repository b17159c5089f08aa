"""The guide with exponential families of some sites beside the Gaussian of all others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.infer.autoguide import AutoGuide, AutoGuideList
from pyro.infer.autoguide.initialization import InitMessenger, init_to_median, init_to_uniform
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi.conjugate import guide
from ngvi.conjugate.numpy_kinds import NUMPY_KINDS, as_numpy
from ngvi.errors import check_init_loc_fn, check_model, check_quantiles
from pyro_ngvi.conjugate.kinds import FACTORS, Factor, Random
from pyro_ngvi.families import Family
from pyro_ngvi.guide.checks import continuous_only, subsampled_latents
from pyro_ngvi.guide.landing import calling_elbo
from pyro_ngvi.guide.natural_gaussian import NaturalGaussianGuide
from pyro_ngvi.guide.posterior import PosteriorParameters
from pyro_ngvi.tracing.messengers import WithoutSequences, quiet, repeatable_noise
from pyro_ngvi.tracing.sites import is_enumerated

SUPPORTS = {
    "positive": constraints.positive,
    "real": constraints.real,
    "unit_interval": constraints.unit_interval,
    "simplex": constraints.simplex,
}


class FactorDistribution(TorchDistribution):
    """A factor as a Pyro distribution.

    :param factor: with natural parameters.
    :param event_dim: of the site.
    """

    arg_constraints: ClassVar[dict] = {}

    def __init__(
        self, factor: Factor, event_dim: int = 0, batch_shape: torch.Size | None = None
    ) -> None:
        self.factor = factor
        split = len(factor.shape) - event_dim
        batch_shape = torch.Size(factor.shape[:split]) if batch_shape is None else batch_shape
        super().__init__(batch_shape, torch.Size(factor.shape[split:]), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> FactorDistribution:
        return FactorDistribution(self.factor, self.event_dim, torch.Size(batch_shape))

    @property
    def support(self) -> Any:
        base = SUPPORTS[self.factor.support]
        extra = self.event_dim - base.event_dim
        return constraints.independent(base, extra) if extra else base

    def sample(self, sample_shape: Any = ()) -> Tensor:
        elbo = calling_elbo()
        if elbo is not None and not getattr(elbo, "gives_conjugate_sites", False):
            raise NotImplementedError(guide.stock_elbo(self.factor.site, type(elbo).__name__))
        outer = len(self.shape()) - len(self.factor.shape)
        shape = (*sample_shape, *self.batch_shape[:outer])
        with torch.no_grad():
            return self.factor.draw(Random(shape)).expand((*sample_shape, *self.shape()))

    def log_prob(self, value: Tensor) -> Tensor:
        found = self.factor.detach().log_prob(value)
        extra = self.event_dim - SUPPORTS[self.factor.support].event_dim
        found = found.sum(tuple(range(-extra, 0))) if extra else found
        return found.expand(torch.broadcast_shapes(found.shape, self.batch_shape))

    @property
    def mean(self) -> Tensor:
        return self.factor.mean.expand(self.shape())


class Factors(AutoGuide):
    """The factors of some sites; a part of :class:`ConjugateGuide`."""

    def __init__(self, model: Callable) -> None:
        super().__init__(model)
        self.frames: dict[str, tuple] = {}
        self.event_dims: dict[str, int] = {}

    def start(self, site: str, factor: Factor, frames: tuple, event_dim: int) -> None:
        """Make a factor's parameters."""
        self.frames[site], self.event_dims[site] = frames, event_dim
        setattr(self, _parameter(site), PosteriorParameters(factor))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        plates = self._create_plates(*args, **kwargs)
        values = {}
        for site, frames in self.frames.items():
            factor = getattr(self, _parameter(site)).family()
            with ExitStack() as stack:
                for frame in frames:
                    stack.enter_context(plates[frame.name])
                values[site] = pyro.sample(site, FactorDistribution(factor, self.event_dims[site]))
        return values

    def factors(self) -> dict[str, Factor]:
        """The factors by site, as they are now."""
        live = {site: getattr(self, _parameter(site)).family() for site in self.frames}
        return {site: one.detach().map(Tensor.clone) for site, one in live.items()}

    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return self.quantiles(0.5)

    def quantiles(self, quantiles: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        check_quantiles(quantiles)
        return {
            site: torch.as_tensor(as_numpy(one.map(Tensor.cpu)).quantiles(quantiles)).to(one.loc)
            for site, one in self.factors().items()
        }


def _parameter(site: str) -> str:
    return f"{site.replace('.', '__')}_factor"


@shared_doc(guide.ConjugateGuide, NaturalGaussianGuide)
class ConjugateGuide(guide.ConjugateGuide, AutoGuideList):
    """Its first part has the factors, as parameters ``{site}_factor``, its second the Gaussian."""

    def __init__(
        self,
        model: Callable,
        conjugate: Mapping[str, str],
        family: str | type[Family] | Family = "auto",
        *,
        init_loc_fn: Callable = init_to_median,
        init_scale: float | None = None,
        pace: float = 1.0,
    ) -> None:
        declared, pace = guide.check_declared(conjugate), guide.check_pace(pace)
        check_model(model)
        self._init_loc_fn = continuous_only(check_init_loc_fn(init_loc_fn))
        super().__init__(InitMessenger(self._init_loc_fn)(WithoutSequences()(model)))
        self.conjugate, self._pace = declared, pace
        self._model_as_given = (model,)  # no submodule
        # What the Gaussian's model is given for these sites while it is set up.
        self._given: dict[str, Tensor] = {}
        rest = poutine.block(poutine.condition(model, data=self._given), hide=[*declared])
        self.append(Factors(model))
        self.append(
            NaturalGaussianGuide(rest, family, init_loc_fn=init_loc_fn, init_scale=init_scale)
        )
        self._only_factors = False

    def __getstate__(self) -> dict[str, Any]:
        self._model_as_given = None
        return super().__getstate__()

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        if self.prototype_trace is None:
            self._set_up(args, kwargs)
        self._create_plates(*args, **kwargs)
        values: dict[str, Tensor] = {}
        for part in self._parts:
            values.update(part(*args, **kwargs))
        return values

    @property
    def _parts(self) -> list[AutoGuide]:
        return [self[0]] if self._only_factors else [self[0], self[1]]

    # -- set-up -----------------------------------------------------------------------

    def _set_up(self, args: tuple, kwargs: dict) -> None:
        super()._setup_prototype(*args, **kwargs)
        try:
            self._set_up_factors(args, kwargs)
        except Exception:
            self.prototype_trace = None  # a guide that failed to set up is not set up
            raise

    def _set_up_factors(self, args: tuple, kwargs: dict) -> None:
        nodes = self._nodes(self.model, args, kwargs)
        latents = {name: site for name, site in nodes.items() if not site["is_observed"]}
        guide.check_sites(
            self.conjugate,
            [name for name, site in latents.items() if not is_enumerated(site)],
            [name for name, site in nodes.items() if site["is_observed"]],
            [name for name, site in latents.items() if is_enumerated(site)],
        )
        for local in subsampled_latents(self.prototype_trace):
            if local.site in self.conjugate:
                guide.check_not_subsampled(local.site, local.plate)
        plain = {}
        for site, kind in self.conjugate.items():
            fn, value = latents[site]["fn"], latents[site]["value"].detach()
            guide.check_support(site, kind, tuple(value.shape), _contains(fn, value))
            plain[site] = NUMPY_KINDS[kind].initial(site, value.cpu().numpy())
        rest = [name for name in latents if name not in plain]
        for site, one in guide.checked(plain, *self._density(plain, rest, args, kwargs)).items():
            like, fn = latents[site]["value"], latents[site]["fn"]
            loc = torch.as_tensor(one.loc).to(like)
            frames = tuple(f for f in latents[site]["cond_indep_stack"] if f.vectorized)
            factor = FACTORS[one.name](loc, site, one.shape, one.columns, self._pace)
            self[0].start(site, factor, frames, fn.event_dim)
            self._given[site] = factor.mean
        self._only_factors = not rest

    def _nodes(self, model: Callable, args: tuple, kwargs: dict) -> dict[str, dict[str, Any]]:
        with repeatable_noise(), poutine.block():
            trace = poutine.trace(model).get_trace(*args, **kwargs)
        return {
            name: site
            for name, site in trace.nodes.items()
            if site["type"] == "sample" and not poutine.util.site_is_subsample(site)
        }

    def _density(
        self, plain: dict[str, Any], rest: list[str], args: tuple, kwargs: dict
    ) -> tuple[Callable, Callable, str]:
        """The gradient of the log density in values of the sites, its value, and the dtype."""
        model = WithoutSequences()(self._model_as_given[0])
        # At the start weights may all be zero, and the sites seem not to meet.
        with repeatable_noise():
            torch.manual_seed(0)
            anywhere = InitMessenger(continuous_only(init_to_uniform))(model)
            found = self._nodes(anywhere, args, kwargs)
        others = {name: found[name]["value"].detach() for name in rest}
        like = {site: found[site]["value"].detach() for site in plain}

        def log_density(values: dict[str, Tensor]) -> Tensor:
            with quiet(), repeatable_noise(), poutine.block():
                given = poutine.condition(model, data={**others, **values})
                return poutine.trace(given).get_trace(*args, **kwargs).log_prob_sum()

        def tensors(values: dict[str, np.ndarray]) -> dict[str, Tensor]:
            return {site: torch.as_tensor(x).to(like[site]) for site, x in values.items()}

        def gradient(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            at = {site: x.clone().requires_grad_() for site, x in tensors(values).items()}
            with torch.enable_grad():
                found = torch.autograd.grad(
                    log_density(at), list(at.values()), materialize_grads=True, allow_unused=True
                )
            return {s: g.cpu().double().numpy() for s, g in zip(at, found, strict=True)}

        def value(values: dict[str, np.ndarray]) -> float:
            with torch.no_grad():
                return float(log_density(tensors(values)))

        return gradient, value, str(next(iter(like.values())).dtype).removeprefix("torch.")

    # -- what the user reads ----------------------------------------------------------

    def factors(self) -> dict[str, Factor]:
        """The factors by site, with ``parameters()``, ``mean`` and ``log_prob``.

        :raises RuntimeError: before the first call.
        """
        if self.prototype_trace is None:
            raise RuntimeError("The guide has no factors before its first call.")
        return self[0].factors()

    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Posterior median of every latent site, constrained; of a simplex, by coordinate."""
        return {n: x for part in self._parts for n, x in part.median(*args, **kwargs).items()}

    def quantiles(self, quantiles: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Posterior quantiles of every latent site, constrained.

        :param quantiles: a list of numbers in (0, 1).
        """
        found: dict[str, Any] = {}
        for part in self._parts:
            found.update(part.quantiles(quantiles, *args, **kwargs))
        return found


def _contains(fn: Any, value: Tensor) -> Callable[[np.ndarray], bool]:
    def contains(x: np.ndarray) -> bool:
        return bool(fn.support.check(torch.as_tensor(x).to(value)).all())

    return contains
