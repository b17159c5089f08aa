"""Set-up of guide and problem, wherever the model has a start."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.infer.autoguide.initialization import init_to_feasible, init_to_median, init_to_uniform
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample

from ngvi._foreign import note_foreign_arguments
from ngvi.errors import InvalidStartError
from ngvi.estimators.choice import CURVATURES_OF_FIT, check_curvature
from ngvi.inference import set_up as shared
from ngvi.inference.problem import ModelRun, Problem
from pyro_ngvi.estimators.plan import Plan
from pyro_ngvi.guide import NaturalGaussianGuide, ReparametrizedGaussianGuide
from pyro_ngvi.inference.first_look import as_numpy
from pyro_ngvi.inference.metric import EachRow, Metric
from pyro_ngvi.inference.objective import Objective
from pyro_ngvi.inference.space import StateSpace, check_has_gaussian, gaussians
from pyro_ngvi.tracing import LogDensity
from pyro_ngvi.tracing.given_latents import check_no_new_latent
from pyro_ngvi.tracing.messengers import repeatable_noise
from pyro_ngvi.tracing.recording import Replays


def make_problem(
    run: ModelRun, seed: int = 0, curvature: str = "auto", plan: Plan | None = None
) -> Problem:
    """Set up guide and parameters.

    :param seed: for the initial parameters. Pyro's own random numbers are left as they are.
    :param plan: of model and guide with these arguments, if it is known.
    :raises ValueError: for a guide without a Gaussian, an unknown curvature, or Hessians of a log
        density that has none.
    """
    check_curvature(curvature, CURVATURES_OF_FIT)
    check_has_gaussian(run[1])
    with repeatable_noise(), torch.enable_grad():
        torch.manual_seed(seed)
        space = StateSpace(*run)
        objective = Objective(run, space, curvature, plan)
    return Problem(objective, space, functools.partial(Metric, each_row=EachRow()))


def replay(density: LogDensity, guide: Any, replays: Replays) -> None:
    """Evaluate with them what is the same in every call, as long as they are open."""
    if not (density.facts.is_subsampled or density.facts.is_stochastic):
        density.replays = replays.part()
    for part in gaussians(guide):
        if isinstance(part, ReparametrizedGaussianGuide):
            part.replay(replays.part())


#: Strategies of a guide that ``fit`` makes.
STARTS = (init_to_feasible, init_to_uniform, init_to_median)


def set_up(
    given: shared.Given, starts: Sequence[Callable], seed: int, curvature: str = "auto"
) -> shared.Ready:
    """Set up guide and problem at the first start that will do."""
    run = given.args, given.kwargs

    def at(model: Callable, init_loc_fn: Callable) -> shared.Made:
        own = given.guide
        if own is None:
            own = given.make_guide(model, init_loc_fn)
            forget_others(own)
        problem = make_problem((model, own, *run), seed, curvature)
        if given.guide is None:
            check_no_new_latent(problem.objective._plan.facts.unguided)
        return problem, own

    parts = shared.SetUp(
        enumerated=config_enumerate,
        draw=lambda name: pyro.sample(name, dist.Normal(0.0, 1.0)),
        sites=lambda: _parameters(given.model, *run),
        without_densities=_WithoutDensities(),
        arguments=lambda: as_numpy(run),
    )
    with note_foreign_arguments(*run, "torch.as_tensor", str(torch.get_default_dtype())):
        try:
            found = shared.ready(given, starts, at, parts)
        except InvalidStartError as error:
            raise _without_sites(error) from None
    if found.has_start:
        return found
    return found._replace(error=_without_sites(found.error))


def _without_sites(error: Exception | None) -> InvalidStartError:
    """Return the error without the list of no sites that Pyro adds."""
    return InvalidStartError(str(error).partition("\nTrace Shapes")[0])


def _parameters(model: Callable, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    with poutine.block(), poutine.trace(param_only=True) as capture:
        model(*args, **kwargs)
    return capture.trace.nodes


def forget_others(guide: NaturalGaussianGuide) -> None:
    """Drop the parameters that a guide of this class has left in the store."""
    store = pyro.get_param_store()
    for name in list(store.keys()):
        if name.startswith(f"{guide._pyro_name}."):
            del store[name]


def set_store(state: Any) -> None:
    """Make this all that the store has."""
    store = pyro.get_param_store()
    store.clear()
    store.set_state(state)


@contextmanager
def store_as_it_was() -> Iterator[Callable[[], None]]:
    """Bring back what was in the store if there is an error, unless told to keep what is there."""
    kept: list[bool] = []
    before = pyro.get_param_store().get_state()
    try:
        yield lambda: kept.append(True)
    except BaseException:
        if not kept:
            set_store(before)
        raise


class _WithoutDensities(Messenger):
    """Leave the densities of a model out, so that a guide can be set up anywhere."""

    def _pyro_sample(self, msg: Any) -> None:
        if not site_is_subsample(msg):
            msg["fn"] = msg["fn"].mask(False)
