"""The problem of a NumPyro model and its guide."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import numpyro

from ngvi.inference.problem import Problem
from numpyro_ngvi.guide import NaturalGaussianGuide
from numpyro_ngvi.guide.prototype import Keyed
from numpyro_ngvi.inference.metric import Metric
from numpyro_ngvi.inference.objective import Objective
from numpyro_ngvi.inference.space import State, StateSpace, check_has_gaussian


def make_problem(
    model: Callable,
    guide: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    rng_key: jax.Array,
    curvature: str = "auto",
) -> Problem:
    """Set up guide and parameters.

    :raises ValueError: for a guide without a Gaussian, an unknown curvature, or Hessians of a log
        density that has none.
    """
    initial, constrain = _initial(model, guide, args, kwargs, rng_key)
    check_has_gaussian(guide, initial)
    space = StateSpace(guide, initial, constrain)
    return Problem(Objective(model, guide, args, kwargs, space, curvature), space, Metric)


def _initial(
    model: Callable, guide: Callable, args: tuple, kwargs: dict[str, Any], rng_key: jax.Array
) -> tuple[State, Callable[[State], State]]:
    """Return the first parameters of model and guide, and their constraining function."""
    is_set_up = isinstance(guide, NaturalGaussianGuide) and guide.model_as_given is model
    if is_set_up:
        with Keyed(key=rng_key):
            initial = guide.set_up(*args, **kwargs)
        sites = guide.prototype_trace.values()
        if not any(site["type"] in ("param", "mutable") for site in sites):
            return dict(initial), dict  # without a run, whose operations are compiled one by one
    # The loss is not called; this one takes discrete latents, of which others warn.
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.SGD(0.0), numpyro.infer.TraceEnum_ELBO())
    # It runs the model at a draw of a guide that may be far broader than the start that was found
    # valid, where a distribution may be none: what is asked for are the parameters alone.
    with numpyro.validation_enabled(False) if is_set_up else nullcontext():
        state = svi.init(rng_key, *args, **kwargs)
    return svi.optim.get_params(state.optim_state), svi.constrain_fn
