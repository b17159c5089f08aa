"""Locals as an affine map of globals and data; see :mod:`ngvi.guide.reparametrization`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide.initialization import init_to_median
from pyro.poutine.runtime import am_i_wrapped
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack, maybe_current_level

from ngvi._docs import shared_doc
from ngvi._lock import serialised
from ngvi.guide import reparametrization, reparametrized
from ngvi.guide.reparametrization import Density, NewtonState
from ngvi.guide.reparametrized import check_order, check_whole
from ngvi.latents.choice import FamilyName
from pyro_ngvi.families import Family
from pyro_ngvi.guide.checks import is_enumerated
from pyro_ngvi.guide.natural_gaussian import NaturalGaussianGuide
from pyro_ngvi.linalg.arrow import Arrow
from pyro_ngvi.tracing.arguments import tensors_in
from pyro_ngvi.tracing.batching import BatchedDerivatives, writing
from pyro_ngvi.tracing.dependencies import log_density
from pyro_ngvi.tracing.messengers import quiet
from pyro_ngvi.tracing.recording import Replays, apart

#: Numbers of data and latents, over all draws that are mapped at once.
NUMBERS_AT_ONCE = 2**20


class Reparametrization(reparametrization.Reparametrization):
    """The map of one vector in torch; :meth:`of_each` makes it that of many."""

    arrow = Arrow

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.replays = Replays()

    def begin_at(self, start: Tensor) -> None:
        self.start.copy_(start)  # recorded runs hold it

    def _constants(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, device=self.start.device)

    _fixed = staticmethod(Tensor.detach)

    def _gradient(self, function: Density, at: Tensor) -> Tensor:
        if maybe_current_level() is None:
            return _gradient_and_products(function, at, [])[0]
        return torch.func.grad(function)(at)

    def _gradient_and_products(self, function: Density, at: Tensor) -> tuple[Tensor, Tensor]:
        if maybe_current_level() is None:
            return _gradient_and_products(function, at, self._probes)
        gradient, product = torch.func.vjp(torch.func.grad(function), at)
        return gradient, torch.stack([product(probe)[0] for probe in self._probes])

    def of_each(self, density: Density, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map vectors ``(..., d)``."""
        one = partial(self, density)
        if latents.dim() == 1 and maybe_current_level() is None:
            with quiet():
                return one(latents)
        with quiet(), BatchedDerivatives():
            if latents.dim() == 1:
                return one(latents)
            flat = latents.reshape(-1, latents.shape[-1])
            found = _mapped(one, flat)
            return tuple(part.reshape(*latents.shape[:-1], *part.shape[1:]) for part in found)

    def _at_modes(self, given: Density, found: NewtonState) -> tuple[Tensor, list[Tensor], Tensor]:
        if _is_differentiated():
            return super()._at_modes(given, found)
        point = torch.where(found.unsettled > 0, self.start, found.point)
        return point, found.factors, torch.zeros_like(point)

    def _searched(self, density: Density, latent: Tensor) -> NewtonState:
        least = torch.inf if _is_differentiated() else self._eps ** (4 / 3)
        found = _Search.apply(partial(self._search, density, least), latent)
        point, unsettled, *factors = found
        return NewtonState(point, point, point, factors, unsettled, 0)

    def _search(self, density: Density, least: float, latents: Tensor) -> tuple[Tensor, ...]:
        """Points, flags and factors of the vectors ``(N, d)``.

        :param least: where a squared step to a mode, in standard deviations, is above it, there is
            one more after the last, so that factors are those of the mode.
        """

        def one(latent: Tensor, *state: Any) -> tuple:
            *vectors, unsettled = state[:4]
            before = NewtonState(*vectors, list(state[4:]), unsettled, 0)
            after = self._next(self._given(density, latent), before)
            return after.point, after.step, after.gain, after.unsettled, *after.factors

        first = self._first()
        parts = (first.point, first.step, first.gain, first.unsettled, *first.factors)
        state = tuple(part.repeat(len(latents), *(1 for _ in part.shape)) for part in parts)
        rows = torch.arange(len(latents), device=latents.device)
        with quiet(), nullcontext() if len(latents) == 1 else BatchedDerivatives():
            for _ in range(self.options.max_iterations):
                some = [latents[rows], *(part[rows] for part in state)]
                found = self.replays("step", partial(_mapped, one), *some)
                for part, new in zip(state, found, strict=True):
                    part[rows] = new
                had_arrived = ~some[4].any(-1)
                is_far = (found[2] > least).any(-1) & ~had_arrived
                rows = rows[found[3].any(-1) | is_far]  # most arrive after a few
                if not len(rows):
                    break
        return state[0], state[3], *state[4:]


