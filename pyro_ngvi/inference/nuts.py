"""Pyro's NUTS in the coordinates of a fitted Gaussian; see :mod:`ngvi.inference.draws.nuts`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS
from pyro.ops.integrator import potential_grad
from pyro.poutine.messenger import Messenger
from torch import Tensor
from torch.autograd.function import once_differentiable

from ngvi.inference.draws.jumps import Jumps
from ngvi.inference.draws.nuts import Chains, NutsPlan, NutsRequest, WhitenedDensity
from pyro_ngvi.estimators import make_plan
from pyro_ngvi.estimators.moments import gradients_of
from pyro_ngvi.families import Family
from pyro_ngvi.inference.problem import replay
from pyro_ngvi.tracing.messengers import repeatable_noise
from pyro_ngvi.tracing.recording import Replays

#: Name of the coordinates in Pyro's sampler.
SITE = "z"


def whitened_density(
    model: Callable,
    guide: Any,
    family: Family,
    args: tuple,
    kwargs: dict[str, Any],
    parameters: Callable[[], AbstractContextManager],
    replays: Replays,
) -> WhitenedDensity:
    """Return the density of a fit.

    :param parameters: a context in which the parameter store is that of the fit.
    :param replays: that are open if it is evaluated by recorded runs, and differentiated once.
    """
    with parameters(), repeatable_noise(), poutine.block():
        _, density = make_plan(model, guide, args, kwargs, validate=False)
        leaves = [leaf for _, leaf in pyro.get_param_store().named_parameters()]
    (site,), log_det = density.posteriors, family.log_det_scale()
    replay(density, guide, replays)

    def values(rows: Tensor) -> Tensor:
        return density({site: family.sample(rows)}, is_first_order=True) + log_det

    def with_gradients(rows: Tensor) -> tuple[Tensor, ...]:
        at = rows.detach().requires_grad_()
        with torch.enable_grad():
            found = values(at)
            return found.detach(), *gradients_of(found.sum(), [at])

    def recorded(rows: Tensor) -> tuple[Tensor, ...]:
        return density.replayed(with_gradients, rows, leaves=leaves)

    def log_density(z: Tensor) -> Tensor:
        rows = torch.atleast_2d(z)
        with parameters(), repeatable_noise(), poutine.block():
            found = _Known.apply(recorded, rows)[0] if replays.is_open else values(rows)
        return found if z.dim() > 1 else found[0]

    @torch.no_grad()
    def constrain(z: Tensor) -> dict[str, Tensor]:
        with parameters(), poutine.block():
            found = guide._constrained(family.sample(torch.atleast_2d(z)))
        return found if z.dim() > 1 else {name: value[0] for name, value in found.items()}

    return WhitenedDensity(family.dim, log_density, constrain)


class _Known(torch.autograd.Function):
    """Values that come with their gradients."""

    @staticmethod
    def forward(ctx: Any, function: Callable, rows: Tensor) -> tuple[Tensor, Tensor]:
        values, gradients = function(rows)
        ctx.save_for_backward(gradients)
        return values, gradients

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_values: Tensor, _: Tensor) -> tuple[None, Tensor]:
        return None, of_values[:, None] * ctx.saved_tensors[0]


class CountingNUTS(NUTS):
    """Pyro's NUTS, whose diagnostics have gradients and kinetic energies as well.

    :param log_density: of the coordinates.
    :param jumps: that follow transitions after the warm-up.
    """

    def __init__(
        self, log_density: Callable[[Tensor], Tensor], jumps: Jumps | None = None, **options: Any
    ) -> None:
        self._log_density, self._jumps, self._num_gradients = log_density, jumps, 0
        super().__init__(potential_fn=self._potential, **options)

    def _potential(self, values: dict[str, Tensor]) -> Tensor:
        self._num_gradients += 1
        return -self._log_density(values[SITE])

    def setup(self, warmup_steps: int, *args: Any, **kwargs: Any) -> None:
        self._num_gradients, self._kinetic, self._num_drawn = 0, [], 0
        super().setup(warmup_steps, *args, **kwargs)

    def sample(self, params: dict[str, Tensor]) -> dict[str, Tensor]:
        with _Momentum() as momentum:
            found = super().sample(params)
        self._num_drawn += 1
        if self._num_drawn > self._warmup_steps:
            self._kinetic.append(momentum.kinetic)
            if self._jumps is not None:
                return self._jumped(found[SITE], self._jumps)
        return found

    def _jumped(self, z: Tensor, jumps: Jumps) -> dict[str, Tensor]:
        """Return the state after a jump, if it is taken."""
        which = torch.multinomial(jumps.log_weights.exp(), 1)[0]
        new = jumps.centres[which] + jumps.factors[which] @ torch.randn_like(z)
        _, energy, _ = self._fetch_from_cache()
        gradient, new_energy = potential_grad(self.potential_fn, {SITE: new})
        log_ratio = energy - new_energy
        log_ratio += jumps.log_density(z, torch) - jumps.log_density(new, torch)
        if torch.rand_like(z[0]).log() < log_ratio:  # of a density of zero it is not
            self._cache({SITE: new}, new_energy, gradient)
            return {SITE: new}
        return {SITE: z}

    def diagnostics(self) -> dict[str, Any]:
        own = {"gradients": self._num_gradients, "kinetic energy": self._kinetic}
        return {**super().diagnostics(), **own}


class _Momentum(Messenger):
    """See the momentum that a transition begins with, standardised."""

    def _pyro_post_sample(self, msg: Any) -> None:
        if msg["name"].startswith("r_t="):
            self.kinetic = 0.5 * float(msg["value"].square().sum())


class ConstrainedMCMC(MCMC):
    """Pyro's MCMC, whose samples are the model's sites.

    :param constrain: from coordinates to these.
    """

    def __init__(self, kernel: Any, constrain: Callable, **options: Any) -> None:
        super().__init__(kernel, transforms={}, **options)
        self._constrain = constrain

    def run(self, *args: Any, **kwargs: Any) -> None:
        super().run(*args, **kwargs)
        #: Before they are constrained, shape ``(chains, draws, d)``.
        self.whitened = self._samples[SITE]
        found = self._constrain(self.whitened.flatten(0, 1))
        shape = self.whitened.shape[:2]
        self._samples = {k: v.reshape(*shape, *v.shape[1:]) for k, v in found.items()}


def run(
    density: WhitenedDensity,
    starts: Tensor,
    plan: NutsPlan,
    num_warmup: int,
    request: NutsRequest,
    mp_context: str | None,
) -> Chains:
    """Run chains of Pyro's NUTS.

    :param starts: shape ``(chains, d)``.
    :param num_warmup: transitions before the draws.
    """
    jumps = plan.jumps and Jumps(*(torch.as_tensor(one).to(starts) for one in plan.jumps))
    kernel = CountingNUTS(
        density.log_density,
        jumps,
        adapt_mass_matrix=plan.adapts_metric,
        target_accept_prob=plan.accept_prob(request.target_accept_prob),
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="num_chains=.* is more than available_cpu")
        mcmc = ConstrainedMCMC(
            kernel,
            density.constrain,
            num_samples=request.num_samples,
            warmup_steps=num_warmup,
            num_chains=request.num_chains,
            initial_params={SITE: starts if request.num_chains > 1 else starts[0]},
            disable_progbar=not request.progress_bar,
            mp_context=mp_context,
        )
    mcmc.run()
    found = mcmc.diagnostics()
    each = [f"chain {i}" for i in range(request.num_chains)]
    diverging = np.zeros((request.num_chains, request.num_samples), bool)
    for row, chain in zip(diverging, each, strict=True):
        row[found["divergences"][chain]] = True
    kinetic = np.array([found["kinetic energy"][chain] for chain in each])
    # A transition begins where the one before has ended; of the first that is not known.
    with torch.no_grad():
        potential = -density.log_density(mcmc.whitened.flatten(0, 1)).reshape(kinetic.shape)
    energy = kinetic[:, 1:] + potential.double().cpu().numpy()[:, :-1]
    draws = {name: v.cpu().numpy() for name, v in mcmc.get_samples(group_by_chain=True).items()}
    num_gradients = sum(found["gradients"][chain] for chain in each)
    z = mcmc.whitened.cpu().numpy()
    return Chains(mcmc, draws, diverging, np.hstack([energy[:, :1], energy]), num_gradients, z)
