"""Moments of a log density under ``q``, as far as a family needs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

#: ``density(theta, context)``: the log density at ``theta``, shape ``(d,)``; the context is
#: whatever else belongs to a draw, a pytree.
Density = Callable[[jax.Array, Any], jax.Array]


class Moments(NamedTuple):
    """Averages over the draws that were finite."""

    gradient: jax.Array  #: ``E[grad l]``, shape ``(d,)``
    hessian: Any  #: ``E[hess l]``, as the family assembles it
    kept: jax.Array  #: which draws count, booleans of shape ``(G,)``
    values: jax.Array  #: of the log density at the first draws, shape ``(K,)``


def average(at_draws: tuple, density: Density, draws: jax.Array, context: Any) -> Moments:
    """Averages over the draws all of whose numbers are finite; NaN if there are none.

    A gradient costs as much as one of a Hessian's many products, and most of the noise is the
    gradient's: it is averaged over more draws than the Hessian.

    :param at_draws: value ``(K,)``, gradient ``(K, d)`` and Hessian (a pytree of arrays with a
        leading axis of length ``K``) at the first ``K`` draws.
    :param density: gives values and gradients at the other draws.
    :param draws: all of them, shape ``(G, d)``.
    :param context: of each draw, a pytree with leading axes of length ``G``.
    """
    values, gradients, hessians = at_draws
    kept = finite_draws((values, gradients, hessians))
    hessian = jax.tree.map(lambda h: masked_mean(h, kept), hessians)
    if len(draws) > len(kept):
        rest = jax.tree.map(lambda leaf: leaf[len(kept) :], (draws, context))
        of_rest = jax.vmap(jax.value_and_grad(density))(*rest)
        gradients = jnp.concatenate([gradients, of_rest[1]])
        kept = jnp.concatenate([kept, finite_draws(of_rest)])
    return Moments(masked_mean(gradients, kept), hessian, kept, values)


def first_draws(count: int, draws: jax.Array, context: Any) -> tuple[jax.Array, Any]:
    """The draws, with their contexts, at which Hessians are taken."""
    return jax.tree.map(lambda leaf: leaf[:count], (draws, context))


def finite_draws(tree: Any) -> jax.Array:
    """For each index of the leading axis, whether everything is finite."""
    # One sum per draw, not one comparison per entry: NaN and infinities survive addition.
    sums = [jnp.sum(leaf.reshape(leaf.shape[0], -1) * 0, -1) for leaf in jax.tree.leaves(tree)]
    return jnp.isfinite(sum(sums))


def masked_mean(values: jax.Array, kept: jax.Array) -> jax.Array:
    """The mean over the leading axis of what is kept; NaN if nothing is."""
    mask = kept.reshape(-1, *[1] * (values.ndim - 1))
    return jnp.sum(jnp.where(mask, values, 0), 0) / jnp.sum(kept).astype(values.dtype)


def over_draws(function: Callable, arguments: Any, num_products: int) -> Any:
    """``function`` of every draw, all at once where that is cheap, else one after another.

    :param function: of one draw's arguments.
    :param arguments: a pytree of arrays with a leading axis of draws.
    :param num_products: how many Hessian-vector products a draw takes.
    """
    if num_products <= MAX_BATCHED_PRODUCTS:
        return jax.vmap(function)(arguments)
    return jax.lax.map(function, arguments)


#: Draws are batched only up to this many Hessian-vector products each: beyond, a single draw
#: keeps the processor busy, and memory is what runs out.
MAX_BATCHED_PRODUCTS = 128