def _is_differentiated() -> bool:
    """Say whether derivatives of what is computed here may be asked for."""
    transforms = get_interpreter_stack() or []
    return torch.is_grad_enabled() or any(one.key() == TransformType.Jvp for one in transforms)


def _gradient_and_products(
    function: Density, at: Tensor, probes: Iterable[Tensor]
) -> tuple[Tensor, Tensor]:
    """Differentiate as ``torch.func`` does, which takes a second to import and twice as long."""
    is_recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        here = at.view_as(at) if at.requires_grad else at.detach().requires_grad_()
        gradient = _gradient(function(here), here, None, True)
        products = [_gradient(gradient, here, probe, is_recorded) for probe in probes]
    if not is_recorded:
        gradient = gradient.detach()
    return gradient, torch.stack(products) if products else gradient[None]


def _gradient(of: Tensor, at: Tensor, weights: Tensor | None, create_graph: bool) -> Tensor:
    if not of.requires_grad:  # a constant
        return torch.zeros_like(at)
    return torch.autograd.grad(
        of, at, weights, retain_graph=True, create_graph=create_graph, materialize_grads=True
    )[0]


class _Search(torch.autograd.Function):
    """A search of many vectors in one loop, which ``torch.vmap`` could not end."""

    @staticmethod
    def forward(search: Callable, latent: Tensor) -> tuple[Tensor, ...]:
        found = apart(search, latent.reshape(-1, latent.shape[-1]))
        return tuple(part.reshape(*latent.shape[:-1], *part.shape[1:]) for part in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, None]:
        return None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, search: Callable, latent: Tensor) -> tuple:
        if in_dims[1] is not None:
            latent = latent.movedim(in_dims[1], 0)
        found = _Search.apply(search, latent)
        return found, tuple(None if in_dims[1] is None else 0 for _ in found)


def _mapped(function: Callable, *rows: Tensor) -> tuple[Tensor, ...]:
    """Stack the function of each row, at once if the model can."""
    if len(rows[0]) == 1:
        return tuple(part[None] for part in function(*(row[0] for row in rows)))
    for way in function, writing(function, lambda row: row):
        with suppress(RuntimeError, NotImplementedError, ValueError):
            return torch.vmap(way)(*rows)
    found = [function(*row) for row in zip(*rows, strict=True)]
    return tuple(map(torch.stack, zip(*found, strict=True)))


