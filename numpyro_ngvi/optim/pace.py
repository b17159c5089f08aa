"""How far a first-order step goes, and how large it is: numbers that need no tuning.

Each natural gradient ``n`` of the bound enters the momentum with its own step size: ``rho`` at
most, and so that neither the mean nor the scale moves by more than a limit in Fisher length
(half its square is the KL divergence), whatever the size of ``n``. Three numbers adapt to the
cosine, in the Fisher metric, between a fresh natural gradient and the last change of ``q``:

- The *limit* of the mean becomes twice a step's length while the smoothed cosine is large (the
  step could have been longer), and 0.3 of it when the fresh cosine is clearly negative. That of
  the scale is the same, but never above :data:`INITIAL_LIMIT`: one draw says little about a
  covariance, and larger steps in noise make ``q`` collapse.
- ``rho = 1 / u``, where ``u`` grows by :data:`DECREASE` when the smoothed cosine is negative and
  falls by a fifth when it is clearly positive (Kesten, 1958, *Accelerated stochastic
  approximation*). Near the optimum the natural gradient is about the distance to it, so that
  ``rho`` of order ``1 / t`` averages noise as it should.

The gradients are clipped, not normalised: the mean of normalised gradients vanishes elsewhere
than the bound's gradient if noise is skewed, and as ``rho`` decreases nothing is clipped any more.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

#: The first limit of a step, in Fisher length, and the largest of the scale.
INITIAL_LIMIT = 0.2
SMALLEST_LIMIT = 0.1 * INITIAL_LIMIT
GROWTH = 2.0
SHRINKAGE = 0.3
DECREASE = 0.5
RECOVERY = 0.8
SMOOTHING = 0.9
#: Smoothed cosines above which the limit and ``rho`` grow; the cosine that shrinks the limit.
LIMIT_GROWS = 0.5
RATE_GROWS = 0.3
LIMIT_SHRINKS = -0.3


class Pace(NamedTuple):
    """What the rule remembers."""

    limit: jax.Array  #: of the Fisher length of a step's mean
    slowness: jax.Array  #: ``1 / rho``
    agreement: jax.Array  #: smoothed cosine, before bias correction
    length: jax.Array  #: Fisher length of the last step


def start(dtype: jnp.dtype) -> Pace:
    """Before the first step."""
    zero = jnp.zeros((), dtype)
    return Pace(zero + INITIAL_LIMIT, zero + 1.0, zero, zero)


def judge(pace: Pace, slope: jax.Array, norm: jax.Array, count: jax.Array) -> Pace:
    """The new numbers, after looking at the end of the last step.

    :param slope: Fisher product of the fresh natural gradient and the last change.
    :param norm: Fisher length of the fresh natural gradient.
    :param count: the number of steps taken so far.
    """
    known = (pace.length > 0) & (norm > 0)
    cosine = jnp.where(known, slope / jnp.where(known, norm * pace.length, 1.0), 0.0)
    cosine = jnp.clip(cosine, -1.0, 1.0)
    agreement = SMOOTHING * pace.agreement + (1 - SMOOTHING) * cosine
    seen = jnp.maximum(count, 1).astype(agreement.dtype)
    smoothed = agreement / (1 - SMOOTHING**seen)
    limit = jnp.where(
        smoothed > LIMIT_GROWS,
        jnp.maximum(pace.limit, GROWTH * pace.length),
        jnp.where(
            cosine < LIMIT_SHRINKS,
            jnp.maximum(SHRINKAGE * pace.length, SMALLEST_LIMIT),
            pace.limit,
        ),
    )
    slowness = jnp.where(smoothed > RATE_GROWS, RECOVERY, 1.0) * pace.slowness
    slowness = slowness + jnp.where(smoothed < 0, DECREASE, 0.0)
    return Pace(limit, jnp.maximum(slowness, 1.0), agreement, pace.length)


def shortened(pace: Pace) -> Pace:
    """After a step that led to where nothing is finite: a tenth of its length."""
    length = jnp.where(pace.length > 0, pace.length, pace.limit)
    limit = jnp.minimum(pace.limit, jnp.maximum(0.1 * length, SMALLEST_LIMIT))
    return pace._replace(limit=limit, length=jnp.zeros_like(length))


def length(products: jax.Array, *amounts: jax.Array | float) -> jax.Array:
    """The Fisher length of a sum of directions, each times its amount.

    :param products: the directions' inner products, shape ``(k, k)``.
    """
    pairs = [(i, j) for i in range(len(amounts)) for j in range(len(amounts))]
    sizes = [(amounts[i] * amounts[j], products[i][j]) for i, j in pairs]
    # No amount of what has overflowed is nothing.
    square = sum(jnp.where(size == 0, 0.0, size * product) for size, product in sizes)
    return jnp.sqrt(jnp.maximum(square, 0.0))


def within(largest: jax.Array, limit: jax.Array, length: jax.Array) -> jax.Array:
    """The factor, ``largest`` at most, that keeps ``length`` within the limit."""
    tiny = jnp.finfo(length.dtype).tiny
    return jnp.minimum(largest, limit / jnp.maximum(length, tiny))
