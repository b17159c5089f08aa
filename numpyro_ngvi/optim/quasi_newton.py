"""What the precision of a restricted family does not know of the curvature.

The mean's natural step is ``S^-1 g``. For a dense family ``S`` tends to the curvature, and the
step to Newton's. The precision of a mean field leaves correlations out: then the step is Jacobi's,
slow where latents are correlated. A limited memory of what steps of the mean did to ``g`` supplies
the missing curvature (Nocedal, 1980, *Updating quasi-Newton matrices with limited storage*), with
``S^-1`` as the metric that it corrects. Where the optimum is does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ngvi.two_loop import Pairs, two_loop

#: Pairs of means that are kept, if there is room: no more than this many numbers. They are many,
#: because all that a mean field knows of correlations is in them, and each costs two means.
MAX_MEAN_PAIRS = 50
MAX_MEAN_NUMBERS = 2_000_000


class Memory(NamedTuple):
    """Steps of the mean and the falls of ``g`` along them, the newest last."""

    steps: jax.Array  #: shape ``(M, n)``; unused rows are zero
    falls: jax.Array  #: shape ``(M, n)``
    gradient: jax.Array  #: the last ``g``, shape ``(n,)``


def empty(loc: jax.Array) -> Memory:
    """No pairs yet, for means of this shape."""
    rows = max(1, min(MAX_MEAN_PAIRS, MAX_MEAN_NUMBERS // max(1, loc.size)))
    pairs = jnp.zeros((rows, *loc.shape), loc.dtype)
    return Memory(pairs, pairs, jnp.zeros_like(loc))


def remember(memory: Memory, step: jax.Array, gradient: jax.Array) -> Memory:
    """The memory after a step of the mean that ended at ``gradient``.

    A pair without positive curvature says nothing that a metric could hold, and is left out.
    So are coordinates without a gradient at one end, latents that a minibatch does not visit.
    """
    known = (memory.gradient != 0) & (gradient != 0)
    step = jnp.where(known, step, 0.0)
    fall = jnp.where(known, memory.gradient - gradient, 0.0)
    curvature = step @ fall
    tiny = jnp.finfo(step.dtype).eps * jnp.linalg.norm(step) * jnp.linalg.norm(fall)
    use = jnp.isfinite(curvature) & (curvature > tiny)
    steps = jnp.where(use, jnp.concatenate([memory.steps[1:], step[None]]), memory.steps)
    falls = jnp.where(use, jnp.concatenate([memory.falls[1:], fall[None]]), memory.falls)
    return Memory(steps, falls, gradient)


def corrected(
    memory: Memory, gradient: jax.Array, metric: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """A quasi-Newton step of the mean from ``gradient``.

    Coordinates without a gradient, latents that a minibatch does not visit, stay.

    :param metric: ``S^-1`` times a vector.
    """
    steps, falls = memory.steps, memory.falls
    products = jnp.sum(steps * falls, -1)
    weights = jnp.where(products > 0, 1.0 / jnp.where(products > 0, products, 1.0), 0.0)
    result = two_loop(Pairs(steps, falls, steps, falls, weights), gradient, metric, jax.lax.scan)
    return jnp.where(gradient != 0, result, 0.0)