@shared_doc(reparametrized.ReparametrizedGaussianGuide)
class ReparametrizedGaussianGuide(reparametrized.ReparametrizedGaussianGuide, NaturalGaussianGuide):
    """The guide has one submodule, ``posterior``, as :class:`~pyro_ngvi.NaturalGaussianGuide` has.

    >>> def groups(y):
    ...     scale = sample("scale", dist.HalfNormal(1.0))
    ...     with plate("groups", len(y)):
    ...         effect = sample("effect", dist.Normal(0.0, scale))
    ...         sample("y", dist.Normal(effect, 1.0), obs=y)
    >>> guide = ReparametrizedGaussianGuide(groups)
    >>> fit(groups, y, guide=guide, progress_bar=False).converged
    True
    >>> print(guide)
    ReparametrizedGaussianGuide(... 3 locals of size 1 ('effect') given 1 others, order=2)
    """

    _map_of = Reparametrization

    def __init__(
        self,
        model: Callable,
        family: Family | type[Family] | FamilyName = "auto",
        *,
        order: int = 2,
        init_loc_fn: Callable = init_to_median,
        init_scale: float | None = None,
        sticking_the_landing: bool | str = "auto",
    ) -> None:
        self.order = check_order(order)
        super().__init__(
            model,
            family,
            init_loc_fn=init_loc_fn,
            init_scale=init_scale,
            sticking_the_landing=sticking_the_landing,
        )

    # -- set-up -----------------------------------------------------------------------

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        self._blocks, self._data = None, (args, kwargs)
        super()._setup_prototype(*args, **kwargs)

    @property
    def _needs_model(self) -> bool:
        return True  # which says where the modes of locals are

    def _check_trace(self, trace: poutine.Trace) -> None:
        sites = {name: site for name, site in trace.nodes.items() if site["type"] == "sample"}
        plates = [
            name
            for name, site in sites.items()
            if site_is_subsample(site) and site["fn"].subsample_size not in (None, site["fn"].size)
        ]
        check_whole(plates, [name for name, site in sites.items() if is_enumerated(site)])
        super()._check_trace(trace)

    def replay(self, replays: Replays) -> None:
        """Search for modes by recorded runs, as long as these are open."""
        own: Any = self._reparametrization
        own.replays = replays

    def _start_vector(self) -> Tensor:
        return self._init_loc().detach().clone()

    def _modes_at(self, latent: Tensor) -> tuple[np.ndarray, np.ndarray]:
        found = self._reparametrization._searched(self._density(), latent)
        return found.point.cpu().numpy(), found.unsettled.cpu().numpy()

    def _init_loc(self) -> Tensor:
        loc = super()._init_loc()
        if self._blocks is None:
            return loc
        return torch.where(self._reparametrization._mask, torch.zeros_like(loc), loc)

    def _init_scale(self, loc: Tensor, args: tuple, kwargs: dict) -> Tensor:
        mask, start = self._reparametrization._mask, super()._init_loc()
        return torch.where(mask, torch.ones_like(loc), super()._init_scale(start, args, kwargs))

    def _own_vector(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(values).to(self._reparametrization.start)

    def _density(self) -> Density:
        """Return the model's log density at unconstrained vectors, at its present parameters."""
        model, (args, kwargs), sites = self._model_as_given[0], self._data, self.sites

        def density(theta: Tensor) -> Tensor:
            pieces = theta.split([site.size for site in sites])
            pairs = zip(sites, pieces, strict=True)
            values = {site.name: piece.reshape(site.shape) for site, piece in pairs}
            return log_density(model, args, kwargs, values)

        return density

    def sample_latent(self, *args: Any, **kwargs: Any) -> Tensor:
        """Draw the unconstrained latent vector in the model's coordinates."""
        latent = super().sample_latent(*args, **kwargs)
        theta, log_det, _ = self._of_each(latent)
        if am_i_wrapped():  # Pyro warns of factors that nobody sees
            pyro.factor(f"_{self._pyro_name}_log_det", -log_det, has_rsample=True)
        return theta

    def _of_each(self, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self._reparametrization.of_each(self._density(), latents)

    # -- the point in the middle ------------------------------------------------------

    @serialised
    def laplace(self) -> Tensor:
        """Return the Laplace approximation to the log density of data and globals, as in TMB, lme4.

        It is not a bound, and is exact if locals are conditionally Gaussian. A local without a mode
        counts as at its start with unit curvature (:meth:`num_without_mode`).

        The model's parameters are those of the store, with derivatives; latent globals are at the
        mean of the guide's Gaussian.
        """
        family, is_local = self._family(), self._reparametrization._mask
        mean = family.mean
        theta, log_det, _ = self._of_each(torch.where(is_local, torch.zeros_like(mean), mean))
        with quiet():
            return self._density()(theta) + log_det + self._log_volume()

    # -- what the user reads ----------------------------------------------------------

    @torch.no_grad()
    def _in_models_coordinates(self, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draws ``(N, d)`` in the model's coordinates, ``log |det|``, and locals without a mode."""
        size = latents.shape[-1] + sum(map(Tensor.numel, tensors_in(self._data)))
        fewest = self.draws_at_once  # as many as cost little more where the model is small
        at_once = int(np.clip(NUMBERS_AT_ONCE // size, fewest, 10 * fewest))
        parts = [self._of_each(some) for some in latents.detach().split(at_once)]
        theta, log_det, lost = map(torch.cat, zip(*parts, strict=True))
        return theta, log_det, lost

    def _values_at(self, theta: Tensor) -> Tensor:
        """Return the model's log density at its own latents ``(N, d)``."""
        with quiet(), BatchedDerivatives():
            return _mapped(lambda one: (self._density()(one),), theta)[0]

    def _constrained(self, latents: Tensor) -> dict[str, Tensor]:
        return self._in_supports(self._in_models_coordinates(latents)[0])

    @staticmethod
    def _draws_of(family: Family, num_draws: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(num_draws, family.dim, generator=generator, dtype=family.loc.dtype)
        return family.sample(noise.to(family.loc.device))

    def median(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Posterior median of every latent site, constrained; see :meth:`quantiles`."""
        return {name: value[0] for name, value in self.quantiles([0.5]).items()}

    def _latent_quantiles(self, family: Family, levels: Tensor) -> Tensor:
        theta = self._in_models_coordinates(self._draws_of(family, self.num_draws))[0]
        # torch.quantile takes up to 16 million numbers.
        of_locals = [torch.quantile(some, levels, 0) for some in theta.split(4000, -1)]
        of_globals = super()._latent_quantiles(family, levels)
        return torch.where(self._reparametrization._mask, torch.cat(of_locals, -1), of_globals)

    @serialised
    def num_without_mode(self, params: dict[str, Tensor] | None = None) -> dict[str, float]:
        """Count the locals that have no mode given globals and data, on average over the posterior.

        Newton's method finds none for these, and they are ``start + z``.

        :param params: a copy of the parameter store; None for the store itself.
        :return: counts by the sites of the locals; sites without any are left out.
        """
        family = self._family_of(params or {})
        troubled = self._in_models_coordinates(self._draws_of(family, 200))[2]
        return self._count_without_mode(troubled.cpu().numpy())
