"""From a model to a guide and an problem that are set up, wherever the model has a start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.initialization import init_to_median, init_to_uniform

from ngvi._foreign import note_foreign_arguments
from ngvi.errors import NO_LATENTS, DiscreteLatentError
from ngvi.inference import set_up as shared
from ngvi.inference.problem import Problem
from numpyro_ngvi.guide import NaturalGaussianGuide
from numpyro_ngvi.inference.problem import make_problem
from numpyro_ngvi.inference.space import gaussians

#: Strategies of a guide that ``fit`` makes.
STARTS = (partial(init_to_uniform, radius=0.0), init_to_uniform, init_to_median)


def set_up(
    model: Callable,
    args: tuple,
    kwargs: dict[str, Any],
    guide: Any,
    make_guide: Callable[[Callable, Callable], NaturalGaussianGuide],
    starts: Sequence[Callable],
    rng_key: jax.Array,
    curvature: str = "auto",
) -> shared.Ready:
    """Set up guide and problem at the first start that will do.

    :param make_guide: makes another for a model and a strategy.
    """

    def at(model: Callable, init_loc_fn: Callable) -> tuple[Problem, Any]:
        own = make_guide(model, init_loc_fn) if guide is None else guide
        problem = make_problem(model, own, args, kwargs, rng_key, curvature)
        for part in gaussians(guide):
            part._latent_shapes.check_model(model, args, kwargs)
        return problem, own

    def changed(model: Callable, error: Exception) -> Callable | None:
        if guide is not None:
            return None
        if isinstance(error, DiscreteLatentError):
            from numpyro.contrib.funsor import config_enumerate

            return config_enumerate(model)  # as NUTS does
        return _with_a_latent(model) if _has_parameters(model, args, kwargs) else None

    nan_arguments = partial(shared.in_arguments, args, kwargs, _holds_nan)
    with note_foreign_arguments(args, kwargs, "jnp.asarray"):
        hidden = partial(handlers.mask, mask=False)
        return shared.ready(model, starts, at, changed, hidden, nan_arguments)


def _has_parameters(model: Callable, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether a model without latents has something to learn."""
    trace = handlers.trace(handlers.seed(model, 0))
    with handlers.block():
        return any(site["type"] == "param" for site in trace.get_trace(*args, **kwargs).values())


def _with_a_latent(model: Callable) -> Callable:
    """The model beside a standard normal latent, on which nothing depends."""

    def with_a_latent(*args: Any, **kwargs: Any) -> Any:
        numpyro.sample(NO_LATENTS, dist.Normal(0.0, 1.0))
        return model(*args, **kwargs)

    return with_a_latent


def _holds_nan(tree: Any) -> bool:
    return any(
        np.issubdtype(np.asarray(leaf).dtype, np.floating) and bool(np.isnan(leaf).any())
        for leaf in jax.tree.leaves(tree)
        if isinstance(leaf, (jax.Array, np.ndarray, float))
        and getattr(leaf, "is_fully_addressable", True)
    )
