"""Whether the two PPLs' models are one: their log densities at draws of NumPyro's prior."""

from __future__ import annotations

import argparse
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer.util import log_density

from .models import Entry, chosen
from .models.ppl import Ppl
from .rows import in_words
from .runs import precision
from .target import Target


def check(args: argparse.Namespace) -> None:
    """The command."""
    for entry in chosen(args.models, args.which):
        try:
            with precision("pyro", "float64"):
                pairs = [log_densities(entry, seed) for seed in range(3)]
        except Exception as error:  # noqa: BLE001  the next one may be right
            print(f"{entry.name:34s} {in_words(error)}")
            continue
        furthest = max(abs(a - b) / (1 + abs(a)) for a, b in pairs)
        print(f"{entry.name:34s} {'agree' if furthest < 1e-6 else f'DIFFER: {pairs}'}")


def log_densities(entry: Entry, seed: int) -> tuple[float, float]:
    """NumPyro's and Pyro's, of all data, at one draw; for floats in double precision."""
    if entry.enumerated:
        return _unconstrained(entry, seed)
    ppl = Ppl("numpyro")
    model, args = entry.model(ppl, full=True), entry.args(ppl)
    trace = handlers.trace(handlers.seed(model, rng_seed=seed)).get_trace(*args)
    sites = {
        name: site["value"]
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    }
    ours = log_density(model, args, {}, {**sites, **_params(trace)})[0]
    return float(ours), _of_pyro(entry, {name: np.array(v) for name, v in sites.items()})


def _params(trace: dict[str, Any]) -> dict[str, Any]:
    return {name: site["value"] for name, site in trace.items() if site["type"] == "param"}


def _of_pyro(entry: Entry, sites: dict[str, np.ndarray]) -> float:
    import pyro
    from pyro import poutine

    ppl = Ppl("pyro")
    pyro.clear_param_store()
    values = {name: ppl.np.as_tensor(value) for name, value in sites.items()}
    model = poutine.condition(entry.model(ppl, full=True), values)
    return float(poutine.trace(model).get_trace(*entry.args(ppl)).log_prob_sum())


def _unconstrained(entry: Entry, seed: int) -> tuple[float, float]:
    """With sums over discrete latents."""
    from pyro.infer.mcmc.util import initialize_model

    target, ppl = Target(entry), Ppl("pyro")
    flat = 0.5 * np.random.default_rng(seed).normal(size=target.dim)
    values, start = {}, 0
    for name, shape in target.shapes.items():
        size = int(np.prod(shape))
        values[name] = ppl.array(flat[start : start + size].reshape(shape))
        start += size
    potential = initialize_model(
        entry.model(ppl, full=True), entry.args(ppl), max_plate_nesting=1, skip_jit_warnings=True
    )[1]
    return float(target.log_prob(jnp.asarray(flat), {})), -float(potential(values))
