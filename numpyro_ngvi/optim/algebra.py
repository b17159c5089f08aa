"""What the rules of :mod:`ngvi.optim` compute with: numbers are arrays, so that they compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ngvi.families import direction
from ngvi.families.direction import *  # noqa: F403
from ngvi.families.direction import Families
from ngvi.optim.trust_region import Search
from numpyro_ngvi.linalg.matrices import matrices

Schedule = Callable[[jax.Array], jax.Array]

where, minimum, maximum, sqrt, hypot = jnp.where, jnp.minimum, jnp.maximum, jnp.sqrt, jnp.hypot
keep_off_zero, with_diagonal = matrices.keep_off_zero, matrices.with_diagonal
copysign, diagonal, norm = jnp.copysign, jnp.diagonal, jnp.linalg.norm
concatenate, scan, product_rows = jnp.concatenate, jax.lax.scan, direction.products


class PartRates(NamedTuple):
    """Step sizes of means and of scales."""

    mean: float | Schedule
    scale: float | Schedule | None  #: None for that of the mean, times what the family says


def rate(step_size: float | Schedule, count: jax.Array) -> jax.Array | float:
    """A constant step size, or the value of an optax schedule."""
    return step_size(count) if callable(step_size) else step_size


def kept(numbers: tuple, like: Families) -> jax.Array:
    """One array, which leaves a program sooner than several numbers."""
    return jnp.asarray(numbers, like[0].loc.dtype)


def cast(number: jax.Array | float, like: Families) -> jax.Array:
    """Of the families' dtype, whatever a schedule or ``count`` made it."""
    return jnp.asarray(number, like[0].loc.dtype)


def number(value: jax.Array) -> jax.Array:
    """The array itself."""
    return value


def numbers(*values: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays themselves."""
    return values


def eps(like: jax.Array) -> float:
    """The unit of precision of its dtype."""
    return float(jnp.finfo(like.dtype).eps)


def split(vector: jax.Array, sizes: list[int]) -> list[jax.Array]:
    """The vector cut into pieces."""
    return jnp.split(vector, np.cumsum(sizes)[:-1])


def no_rows(most: int, like: jax.Array) -> jax.Array:
    """Rows of zeros, for they cannot become more."""
    return jnp.zeros((most, *like.shape), like.dtype)


def with_row(use: jax.Array, blocks: tuple, rows: tuple, most: int) -> list[jax.Array]:
    """Every block with one more row at its end, if ``use`` says so."""
    return [
        jnp.where(use, jnp.concatenate([block[1:], row[None]]), block)
        for block, row in zip(blocks, rows, strict=True)
    ]


def repeated(
    advance: Callable[[Search], Search],
    settled: Callable[[Search], jax.Array],
    search: Search,
    path: Any,
) -> Search:
    """The search, advanced until it is settled."""
    shapes = jax.eval_shape(path.at, search.rho)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    search = search._replace(count=jnp.asarray(0), attempt=nothing)
    return jax.lax.while_loop(lambda state: ~settled(state), advance, search)


def at_rates(
    rates: float | Schedule | PartRates,
    vectors: Families,
    factor: jax.Array | float,
    count: jax.Array,
) -> Families:
    """Every coordinate times its rate, the value of a schedule, and a factor."""
    if not isinstance(rates, PartRates):
        return direction.scale(factor * rate(rates, count), vectors)
    of_mean, steps = factor * rate(rates.mean, count), []
    for one in vectors:
        if rates.scale is None:
            of_scale = one.relative_scale_step * of_mean
        else:
            of_scale = factor * rate(rates.scale, count)
        steps += direction.scale_parts(of_mean, of_scale, [one])
    return steps
