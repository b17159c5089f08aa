"""The three rooms of an engine, for a Pyro model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from ngvi.estimators.choice import CURVATURES_OF_FIT, check_curvature
from ngvi.inference.engine import Engine
from pyro_ngvi.inference.evaluator import Evaluator
from pyro_ngvi.inference.geometry import EachRow, Geometry
from pyro_ngvi.inference.importance import check_has_gaussian
from pyro_ngvi.inference.parameters import Parameters
from pyro_ngvi.tracing.messengers import repeatable_noise


def make_engine(
    model: Callable,
    guide: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    seed: int = 0,
    curvature: str = "auto",
) -> Engine:
    """Set up guide and parameters.

    :param model: a Pyro model.
    :param guide: a guide with one or more ``NaturalGaussianGuide``.
    :param seed: for the initial parameters. Pyro's own random numbers are left as they are.
    :param curvature: one of :data:`ngvi.estimators.choice.CURVATURES_OF_FIT`.
    :raises ValueError: for a guide without a Gaussian, an unknown curvature, or Hessians of a log
        density that has none.
    """
    check_curvature(curvature, CURVATURES_OF_FIT)
    check_has_gaussian(guide)
    with repeatable_noise(), torch.enable_grad():
        torch.manual_seed(seed)
        parameters = Parameters(model, guide, args, kwargs)
        evaluator = Evaluator(model, guide, args, kwargs, parameters, curvature)
    return Engine(evaluator, parameters, functools.partial(Geometry, each_row=EachRow()))
