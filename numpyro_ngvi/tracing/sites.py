"""Kinds of sample sites."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from numpyro import handlers
from numpyro.infer.initialization import init_to_uniform

from numpyro_ngvi.tracing.arguments import as_jax


def is_enumerated(site: dict[str, Any]) -> bool:
    """Tell whether a site is a discrete latent that the ELBO will sum out."""
    return (
        site["type"] == "sample"
        and not site["is_observed"]
        and site["infer"].get("enumerate") is not None
        and site["fn"].support.is_discrete
    )


def scale_of(site: dict[str, Any]) -> float | None:
    """Return how many times a site counts, by plates and ``handlers.scale``; None if no number."""
    scale = 1.0 if site["scale"] is None else site["scale"]
    return float(scale) if isinstance(scale, (int, float)) else None


def abstract_trace(
    model: Callable, args: tuple, kwargs: dict, params: dict[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the sites of a run in which values are shapes.

    :param params: values of the model's parameters, if it cannot find them.
    """
    found: dict[str, dict[str, Any]] = {}

    def run(args: tuple, kwargs: dict) -> None:
        started = handlers.substitute(handlers.seed(model, rng_seed=0), data=params or {})
        # Improper priors cannot be sampled, but their supports have points.
        started = handlers.substitute(started, substitute_fn=init_to_uniform)
        with handlers.block():
            found.update(handlers.trace(started).get_trace(*args, **kwargs))

    with jax.ensure_compile_time_eval():  # a model may look at the values of its data
        run_in_jax = partial(run, *as_jax((args, kwargs)))
    try:
        jax.eval_shape(run_in_jax)
    except (TypeError, IndexError):  # the model takes plain numbers of its data, which numpy gives
        jax.eval_shape(partial(run, args, kwargs))
    return found


def subsampled_plates(
    model: Callable, params: dict[str, Any], args: tuple, kwargs: dict
) -> list[tuple[str, int, int]]:
    """Return the name of each plate of which a run sees a part, its size, and that of the part."""
    trace = abstract_trace(model, args, kwargs, params)
    plates = [(name, *site["args"]) for name, site in trace.items() if site["type"] == "plate"]
    return [plate for plate in plates if plate[2] is not None and plate[2] < plate[1]]
