"""Gradients, and averages over the draws that are finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ngvi.estimators.from_gradients import Gradients
from ngvi.estimators.points import Arrays, Families, PointsBySite

#: ``density(latents, params, key)``: the log density at one draw, a scalar. ``params`` is a
#: pytree of whatever else is to be differentiated, the key is that of the guide's other draws.
Density = Callable[[Arrays, Any, jax.Array], jax.Array]


class Draws(NamedTuple):
    """Values and gradients at draws, which estimators can be given as what evaluates them."""

    values: jax.Array  #: Values of shape ``(N,)``.
    by_site: Arrays  #: Gradients of shapes ``(N, d)``.
    params: Any  #: Gradients with a leading axis of ``N``.

    label = staticmethod(jax.named_scope)

    def __call__(self, here: Families, points: PointsBySite) -> Gradients:
        kept, weights = finite_draws((self.values, self.by_site)), points.weights
        by_site = {site: weights[:, None] * slopes for site, slopes in self.by_site.items()}
        params = jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, 1), self.params)
        return Gradients(self.values, by_site, kept, params)


def gradients(
    density: Density, latents: Arrays, params: Any, keys: jax.Array, at_once: int
) -> Draws:
    """Values and gradients of the log density, of all sites in one pass."""

    def at(argument: Any) -> Draws:
        value, (of_latents, of_params) = jax.value_and_grad(density, (0, 1))(
            argument[0], params, argument[1]
        )
        return Draws(value, of_latents, of_params)

    return in_passes(at, (latents, keys), at_once)


def in_passes(function: Callable, arguments: Any, at_once: int) -> Any:
    """Apply a function to every draw, this many at once, in one program.

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
    """Tell for each index of the leading axis whether everything is finite."""
    # One sum per draw, not one comparison per entry: NaN and infinities survive addition.
    sums = [jnp.sum(leaf.reshape(leaf.shape[0], -1) * 0, -1) for leaf in jax.tree.leaves(tree)]
    return jnp.isfinite(sum(sums))


def dot(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    """Multiply a matrix and a vector, on any device as precisely as their numbers are."""
    return jnp.matmul(matrix, vector, precision=jax.lax.Precision.HIGHEST)


def masked_mean(values: jax.Array, kept: jax.Array, weights: jax.Array | float = 1.0) -> jax.Array:
    """Return the weighted mean over the leading axis of what is kept; NaN if nothing is."""
    weights = jnp.where(kept, weights, 0).astype(values.dtype)
    if values.ndim == 1:  # two sums, as one product
        values = jnp.where(kept, values, 0)
        total, whole = dot(jnp.stack([values, jnp.ones_like(values)]), weights)
        return total / whole
    shape = (-1, *[1] * (values.ndim - 1))
    total = jnp.sum(jnp.where(kept.reshape(shape), weights.reshape(shape) * values, 0), 0)
    return total / jnp.sum(weights)
