"""Strategies of a robust start; see :mod:`ngvi.guide.robust_init`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from numpyro.distributions import constraints
from numpyro.infer.initialization import init_to_mean, init_to_median

from ngvi.guide.robust_init import ROBUST_INIT


def _medians_of_many(site: dict[str, Any]) -> jax.Array | None:
    """``init_to_median``, of many draws, which is hardly random."""
    if site["type"] != "sample":
        return None
    num_samples = ROBUST_INIT.num_samples_for(math.prod(site["fn"].shape()))
    return init_to_median(site, num_samples=num_samples)


def _means(site: dict[str, Any]) -> jax.Array | None:
    """Means of priors on all reals, where they are finite, and medians of many draws of others."""
    median = _medians_of_many(site)
    if median is None:
        return None
    support = site["fn"].support
    if getattr(support, "base_constraint", support) is not constraints.real:
        return median
    mean = init_to_mean(site)
    return jnp.where(jnp.isfinite(mean), mean, median)


def strategies_of(init_loc_fn: Callable) -> tuple[Callable, ...]:
    """Return the user's strategy, or those to be tried one after the other."""
    if init_loc_fn is not init_to_median:
        return (init_loc_fn,)
    return init_to_median, _medians_of_many, _means


def density_around(density: Callable, locs: dict, *scales: float) -> jax.Array:
    """Return the log density at draws about a start, shape ``(scales, draws)``.

    :param locs: the start, unconstrained, by site in the order of the latent vector.
    """
    names = [*locs]  # a dictionary would be packed in alphabetical order
    start, unpack = ravel_pytree([locs[name] for name in names])
    directions = jnp.asarray(ROBUST_INIT.directions(start.size), start.dtype)
    if not directions.size:
        return jnp.zeros((len(scales), 0))
    steps = jnp.asarray(scales, start.dtype)[:, None, None] * directions

    def at(step: jax.Array) -> jax.Array:
        return density(dict(zip(names, unpack(start + step), strict=True)))

    # One after the other: the model need not be one that can be run for many at a time.
    return jax.lax.map(at, steps.reshape(-1, start.size)).reshape(len(scales), -1)
