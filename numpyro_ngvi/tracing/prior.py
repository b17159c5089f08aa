"""Draws of a model's latents before it has seen data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.distributions.transforms import biject_to
from numpyro.infer.initialization import init_to_uniform


def draws_of_prior(
    model: Callable,
    sites: Sequence[str],
    params: dict[str, Any],
    args: tuple,
    kwargs: dict,
    rng_key: jax.Array,
    count: int,
) -> jax.Array:
    """Draw latents, unconstrained, shape ``(count, d)``; somewhere where a prior is improper.

    :param sites: the latents, in the order of the vector.
    """

    def one(key: jax.Array) -> jax.Array:
        seeded = handlers.substitute(handlers.seed(model, key), data=params)
        with handlers.block():
            trace = handlers.trace(handlers.substitute(seeded, substitute_fn=_anywhere)).get_trace(
                *args, **kwargs
            )
        found = [(trace[name]["fn"], trace[name]["value"]) for name in sites]
        return jnp.concatenate([jnp.ravel(biject_to(fn.support).inv(x)) for fn, x in found])

    return jax.vmap(one)(random.split(rng_key, count))


def _anywhere(site: dict[str, Any]) -> jax.Array | None:
    """Return a point for sites whose prior is improper, and cannot be sampled."""
    if site["type"] == "sample" and not site["is_observed"]:
        fn = site["fn"]
        while hasattr(fn, "base_dist"):
            fn = fn.base_dist
        if isinstance(fn, dist.ImproperUniform):
            return init_to_uniform(site)
    return None
