"""How far one step of the Bayesian learning rule may move ``q``, and how large steps should be.

Two numbers adapt to what the steps did, without further evaluations of the model. Let ``slope``
be the derivative of the bound along the last change of ``q``, at its beginning and at its end.

- The *radius* bounds ``KL(q_new || q_old)``. It grows past a step whose slope is still positive at
  its end (it could have been longer), and falls below the length of one whose slope has turned
  and is larger than before (it went far beyond the optimum): to where a linear slope would vanish,
  at most tenfold.
- The *step size* is ``1 / (1 + DECREASE n)``, where ``n`` counts the steps at whose end the slope
  was negative (Kesten, 1958, *Accelerated stochastic approximation*): far from the optimum steps
  stay whole, and at the optimum, where noise turns the slope every other time, they decrease
  as averaging needs them to. The mean and the precision have a count each, of their parts of the
  slope, because noise reaches the precision first: the mean still has whole steps to take. On a
  long way there are turns that tell of curvature and not of noise: two steps in a row that leave
  between half and all of their slope give two turns back, as noise alone hardly ever does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ngvi.trust_region import GROWTH, INITIAL_RADIUS
from numpyro_ngvi.families import direction
from numpyro_ngvi.families.direction import Families

#: Of the step size, by every turn.
DECREASE = 0.5
#: What part of their slope steps leave that are far too short, and how many turns two give back.
STEADY, GIVEN_BACK = (0.5, 1.0), 2

#: The divergence of ``d`` dimensions is rounded by this many times ``d`` units of precision: a
#: smaller radius could not be told from zero, and would never grow again.
ROUNDING = 10

#: A step that had to be shortened is at least this fraction of the radius, ...
CLOSE = 0.5
#: ... if that many attempts find it; a step that fits is sought for longer.
MAX_REFINEMENTS = 12
MAX_ATTEMPTS = 40
#: One attempt is at least a tenth of the one before; after so many, it may be far less.
PATIENCE = 10


class Progress(NamedTuple):
    """What the rule remembers of its last step."""

    radius: jax.Array  #: largest KL divergence of a step, in nats
    mean_turns: jax.Array  #: steps at whose end the bound was falling with the mean's change
    scale_turns: jax.Array  #: ... and with that of all other coordinates
    slope: jax.Array  #: of the bound at the beginning of the last step; 0 before the first
    ratio: jax.Array  #: of the slopes at the end and at the beginning of the step before
    length: jax.Array  #: KL divergence of the last step, in nats
    change: Families  #: the last step, in coordinates


def start(families: Families) -> Progress:
    """Before the first step."""
    dtype = families[0].loc.dtype
    zero = jnp.zeros((), dtype)
    return Progress(
        radius=jnp.full((), INITIAL_RADIUS, dtype),
        mean_turns=jnp.zeros((), jnp.int32),
        scale_turns=jnp.zeros((), jnp.int32),
        slope=zero,
        ratio=zero,
        length=zero,
        change=jax.tree.map(jnp.zeros_like, families),
    )


def judge(progress: Progress, families: Families, duals: Families) -> Progress:
    """The radius and the numbers of turns, after looking at the end of the last step.

    :param duals: Euclidean gradients of the bound at ``families``.
    """
    slope = direction.dot(duals, progress.change)
    of_mean = direction.dot([d.loc for d in duals], [c.loc for c in progress.change])
    known = progress.slope > 0
    ratio = jnp.where(known, slope / jnp.where(known, progress.slope, 1), 0)
    # A slope that is linear in the step vanishes at 1 / (1 - ratio) of it.
    factor = 1 / (1 - jnp.minimum(ratio, 0.9)) ** 2
    radius = jnp.clip(factor, 1 / GROWTH, GROWTH) * progress.length
    radius = jnp.where(
        ratio < -1,
        jnp.maximum(radius, smallest_radius(families)),
        jnp.where(ratio > 0, jnp.maximum(radius, progress.radius), progress.radius),
    )
    both = jnp.stack([ratio, progress.ratio])
    given_back = GIVEN_BACK * jnp.all((both > STEADY[0]) & (both <= STEADY[1]))

    def counted(turns: jax.Array, slope: jax.Array) -> jax.Array:
        return jnp.maximum(turns + (known & (slope < 0)) - given_back, 0)

    return progress._replace(
        radius=radius,
        mean_turns=counted(progress.mean_turns, of_mean),
        scale_turns=counted(progress.scale_turns, slope - of_mean),
        ratio=ratio,
    )


def smallest_radius(families: Families) -> float:
    """The radius below which none should fall, in nats."""
    dim = sum(family.dim for family in families)
    return ROUNDING * dim * float(jnp.finfo(families[0].loc.dtype).eps)


def step_size(num_turns: jax.Array, decrease: float = DECREASE) -> jax.Array:
    """The step size that decreases with every turn."""
    return 1.0 / (1.0 + decrease * num_turns)


def longest_within(
    radius: jax.Array | float, path: Any, rho: jax.Array
) -> tuple[Any, jax.Array, jax.Array]:
    """The step that goes about as far as a trust region allows.

    The divergence grows with ``rho``, like its square while it is small, faster later, and jumps
    where a correction of the new precision sets in. So ``rho`` falls until an attempt fits, by the
    square root of what is missing within limits that widen, and is then bracketed between that and
    the last that did not, until the divergence is at least ``CLOSE`` times the radius.

    :param radius: the largest ``KL(new || old)``, in nats.
    :param path: a :class:`~ngvi.path.JointPath`, or what has its methods.
    :param rho: the full step.
    :return: the attempt, its divergence and its ``rho``. If the divergence is above the radius, or
        NaN, none was found that fits.
    """

    def unsettled(search: _Search) -> jax.Array:
        fits = search.length <= radius
        enough = (search.length >= CLOSE * radius) | (search.rho >= search.high)
        enough |= search.count > MAX_REFINEMENTS
        settled = (fits & enough) | (search.count > MAX_ATTEMPTS)
        return (search.count == 0) | ~settled

    def narrow(search: _Search) -> _Search:
        fits = search.length <= radius
        low = jnp.where(fits, search.rho, search.low)
        high = jnp.where(fits | (search.count == 0), search.high, search.rho)
        least = 0.1 ** jnp.maximum(1, search.count + 1 - PATIENCE).astype(dtype)
        # Far from a fit the divergence may grow like log rho: then its size is to be found first.
        most = jnp.where(search.count <= PATIENCE, 0.8, 0.1).astype(dtype)
        ratio = jnp.where(jnp.isfinite(search.length), jnp.sqrt(radius / search.length), least)
        shorter = high * jnp.clip(ratio, jnp.minimum(least, most), most)
        # What fits on one side of a jump will do.
        between = jnp.where(search.count < MAX_REFINEMENTS, jnp.sqrt(low) * jnp.sqrt(high), low)
        rho = jnp.where(low > 0, between, shorter)
        rho = jnp.where(search.count == 0, search.rho, rho)
        attempt = path.at(rho)
        return _Search(search.count + 1, rho, low, high, attempt, path.kl(attempt))

    # The full step is the loop's first attempt: in front of it, it would be compiled twice.
    dtype = rho.dtype
    shapes = jax.eval_shape(path.at, rho)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    count, zero = jnp.zeros((), jnp.int32), jnp.zeros((), dtype)
    search = _Search(count, rho, zero, rho, nothing, jnp.full((), jnp.nan, dtype))
    search = jax.lax.while_loop(unsettled, narrow, search)
    return search.attempt, search.length, search.rho


class _Search(NamedTuple):
    count: jax.Array  # attempts so far
    rho: jax.Array
    low: jax.Array  # the largest rho known to fit
    high: jax.Array  # the smallest known not to, or the full step
    attempt: Any
    length: jax.Array
