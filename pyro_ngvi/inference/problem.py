"""The problem of a Pyro model and its guide."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ngvi.estimators.choice import CURVATURES_OF_FIT, check_curvature
from ngvi.inference.problem import Problem
from pyro_ngvi.estimators.plan import Plan
from pyro_ngvi.guide import ReparametrizedGaussianGuide
from pyro_ngvi.inference.metric import EachRow, Metric
from pyro_ngvi.inference.objective import Objective
from pyro_ngvi.inference.space import StateSpace, check_has_gaussian, gaussians
from pyro_ngvi.tracing import LogDensity
from pyro_ngvi.tracing.messengers import repeatable_noise
from pyro_ngvi.tracing.recording import Replays


def make_problem(
    model: Callable,
    guide: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    seed: int = 0,
    curvature: str = "auto",
    plan: Plan | None = None,
) -> Problem:
    """Set up guide and parameters.

    :param seed: for the initial parameters. Pyro's own random numbers are left as they are.
    :param plan: of model and guide with these arguments, if it is known.
    :raises ValueError: for a guide without a Gaussian, an unknown curvature, or Hessians of a log
        density that has none.
    """
    check_curvature(curvature, CURVATURES_OF_FIT)
    check_has_gaussian(guide)
    with repeatable_noise(), torch.enable_grad():
        torch.manual_seed(seed)
        space = StateSpace(model, guide, args, kwargs)
        objective = Objective(model, guide, args, kwargs, space, curvature, plan)
    return Problem(objective, space, functools.partial(Metric, each_row=EachRow()))


def replay(density: LogDensity, guide: Any, replays: Replays) -> None:
    """Evaluate with them what is the same in every call, as long as they are open."""
    if not (density.facts.is_subsampled or density.facts.is_stochastic):
        density.replays = replays.part()
    for part in gaussians(guide):
        if isinstance(part, ReparametrizedGaussianGuide):
            part.replay(replays.part())
