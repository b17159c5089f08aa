"""Plates of which a model sees a part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from numpyro import handlers
from numpyro.infer.initialization import init_to_uniform

from numpyro_ngvi.families.base import Family
from numpyro_ngvi.tracing.arguments import Arguments


def subsampled_plates(
    model: Callable, params: dict[str, Any], args: tuple, kwargs: dict
) -> list[tuple[str, int, int]]:
    """The name of each such plate, its size, and how many of its rows a run sees.

    :param params: of the model, among others.
    """
    found: list[tuple[str, int, int]] = []
    arguments = Arguments(args, kwargs)

    def run(arrays: list) -> None:
        args, kwargs = arguments.rebuilt(arrays)
        values = {name: value for name, value in params.items() if not isinstance(value, Family)}
        started = handlers.substitute(handlers.seed(model, rng_seed=0), data=values)
        # Improper priors cannot be sampled, but their supports have points.
        started = handlers.substitute(started, substitute_fn=init_to_uniform)
        with handlers.block():
            trace = handlers.trace(started).get_trace(*args, **kwargs)
        for name, site in trace.items():
            if site["type"] == "plate":
                size, subsample_size = site["args"]
                if subsample_size is not None and subsample_size < size:
                    found.append((name, size, subsample_size))

    try:
        jax.eval_shape(run, arguments.arrays)
    except Exception:  # noqa: BLE001  the model does with an array what cannot be traced
        arguments.hold_constant()
        found.clear()
        jax.eval_shape(run, [])
    return found
