"""The density in the coordinates of a fitted Gaussian; see :mod:`ngvi.inference.draws.nuts`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import random

from ngvi.inference.draws.nuts import WhitenedDensity
from numpyro_ngvi.families import Family
from numpyro_ngvi.tracing import LogDensity, latent_site


def whitened_density(
    model: Callable,
    guide: Any,
    family: Family,
    params: dict[str, Any],
    args: tuple,
    kwargs: dict[str, Any],
) -> WhitenedDensity:
    """Return the density of a fit.

    :param family: the guide's, with these parameters.
    """
    density = LogDensity(model, guide, args, kwargs, random.key(0))
    site, log_det = latent_site(guide._parameter_name), family.log_det_scale()

    def theta(z: jax.Array) -> jax.Array:
        return family.sample(z[None])[0]

    def log_density(z: jax.Array) -> jax.Array:
        if jnp.ndim(z) > 1:
            return jax.vmap(log_density)(z)
        return density({site: theta(z)}, params, random.key(0)) + log_det

    def constrain(z: jax.Array) -> dict[str, jax.Array]:
        if jnp.ndim(z) > 1:
            return guide._unpack_and_constrain(family.sample(z), params)
        return guide._unpack_and_constrain(theta(z), params)

    return WhitenedDensity(family.dim, log_density, constrain)
