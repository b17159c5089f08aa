"""Set-up of guide and problem, wherever the model has a start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.initialization import init_to_median, init_to_uniform

from ngvi._foreign import note_foreign_arguments
from ngvi.inference import set_up as shared
from numpyro_ngvi.inference.first_look import as_numpy
from numpyro_ngvi.inference.problem import make_problem
from numpyro_ngvi.inference.space import gaussians

#: Strategies of a guide that ``fit`` makes.
STARTS = (partial(init_to_uniform, radius=0.0), init_to_uniform, init_to_median)


def set_up(
    given: shared.Given, starts: Sequence[Callable], rng_key: jax.Array, curvature: str = "auto"
) -> shared.Ready:
    """Set up guide and problem at the first start that will do."""
    run = given.args, given.kwargs

    def at(model: Callable, init_loc_fn: Callable) -> shared.Made:
        own = given.make_guide(model, init_loc_fn) if given.guide is None else given.guide
        problem = make_problem(model, own, *run, rng_key, curvature)
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
