"""The guide with exponential families of some sites beside the Gaussian of all others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistribution
from pyro.infer.autoguide import AutoGuideList
from pyro.infer.autoguide.initialization import InitMessenger, init_to_median, init_to_uniform
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi.conjugate import guide, site
from ngvi.conjugate.conjugacy import Density
from ngvi.errors import check_init_loc_fn, check_quantiles
from ngvi.latents.choice import FamilyName
from pyro_ngvi.families import Family
from pyro_ngvi.guide.checks import subsampled_latents
from pyro_ngvi.guide.copies import Copied
from pyro_ngvi.guide.natural_gaussian import NaturalGaussianGuide
from pyro_ngvi.guide.posterior import PosteriorParameters
from pyro_ngvi.guide.robust_init import ContinuousOnly
from pyro_ngvi.guide.sticking_the_landing import calling_elbo
from pyro_ngvi.tracing.messengers import WithoutSequences, quiet, repeatable_noise
from pyro_ngvi.tracing.sites import is_enumerated


class ConjugateSite(site.ConjugateSite):
    """A conjugate site whose natural parameters are a tensor."""

    xp = torch
    digamma = staticmethod(torch.digamma)
    lgamma = staticmethod(torch.lgamma)

    def specification(self) -> Self:
        """Return the site without its tensor."""
        return dataclasses.replace(self, loc=None)

    def detach(self) -> Self:
        """Return the same site, through which no gradient flows."""
        return self.map(Tensor.detach)

    def at(self, signs: Any) -> Tensor:
        here, signs = self.detach(), torch.as_tensor(signs).to(self.loc)
        change = self.natural - here.natural
        return here.points(signs) + here.draw_jvp(change, signs)

    def _jvp(self, function: Callable, at: Tensor, tangent: Tensor) -> Tensor:
        return torch.func.jvp(function, (at,), (tangent,))[1]


class Random:
    """Independent draws.

    :param sample_shape: leading axes.
    """

    def __init__(self, sample_shape: tuple[int, ...] = ()) -> None:
        self._sample_shape = sample_shape

    def gamma(self, concentration: Tensor) -> Tensor:
        shape = (*self._sample_shape, *concentration.shape)
        return torch._standard_gamma(concentration.expand(shape))

    def normal(self, like: Tensor) -> Tensor:
        return like.new_empty((*self._sample_shape, *like.shape)).normal_()

    def uniform(self, like: Tensor) -> Tensor:
        return like.new_empty((*self._sample_shape, *like.shape)).uniform_()


class ConjugateDistribution(guide.ConjugateDistribution, TorchDistribution):
    """The density of a conjugate site as a Pyro distribution.

    :param conjugate_site: with natural parameters.
    :param event_dim: of the site.
    """

    arg_constraints: ClassVar[dict] = {}
    constraints = constraints

    def __init__(
        self, conjugate_site: ConjugateSite, event_dim: int, batch_shape: Any = None
    ) -> None:
        self.conjugate_site = conjugate_site
        shape = torch.Size(conjugate_site.shape)
        split = len(shape) - event_dim
        batch_shape = shape[:split] if batch_shape is None else torch.Size(batch_shape)
        super().__init__(batch_shape, shape[split:], validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> ConjugateDistribution:
        return ConjugateDistribution(self.conjugate_site, self.event_dim, batch_shape)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        elbo = calling_elbo()
        if elbo is not None and not getattr(elbo, "gives_conjugate_sites", False):
            self._refuse(elbo)
        outer = len(self.shape()) - len(self.conjugate_site.shape)
        random = Random((*sample_shape, *self.batch_shape[:outer]))
        with torch.no_grad():
            return self.conjugate_site.draw(random).expand((*sample_shape, *self.shape()))

    def log_prob(self, value: Tensor) -> Tensor:
        found = self._summed(self.conjugate_site.detach().log_prob(value))
        return found.expand(torch.broadcast_shapes(found.shape, self.batch_shape))

    @property
    def mean(self) -> Tensor:
        return self.conjugate_site.mean.expand(self.shape())


class ConjugateSites(guide.ConjugateSites, Copied):
    """Some conjugate sites; a part of :class:`ConjugateGuide`."""

    _ppl, _distribution = pyro, ConjugateDistribution

    def __init__(self, model: Callable) -> None:
        super().__init__(model)
        self.frames, self.event_dims = {}, {}

    def start(self, one: ConjugateSite, site: dict[str, Any]) -> None:
        super().start(one, site)
        setattr(self, _parameter(one.site), PosteriorParameters(one))

    def _live(self) -> dict[str, ConjugateSite]:
        return {name: getattr(self, _parameter(name)).family() for name in self.frames}

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return self._sampled(self._live(), self._create_plates(*args, **kwargs))

    def now(self) -> dict[str, ConjugateSite]:
        """Return the sites by name, as they are now."""
        return {name: one.detach().map(Tensor.clone) for name, one in self._live().items()}

    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return self.quantiles(0.5)

    def quantiles(self, quantiles: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        check_quantiles(quantiles)
        return {
            name: torch.as_tensor(one.map(Tensor.cpu).quantiles(quantiles)).to(one.loc)
            for name, one in self.now().items()
        }


def _parameter(site: str) -> str:
    return f"{site.replace('.', '__')}_conjugate"


@shared_doc(guide.ConjugateGuide, NaturalGaussianGuide)
class ConjugateGuide(guide.ConjugateGuide, Copied, AutoGuideList):
    """A Gaussian beside conjugate sites, with the parameters ``{site}_conjugate``.

    The guide's first part has these sites, its second the Gaussian, if there are other latents.

    >>> from pyro_ngvi.conjugate import ConjugateGuide
    >>> def normal(y):
    ...     mean = sample("mean", dist.Normal(0.0, 10.0))
    ...     precision = sample("precision", dist.Gamma(2.0, 2.0))
    ...     with plate("rows", 3):
    ...         sample("y", dist.Normal(mean, precision**-0.5), obs=y)
    >>> guide = ConjugateGuide(normal, {"precision": "gamma"})
    >>> svi = SVI(normal, guide, BLR(), NaturalELBO())
    >>> losses = [svi.step(y) for _ in range(20)]
    """

    _site = ConjugateSite

    def __init__(
        self,
        model: Callable,
        conjugate: Mapping[str, str],
        family: Family | type[Family] | FamilyName = "auto",
        *,
        init_loc_fn: Callable = init_to_median,
        init_scale: float | None = None,
        relative_step_size: float = 1.0,
    ) -> None:
        started = InitMessenger(ContinuousOnly(check_init_loc_fn(init_loc_fn)))
        super().__init__(started(WithoutSequences()(model)))
        self._take_options(model, conjugate, relative_step_size)
        self._model_as_given = (model,)  # no submodule
        rest = poutine.block(poutine.condition(model, data=self._given), hide=[*conjugate])
        self.append(ConjugateSites(model))
        self.append(
            NaturalGaussianGuide(rest, family, init_loc_fn=init_loc_fn, init_scale=init_scale)
        )

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        try:
            nodes, local = self._nodes(self.model, args, kwargs), self.prototype_trace
            run = is_enumerated, args, kwargs
            if not self._set_up_sites(self[0], nodes, subsampled_latents(local), *run):
                del self[1]
        except Exception:
            self.prototype_trace = None  # a guide that failed to set up is not set up
            raise

    @staticmethod
    def _array(values: Any, like: Tensor) -> Tensor:
        return torch.as_tensor(values).to(like)

    @staticmethod
    def _numpy(value: Tensor) -> np.ndarray:
        return value.numpy(force=True)

    @staticmethod
    def _contains(support: Any, value: Tensor) -> Tensor:
        return support.check(value)

    def _nodes(self, model: Callable, args: tuple, kwargs: dict) -> dict[str, dict[str, Any]]:
        with repeatable_noise(), poutine.block():
            trace = poutine.trace(model).get_trace(*args, **kwargs)
        return {
            name: site
            for name, site in trace.nodes.items()
            if site["type"] == "sample" and not poutine.util.site_is_subsample(site)
        }

    def _density(self, rest: list[str], args: tuple, kwargs: dict) -> Density:
        model = WithoutSequences()(self._model_as_given[0])
        # At the start weights may all be zero, and the sites seem not to meet.
        with repeatable_noise():
            torch.manual_seed(0)
            anywhere = InitMessenger(ContinuousOnly(init_to_uniform))(model)
            found = self._nodes(anywhere, args, kwargs)
        others = {name: found[name]["value"].detach() for name in rest}

        def density(values: Mapping[str, np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
            at = {s: self._array(x, found[s]["value"]).detach().clone() for s, x in values.items()}
            leaves = [x.requires_grad_() for x in at.values()]
            with torch.enable_grad(), quiet(), repeatable_noise(), poutine.block():
                given = poutine.condition(model, data={**others, **at})
                value = poutine.trace(given).get_trace(*args, **kwargs).log_prob_sum()
            slopes = torch.autograd.grad(value, leaves, materialize_grads=True, allow_unused=True)
            pairs = zip(at, slopes, strict=True)
            return value.item(), {s: self._numpy(slope.double()) for s, slope in pairs}

        return density

    def conjugate_sites(self) -> dict[str, ConjugateSite]:
        """Return the conjugate sites by name, with ``parameters()``, ``mean`` and ``log_prob``.

        :raises RuntimeError: before the first call.
        """
        if self.prototype_trace is None:
            raise RuntimeError(
                "The guide has no conjugate sites before its first call: call svi.step(...) first."
            )
        return self[0].now()
