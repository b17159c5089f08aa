"""Draws of a model's latents before it has seen data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions.transforms import biject_to
from numpyro.infer.initialization import init_to_uniform

from ngvi.errors import outside_of_domains

#: Draws of a prior that are made at once.
AT_ONCE = 25


def draws_of_prior(
    model: Callable, run: tuple, sites: Sequence[str], params: dict[str, Any], keys: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Draw latents, unconstrained, shape ``(N, d)``; somewhere where a prior is improper.

    :param run: the model's arguments.
    :param sites: the latents, in the order of the vector.
    :param keys: of the draws, ``N`` of them.
    :return: beside them, which parameters of distributions are outside of their domain, at which
        part of the draws.
    """

    def one(key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        seeded = handlers.substitute(handlers.seed(model, key), data=params)
        with handlers.block():
            started = handlers.trace(handlers.substitute(seeded, substitute_fn=_anywhere))
            trace = started.get_trace(*run[0], **run[1])
        outside: dict[str, jax.Array] = {}
        for name, site in trace.items():
            if site["type"] == "sample":
                outside |= outside_of_domains(name, site["fn"], jnp)
        found = [(trace[name]["fn"], trace[name]["value"]) for name in sites]
        parts = [jnp.ravel(biject_to(fn.support).inv(x)) for fn, x in found]
        return jnp.concatenate([jnp.zeros(0), *parts]), outside

    # Few at once: parameters of many rows take memory.
    draws, outside = jax.lax.map(one, keys, batch_size=AT_ONCE)
    return draws, jax.tree.map(jnp.mean, outside)


def _anywhere(site: dict[str, Any]) -> jax.Array | None:
    """Return a point for sites whose prior is improper, and cannot be sampled."""
    if site["type"] == "sample" and not site["is_observed"]:
        fn = site["fn"]
        while hasattr(fn, "base_dist"):
            fn = fn.base_dist
        if isinstance(fn, dist.ImproperUniform):
            return init_to_uniform(site)
    return None
