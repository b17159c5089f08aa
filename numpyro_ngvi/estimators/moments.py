"""What an estimator is given, what it returns, and averages over the draws that are finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ngvi.estimators.points import Arrays, Families
from ngvi.families.curvature import GroupSpread

#: ``density(latents, params, key)``: the log density at one draw, a scalar. ``params`` is a
#: pytree of whatever else is to be differentiated, the key is that of the guide's other draws.
Density = Callable[[Arrays, Any, jax.Array], jax.Array]


class Averages(NamedTuple):
    """Averages over the draws all of whose numbers are finite; NaN if there are none."""

    directions: Families  #: the natural gradients of the bound
    values: jax.Array  #: of the log density at the first draws, shape ``(M,)``
    kept: jax.Array  #: which draws count, booleans of shape ``(N,)``
    params: Any  #: the mean gradient for ``params``
    spread: GroupSpread | None = None  #: of groups of points, all families together


class Gradients(NamedTuple):
    """Values and gradients at draws."""

    values: jax.Array  #: shape ``(N,)``
    by_site: Arrays  #: shapes ``(N, d)``
    params: Any  #: a leading axis of ``N``


def gradients(
    density: Density, latents: Arrays, params: Any, keys: jax.Array, at_once: int
) -> Gradients:
    """Values and gradients of the log density, of all sites in one pass."""

    def at(argument: Any) -> Gradients:
        value, (of_latents, of_params) = jax.value_and_grad(density, (0, 1))(
            argument[0], params, argument[1]
        )
        return Gradients(value, of_latents, of_params)

    return in_passes(at, (latents, keys), at_once)


def in_passes(function: Callable, arguments: Any, at_once: int) -> Any:
    """``function`` of every draw, so many at once, in one program.

    :param function: of one draw's arguments.
    :param arguments: a pytree of arrays with a leading axis of draws.
    """
    count = len(jax.tree.leaves(arguments)[0])
    if count <= at_once:
        return jax.vmap(function)(arguments)
    passes = -(-count // at_once)
    size = -(-count // passes)
    # A shorter last pass would be compiled once more: the last draw fills it up.
    index = jnp.minimum(jnp.arange(passes * size), count - 1).reshape(passes, size)
    results = jax.lax.map(lambda some: jax.vmap(function)(_take(arguments, some)), index)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], results)


def _take(tree: Any, index: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def finite_draws(tree: Any) -> jax.Array:
    """For each index of the leading axis, whether everything is finite."""
    # One sum per draw, not one comparison per entry: NaN and infinities survive addition.
    sums = [jnp.sum(leaf.reshape(leaf.shape[0], -1) * 0, -1) for leaf in jax.tree.leaves(tree)]
    return jnp.isfinite(sum(sums))


def dot(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """Their product, on any device as precise as the numbers."""
    return jnp.matmul(matrix, vector, precision=jax.lax.Precision.HIGHEST)


def masked_mean(values: jax.Array, kept: jax.Array, weights: jax.Array | float = 1.0) -> jax.Array:
    """The weighted mean over the leading axis of what is kept; NaN if nothing is."""
    weights = jnp.where(kept, weights, 0).astype(values.dtype)
    if values.ndim == 1:  # two sums, as one product
        values = jnp.where(kept, values, 0)
        total, whole = dot(jnp.stack([values, jnp.ones_like(values)]), weights)
        return total / whole
    shape = (-1, *[1] * (values.ndim - 1))
    total = jnp.sum(jnp.where(kept.reshape(shape), weights.reshape(shape) * values, 0), 0)
    return total / jnp.sum(weights)
