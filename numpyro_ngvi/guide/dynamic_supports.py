"""Supports that depend on other latents; see :mod:`ngvi.latents.dynamic_supports`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpyro import handlers
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.transforms import biject_to
from numpyro.infer.initialization import init_to_uniform
from numpyro.ops.provenance import eval_provenance


def dynamic_sites(model: Callable, trace: dict[str, Any], args: tuple, kwargs: dict) -> list[str]:
    """Find the latents whose supports depend on other latents or on parameters; mostly none.

    :raises ValueError: for such a site in a ``scan``, with the way out.
    """
    latents = {n: s for n, s in trace.items() if s["type"] == "sample" and not s["is_observed"]}
    bounds = jax.tree.leaves([site["fn"].support for site in latents.values()])
    if all(isinstance(bound, (int, float, np.ndarray)) for bound in bounds):
        return []
    values = {n: s["value"] for n, s in trace.items() if n in latents or s["type"] == "param"}

    def supports(**values: jax.Array) -> dict[str, list]:
        seeded = handlers.seed(handlers.substitute(model, data=values), rng_seed=0)
        with handlers.block():
            run = handlers.trace(seeded).get_trace(*args, **kwargs)
        return {name: jax.tree.leaves(run[name]["fn"].support) for name in latents}

    found = eval_provenance(supports, **values)
    names = [name for name, origins in found.items() if any(origins)]
    in_scan = [name for name in names if "_scan_current_index" in trace[name]["infer"]]
    if in_scan:
        # What a scan gives seems to depend on all that it takes: do the bounds differ elsewhere?
        here, there = (_supports_at(model, seed, args, kwargs, in_scan) for seed in (0, 1))
    for name in in_scan:
        pairs = zip(here[name], there[name], strict=True)
        if any(not np.array_equal(one, other) for one, other in pairs):
            raise ValueError(
                f"The support of latent site '{name}' depends on other latents, inside a scan. "
                "Draw it from a fixed support, Uniform(0, 1) say, and scale and shift it."
            )
    return [name for name in names if name not in in_scan]


def _supports_at(
    model: Callable, seed: int, args: tuple, kwargs: dict, names: list[str]
) -> dict[str, list]:
    """Return the bounds of these sites in a run from a random point."""
    started = handlers.substitute(handlers.seed(model, seed), substitute_fn=init_to_uniform)
    with handlers.block():
        run = handlers.trace(started).get_trace(*args, **kwargs)
    return {name: jax.tree.leaves(run[name]["fn"].support) for name in names}


def running_supports(
    model: Callable, run: tuple, trace: dict[str, Any], names: list[str], values: dict
) -> dict[str, Constraint]:
    """Return the supports of these sites in a run of the model.

    :param run: its arguments.
    :param trace: of the model, with the supports of the other sites.
    :param values: unconstrained, by site.
    """
    found: dict[str, Constraint] = {}
    constrained = {
        name: biject_to(trace[name]["fn"].support)(value)
        for name, value in values.items()
        if name not in names
    }

    def substituted(site: dict[str, Any]) -> jax.Array | None:
        if site["type"] == "sample" and site["name"] in names:
            found[site["name"]] = site["fn"].support
            return biject_to(found[site["name"]])(values[site["name"]])
        return constrained.get(site["name"]) if site["type"] == "sample" else None

    seeded = handlers.seed(handlers.substitute(model, substitute_fn=substituted), rng_seed=0)
    # Parameters, on which a support may depend, are those of the run around.
    with handlers.block(hide_fn=lambda site: site["type"] != "param"):
        seeded(*run[0], **run[1])
    return found
