"""What a fit returns."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import Predictive
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.distributions import biject_to, transform_to

from ngvi._docs import shared_doc
from ngvi._door import door
from ngvi._foreign import note_foreign_arguments
from ngvi._lock import serialised
from ngvi.errors import check_count
from ngvi.inference.arguments import check_predictive
from ngvi.inference.new_groups import Asked
from ngvi.inference.nuts import WAY_OUT, Chains, NutsPlan, NutsRequest, NutsResult, WhitenedDensity
from ngvi.inference.posterior import check_corrected
from ngvi.inference.problem import Problem
from ngvi.inference.psis import Diagnostics
from ngvi.inference.serialize import Saved
from ngvi.workflow.arviz import ArvizGroups
from ngvi.workflow.kept import PLAN
from ngvi.workflow.result import WorkflowResult
from ngvi.workflow.streaming import OneStep
from pyro_ngvi.families.registry import REGISTRY
from pyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from pyro_ngvi.guide.posterior import to_distribution
from pyro_ngvi.inference import nuts
from pyro_ngvi.inference.first_look import look
from pyro_ngvi.inference.new_groups import explained, predicted, replayed, which_are_new
from pyro_ngvi.inference.problem import make_problem, replay
from pyro_ngvi.inference.set_up import STARTS, set_up, store_as_it_was
from pyro_ngvi.inference.space import State, gaussians
from pyro_ngvi.tracing.messengers import repeatable_noise
from pyro_ngvi.tracing.recording import Replays
from pyro_ngvi.workflow import runs as model_runs
from pyro_ngvi.workflow.rows import ModelRows


@dataclasses.dataclass(kw_only=True, repr=False, eq=False)
class FitResult(WorkflowResult):
    """A fitted posterior, how the fit went, and whether to believe it.

    It is that of :attr:`params`, whatever becomes of the parameter store: guides of one class share
    their parameters' names, so that the guide of another fit changes what this one's returns.

    ``print(result)`` is a report. It takes thousands of evaluations of the log density for the
    diagnostics, once; ``repr(result)`` leaves them out until they have been asked for.
    """

    library: ClassVar[str] = "pyro_ngvi"
    _look: ClassVar[Callable] = staticmethod(look)
    _families, _guides = REGISTRY.families, (NaturalGaussianGuide, ReparametrizedGaussianGuide)

    def __post_init__(self) -> None:
        super().__post_init__()
        constraints = pyro.get_param_store().get_state()["constraints"]
        found = {name: c for name, c in constraints.items() if name in self.params}
        self._store = {
            "params": {
                name: transform_to(constraint).inv(self.params[name]).detach().requires_grad_()
                for name, constraint in found.items()
            },
            "constraints": found,
        }

    @door
    @shared_doc(WorkflowResult.sample)
    @serialised
    @torch.no_grad()
    def sample(  # type: ignore[override]
        self, num_samples: int = 1000, *, corrected: bool | str = "auto"
    ) -> dict[str, Tensor]:
        num_samples = check_count(num_samples, "num_samples")
        asked, found = check_corrected(corrected), None
        if asked or (asked is None and self._is_worth_correcting()):
            seed = int(torch.randint(2**31, ()))
            found = self._corrected(num_samples, seed, is_asked=bool(asked))
        if found is not None:
            return self.guide._constrained(torch.as_tensor(found).to(self.family.loc))
        if isinstance(self.guide, NaturalGaussianGuide):
            return self.guide._sample(self.family, num_samples)
        with self._own_parameters(), poutine.block():
            draws = Predictive(self.guide, num_samples=num_samples)(*self.args, **self.kwargs)
            trace = poutine.trace(self.guide).get_trace(*self.args, **self.kwargs)
        return {
            name: value
            for name, value in draws.items()
            if not trace.nodes[name]["infer"].get("is_auxiliary")
        }

    @shared_doc(WorkflowResult.predictive)
    @serialised
    @torch.no_grad()
    def predictive(
        self, *args: Any, num_samples: int = 1000, new_groups: Asked = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Each is one run of the model.

        Pyro's ``Predictive`` would give values in a plate more dimensions than they have.

        :return: by site, an axis of draws followed by the site's shape; without sites that some
            minibatches do not have.
        """
        num_samples = check_count(num_samples, "num_samples")
        check_predictive(self.predictive, self.model, args, kwargs, self.args)
        of_fit, model, names = (self.args, self.kwargs), self.model, self._latent_names()
        given, runs = (args, kwargs) if args or kwargs else of_fit, []
        noted = note_foreign_arguments(args, kwargs, "torch.as_tensor", (np.ndarray,))
        with noted, self._own_parameters(), poutine.block():
            new, latents = which_are_new(model, names, new_groups, of_fit, given)
            if given is of_fit:
                model = model_runs.Unobserved()(model)
            if new is None:
                found = replayed(model, self.guide, num_samples, *given)
            else:
                draws = self.sample(num_samples, corrected=False).items()
                found = predicted(model, new, {k: v for k, v in draws if k in names}, *given)
            for run in explained(found, latents):
                sites = {k: s for k, s in run.nodes.items() if s["type"] == "sample"}
                runs.append({k: s["value"] for k, s in sites.items() if not site_is_subsample(s)})
        shared = set.intersection(*({(k, v.shape) for k, v in run.items()} for run in runs))
        # A factor is an observed site, and has no numbers.
        kept = [k for k, v in runs[0].items() if (k, v.shape) in shared and v.numel()]
        return {name: torch.stack([run[name] for run in runs]) for name in kept}

    @shared_doc(WorkflowResult.sample_groups)
    @serialised
    @torch.no_grad()
    def sample_groups(
        self, *args: Any, num_samples: int = 1000, **kwargs: Any
    ) -> dict[str, Tensor]:
        num_samples = check_count(num_samples, "num_samples")
        guide = self._mode_centred_guide()
        new = guide.for_groups(self.model)
        with self._own_parameters(), poutine.block():
            with torch.enable_grad():
                new._setup_prototype(*args, **kwargs)
            own, others = guide._pairs_of_globals(new)
            family = self.family
            noise = family.loc.new_empty(num_samples, family.dim).normal_()
            latents = family.loc.new_empty(num_samples, new.latent_dim).normal_()
            latents[:, others] = family.sample(noise)[:, own]
            return new._constrained(latents)

    @door
    @shared_doc(WorkflowResult.nuts)
    @serialised
    def nuts(
        self,
        num_samples: int = 1000,
        *,
        num_warmup: int | None = None,
        num_chains: int = 4,
        target_accept_prob: float | None = None,
        progress_bar: bool = True,
        mp_context: str | None = None,
    ) -> NutsResult:
        """:param mp_context: of Pyro's ``MCMC``, which has chains in processes of their own where
        there are enough processors, and one after another otherwise.
        """
        asked = num_samples, num_warmup, num_chains, target_accept_prob, progress_bar
        request = NutsRequest.checked(*asked)
        whitened = self.model, self.guide, self.family, self.args, self.kwargs

        def run(_: WhitenedDensity, starts: np.ndarray, plan: NutsPlan, num_warmup: int) -> Chains:
            own = torch.as_tensor(starts).to(self.family.loc)
            with Replays() as replays:
                density = nuts.whitened_density(*whitened, self._own_parameters, replays)
                return nuts.run(density, own, plan, num_warmup, request, mp_context)

        return self._by_nuts(request, int(torch.randint(2**31, ())), run)

    @door
    @shared_doc(WorkflowResult.whitened_density)
    @serialised
    def whitened_density(self) -> WhitenedDensity:
        """They have the parameters of the fit, whatever becomes of the parameter store."""
        with self._at_end() as (problem, _):
            self._check_density(problem, "whitened_density()", WAY_OUT)
        run = self.model, self.guide, self.family, self.args, self.kwargs
        return nuts.whitened_density(*run, self._own_parameters, Replays())

    def _state_of(self, problem: Problem, params: dict[str, Any]) -> State:
        space: Any = problem.space
        return space.restored(params)

    @torch.no_grad()
    def _whitened(self, latents: np.ndarray) -> np.ndarray:
        return _numpy(self.family.whiten(torch.as_tensor(latents).to(self.family.loc)))

    @door
    @shared_doc(WorkflowResult.diagnose)
    @serialised
    def diagnose(self, num_draws: int | None = None, *, seed: int = 0) -> Diagnostics:
        """:param seed: of these draws; Pyro's own random numbers are left as they are."""
        return self._diagnosed(num_draws, seed)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        with (
            self._own_parameters(),
            repeatable_noise(),
            poutine.block(),
            Replays() as self._replays,
        ):
            yield

    def _own_problem(self) -> tuple[Problem, State]:
        run = self.model, self.guide, self.args, self.kwargs
        plan, *made_of = vars(self).get(PLAN, (None,) * 5)
        plan = plan if all(map(operator.is_, made_of, run)) else None
        problem: Any = make_problem(*run, curvature="stein", plan=plan)
        vars(self)[PLAN] = problem.objective._plan, *run
        # Others' draws share so few passes that most would end before a recording had paid.
        if isinstance(self.guide, ReparametrizedGaussianGuide):
            replay(problem.objective.density, self.guide, self._replays)
        return problem, problem.space.initial

    @serialised
    @torch.no_grad()
    def _groups(
        self, draws: dict[str, Tensor], wanted: dict[str, bool]
    ) -> tuple[ArvizGroups, dict[str, str]]:
        with self._own_parameters():
            runs = model_runs.ModelRuns(self.model, self.args, self.kwargs)
            return ArvizGroups.of_runs(runs, draws, wanted)

    @serialised
    @torch.no_grad()
    def _in_supports(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        with self._own_parameters(), poutine.block():
            found = self._gaussian()._constrained(torch.as_tensor(theta).to(self.family.loc))
        return {name: _numpy(value) for name, value in found.items()}

    def _rows(self, problem: Any, state: State) -> ModelRows:
        objective, space = problem.objective, problem.space
        density, here = objective.density, space.by_site(state)
        is_mapped = isinstance(self.guide, ReparametrizedGaussianGuide)
        rows = density, here, space.split, objective.draws_per_pass, is_mapped
        return ModelRows(*rows, functools.partial(replay, density, self.guide))

    def _moved_to(self, problem: Any, state: State, step: OneStep) -> FitResult:
        new, (family,) = self._with_fields(), state.families
        moved = step.of(family, lambda array: torch.as_tensor(array).to(family.loc))
        new.params = problem.space.with_family(self.params, moved)
        constraints = self._store["constraints"]
        own = {k: transform_to(constraints[k]).inv(new.params[k]) for k in self._store["params"]}
        params = {name: value.detach().requires_grad_() for name, value in own.items()}
        new._store = {"params": params, "constraints": constraints}
        return new

    def _gaussians(self) -> list[NaturalGaussianGuide]:
        return gaussians(self.guide)

    def _distribution(self, params: dict[str, Any]) -> dist.Distribution:
        return to_distribution(self._gaussian()._family_of(params))

    # -- files ------------------------------------------------------------------------

    @classmethod
    @shared_doc(WorkflowResult.load)
    def load(
        cls,
        path: str | PathLike,
        model: Callable,
        *args: Any,
        guide: Any = None,
        map_location: Any = None,
        **kwargs: Any,
    ) -> Self:
        """:param map_location: the device for arguments that are in the file, ``"cpu"`` or
        ``"cuda:1"``, say, whatever they were on; parameters are where the model has them.
        """
        place = None if map_location is None else _device(map_location)
        return cls._loaded(path, model, args, kwargs, guide, place)

    @staticmethod
    def _place(value: Any) -> str:
        return str(value.device)

    @staticmethod
    def _flat(params: dict[str, Any]) -> dict[str, np.ndarray]:
        return {name: _numpy(value) for name, value in params.items()}

    @staticmethod
    def _as_array(value: Any) -> np.ndarray | None:
        return _numpy(value) if isinstance(value, Tensor) else None

    @staticmethod
    def _own(array: np.ndarray, place: Any = "") -> Tensor:
        own = torch.from_numpy(array)
        if isinstance(place, torch.device):
            return own.to(place)
        return own.to(place) if place and _is_here(place) else own

    @staticmethod
    def _at_a_third(support: Any, shape: tuple[int, ...], like: Any) -> float:
        return float(biject_to(support)(like.new_full(shape, 1 / 3)).sum())

    @classmethod
    @serialised
    def _rebuilt(
        cls,
        saved: Saved,
        model: Callable,
        args: tuple,
        kwargs: dict[str, Any],
        guide: Any,
        make_guide: Any,
    ) -> dict[str, Any]:
        with repeatable_noise(), poutine.block(), store_as_it_was() as keep:
            ready = set_up(model, args, kwargs, guide, make_guide, STARTS, 0)
            parameters: Any = ready.problem.space
            own = parameters.snapshot()
            saved.check_same(gaussians(ready.guide), cls._at_a_third, cls._flat(own))

            def made(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
                return {name: torch.from_numpy(arrays[name]).to(own[name]) for name in own}

            params = made(saved.under("params/"))
            parameters.write(parameters.restored(params, with_own=True))
            keep()
        return {
            "model": ready.model,
            "guide": ready.guide,
            "params": params,
            "optima": saved.optima(made),
        }

    @contextlib.contextmanager
    def _own_parameters(self) -> Iterator[None]:
        state: Any = {key: dict(v) for key, v in self._store.items()}
        with _weights_at(self.model, state["params"]), pyro.get_param_store().scope(state):
            yield


@contextlib.contextmanager
def _weights_at(model: Any, params: dict[str, Tensor]) -> Iterator[None]:
    """A ``PyroModule``'s plain weights, which it reads itself, at the values of these parameters.

    :param params: unconstrained; the weights take their places.
    """
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


def _numpy(value: Tensor) -> np.ndarray:
    return value.detach().cpu().numpy()


def _device(name: Any) -> torch.device:
    """What the user calls ``map_location``.

    :raises ValueError: if it is no device.
    """
    try:
        return torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"map_location must be a device such as 'cpu' or 'cuda:0', got {name!r}."
        ) from error


def _is_here(place: str) -> bool:
    """Whether there is such a device."""
    try:
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError):  # torch without it, or fewer of them
        return False
    return True
