"""Set-up of guide and problem, wherever the model has a start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.initialization import init_to_median, init_to_uniform

from ngvi._foreign import note_foreign_arguments
from ngvi.inference import set_up as shared
from ngvi.inference.problem import ModelRun, Problem
from numpyro_ngvi.guide import NaturalGaussianGuide
from numpyro_ngvi.guide.prototype import Keyed
from numpyro_ngvi.inference.first_look import as_numpy
from numpyro_ngvi.inference.metric import Metric
from numpyro_ngvi.inference.objective import Objective
from numpyro_ngvi.inference.space import State, StateSpace, check_has_gaussian, gaussians


def make_problem(run: ModelRun, rng_key: jax.Array, curvature: str = "auto") -> Problem:
    """Set up guide and parameters.

    :raises ValueError: for a guide without a Gaussian, an unknown curvature, or Hessians of a log
        density that has none.
    """
    initial, constrain = _initial(*run, rng_key)
    check_has_gaussian(run[1], initial)
    space = StateSpace(run[1], initial, constrain)
    return Problem(Objective(run, space, curvature), space, Metric)


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


#: Strategies of a guide that ``fit`` makes.
STARTS = (partial(init_to_uniform, radius=0.0), init_to_uniform, init_to_median)


def set_up(
    given: shared.Given, starts: Sequence[Callable], rng_key: jax.Array, curvature: str = "auto"
) -> shared.Ready:
    """Set up guide and problem at the first start that will do."""
    run = given.args, given.kwargs

    def at(model: Callable, init_loc_fn: Callable) -> shared.Made:
        own = given.make_guide(model, init_loc_fn) if given.guide is None else given.guide
        problem = make_problem((model, own, *run), rng_key, curvature)
        for part in gaussians(given.guide):
            part._latent_shapes.require_sites(part._latent_shapes.found(model, *run))
        return problem, own

    def sites() -> dict[str, Any]:
        with handlers.block():
            return handlers.trace(handlers.seed(given.model, 0)).get_trace(*run[0], **run[1])

    parts = shared.SetUp(
        enumerated=_enumerated,
        draw=lambda name: numpyro.sample(name, dist.Normal(0.0, 1.0)),
        sites=sites,
        without_densities=partial(handlers.mask, mask=False),
        arguments=lambda: as_numpy(run),
    )
    with note_foreign_arguments(*run, "jnp.asarray"):
        return shared.ready(given, starts, at, parts)


def _enumerated(model: Callable) -> Callable:
    from numpyro.contrib.funsor import config_enumerate

    return config_enumerate(model)
