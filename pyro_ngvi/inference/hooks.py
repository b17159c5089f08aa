"""Pyro's part in results; see :mod:`ngvi.inference.hooks`."""

from __future__ import annotations

import contextlib
import functools
import operator
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyro
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.poutine import runtime
from torch import Tensor
from torch.distributions import transform_to

from ngvi.inference import hooks as shared
from ngvi.inference.around import Around
from ngvi.inference.draws.nuts import WhitenedDensity
from ngvi.inference.problem import Problem
from ngvi.inference.result import PLAN
from ngvi.workflow.arviz import ArvizGroups
from ngvi.workflow.rows_result import mean_and_factor
from pyro_ngvi.estimators import make_plan
from pyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from pyro_ngvi.host import doubles
from pyro_ngvi.inference.first_look import log_densities, look
from pyro_ngvi.inference.new_groups import predictions
from pyro_ngvi.inference.set_up import make_problem, replay
from pyro_ngvi.inference.space import State, gaussians
from pyro_ngvi.tracing.messengers import repeatable_noise
from pyro_ngvi.tracing.recording import Replays
from pyro_ngvi.workflow.rows import ModelRows
from pyro_ngvi.workflow.runs import ModelRuns


class Hooks(shared.Hooks):
    """Run a result's model with the parameters of its fit, whatever the parameter store holds.

    A result has these, unconstrained, and their constraints as ``_store``.
    """

    library, around = "pyro_ngvi", Around(runtime._PYRO_STACK, "poutine")
    look, gaussians = staticmethod(look), staticmethod(gaussians)
    log_densities = staticmethod(log_densities)
    mean_and_factor = staticmethod(mean_and_factor)

    def begin(self, result: Any) -> None:
        known = vars(result).get("_store") or pyro.get_param_store().get_state()
        found = {name: c for name, c in known["constraints"].items() if name in result.params}
        params = {
            name: transform_to(constraint).inv(result.params[name]).detach().requires_grad_()
            for name, constraint in found.items()
        }
        result._store = {"params": params, "constraints": found}

    def seed_of(self, key: None) -> int:
        return int(torch.randint(2**31, ()))

    # -- the guide --------------------------------------------------------------------

    @torch.no_grad()
    def draws(self, result: Any, num_samples: int, key: None) -> dict[str, Tensor]:
        guide, run = result.guide, (result.args, result.kwargs)
        if isinstance(guide, NaturalGaussianGuide):
            return guide._sample(result.family, num_samples)
        with own_parameters(result), poutine.block():
            draws = Predictive(guide, num_samples=num_samples)(*run[0], **run[1])
            nodes = poutine.trace(guide).get_trace(*run[0], **run[1]).nodes
        is_own = {name: not nodes[name]["infer"].get("is_auxiliary") for name in draws}
        return {name: value for name, value in draws.items() if is_own[name]}

    @torch.no_grad()
    def in_models(self, result: Any, latents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with own_parameters(result), poutine.block():
            own = torch.as_tensor(latents).to(result.family.loc)
            guide = result._gaussian()
            theta, log_det, _ = guide._in_models_coordinates(own)
            return doubles(theta), doubles(guide._values_at(theta) + log_det)

    @torch.no_grad()
    def at(self, result: Any, latents: np.ndarray) -> dict[str, Tensor]:
        with own_parameters(result), poutine.block():
            like = result.family.loc
            return result._gaussian()._in_supports(torch.as_tensor(latents).to(like))

    @torch.no_grad()
    def group_draws(
        self, result: Any, guide: Any, num_samples: int, run: shared.Run, key: None
    ) -> dict[str, Tensor]:
        with own_parameters(result), poutine.block():
            with torch.enable_grad():
                guide._setup_prototype(*run[0], **run[1])
            own, others = result.guide._pairs_of_globals(guide)
            family = result.family
            noise = family.loc.new_empty(num_samples, family.dim).normal_()
            latents = family.loc.new_empty(num_samples, guide.latent_dim).normal_()
            held = result._latents(num_samples, key)
            globals_ = family.sample(noise) if held is None else torch.as_tensor(held).to(noise)
            latents[:, others] = globals_[:, own]
            return guide._constrained(latents)

    # -- the model --------------------------------------------------------------------

    @contextlib.contextmanager
    def running(self, result: Any) -> Iterator[None]:
        with own_parameters(result), repeatable_noise(), poutine.block(), Replays() as replays:
            result._replays = replays
            yield

    def problem(self, result: Any) -> tuple[Problem, State]:
        run = result.model, result.guide, result.args, result.kwargs
        plan, *made_of = vars(result).get(PLAN, (None,) * 5)
        plan = plan if all(map(operator.is_, made_of, run)) else None
        problem: Any = make_problem(run, curvature="stein", plan=plan)
        vars(result)[PLAN] = problem.objective._plan, *run
        replay(problem.objective.density, result.guide, result._replays)
        return problem, problem.space.initial

    def problem_in_models(self, result: Any) -> Problem:
        guide = NaturalGaussianGuide(result.model, family="diagonal")
        run = result.model, guide, result.args, result.kwargs
        problem = make_problem(run, curvature="stein")
        replay(problem.objective.density, guide, result._replays)
        return problem

    def state_of(self, problem: Any, params: dict[str, Any]) -> State:
        return problem.space.restored(params)

    def rows(self, result: Any, problem: Any, state: State) -> ModelRows:
        is_mapped = isinstance(result.guide, ReparametrizedGaussianGuide)
        replayed = functools.partial(replay, problem.objective.density, result.guide)
        return ModelRows(problem, problem.space.by_site(state), is_mapped, replayed)

    @torch.no_grad()
    def predictions(self, result: Any, *asked: Any) -> dict[str, Tensor]:
        with own_parameters(result), poutine.block():
            return predictions(result, *asked)

    @torch.no_grad()
    def groups(
        self, result: Any, draws: dict[str, Tensor], wanted: dict[str, bool]
    ) -> tuple[ArvizGroups, dict[str, str]]:
        with own_parameters(result):
            runs = ModelRuns(result.model, result.args, result.kwargs)
            return ArvizGroups.of_runs(runs, draws, wanted)

    @torch.no_grad()
    def seconds_of_run(self, result: Any, run: shared.Run | None = None) -> float:
        runs, seconds = ModelRuns(result.model, *(run or (result.args, result.kwargs))), []
        with own_parameters(result), repeatable_noise(), contextlib.suppress(Exception):
            latents = {name: draw[0] for name, draw in self.draws(result, 1, None).items()}
            for _ in range(2):  # the first may import
                start = time.perf_counter()
                runs.first(latents)
                seconds.append(time.perf_counter() - start)
        return min(seconds, default=0.0)  # of arguments that are wrong, as the call says

    # -- NUTS -------------------------------------------------------------------------

    def whitened_density(self, result: Any) -> WhitenedDensity:
        family, guide = result.family, result.guide
        with own_parameters(result), repeatable_noise(), poutine.block():
            _, density = make_plan(result.model, guide, result.args, result.kwargs, validate=False)
        (site,), log_det = density.posteriors, family.log_det_scale()

        def log_density(z: Tensor) -> Tensor:
            rows = torch.atleast_2d(z)
            with own_parameters(result), repeatable_noise(), poutine.block():
                found = density({site: family.sample(rows)}, is_first_order=True) + log_det
            return found if z.dim() > 1 else found[0]

        @torch.no_grad()
        def constrain(z: Tensor) -> dict[str, Tensor]:
            with own_parameters(result), poutine.block():
                found = guide._constrained(family.sample(torch.atleast_2d(z)))
            return found if z.dim() > 1 else {name: value[0] for name, value in found.items()}

        return WhitenedDensity(family.dim, log_density, constrain)


@contextlib.contextmanager
def own_parameters(result: Any) -> Iterator[None]:
    """Put the result's parameters in the place of those in the store."""
    state: Any = {key: dict(v) for key, v in result._store.items()}
    with _weights_at(result.model, state["params"]), pyro.get_param_store().scope(state):
        yield


@contextlib.contextmanager
def _weights_at(model: Any, params: dict[str, Tensor]) -> Iterator[None]:
    """Set a ``PyroModule``'s plain weights, which it reads itself, to these parameters."""
    own = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}
    own = {name: weight for name, weight in own.items() if name in params}
    before = {name: weight.data for name, weight in own.items()}
    try:
        for name, weight in own.items():
            weight.data = params[name].detach()
            params[name] = weight
        yield
    finally:
        for name, weight in own.items():
            weight.data = before[name]
