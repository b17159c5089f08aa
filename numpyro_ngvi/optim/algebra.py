"""What the rules of :mod:`ngvi.optim` compute with: numbers are arrays, so that they compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_ngvi.families import direction
from numpyro_ngvi.families.direction import *  # noqa: F403
from numpyro_ngvi.families.direction import Families
from numpyro_ngvi.linalg.triangular import keep_off_zero as keep_off_zero

Schedule = Callable[[jax.Array], jax.Array]

where, minimum, maximum, sqrt, hypot = jnp.where, jnp.minimum, jnp.maximum, jnp.sqrt, jnp.hypot
copysign, diagonal, each = jnp.copysign, jnp.diagonal, jax.tree.map


class PartRates(NamedTuple):
    """Step sizes of means and of scales."""

    mean: float | Schedule
    scale: float | Schedule | None  #: None for that of the mean, times what the family says


def step_size_at(step_size: float | Schedule, count: jax.Array) -> jax.Array | float:
    """A constant step size, or the value of an optax schedule."""
    return step_size(count) if callable(step_size) else step_size


def kept(numbers: tuple, like: Families) -> jax.Array:
    """One array, which leaves a program sooner than several numbers."""
    return jnp.asarray(numbers, like[0].loc.dtype)


def with_diagonal(matrix: jax.Array, diagonal: jax.Array) -> jax.Array:
    """The matrix with another diagonal."""
    return jnp.where(jnp.eye(len(matrix), dtype=bool), diagonal[:, None], matrix)


def at_rates(
    rates: float | Schedule | PartRates,
    vectors: Families,
    factor: jax.Array | float,
    count: jax.Array,
) -> Families:
    """Every coordinate times its rate, the value of a schedule, and a factor."""
    if not isinstance(rates, PartRates):
        return direction.scale(factor * step_size_at(rates, count), vectors)
    of_mean, steps = factor * step_size_at(rates.mean, count), []
    for one in vectors:
        if rates.scale is None:
            of_scale = one.relative_scale_step * of_mean
        else:
            of_scale = factor * step_size_at(rates.scale, count)
        steps += direction.scale_parts(of_mean, of_scale, [one])
    return steps
