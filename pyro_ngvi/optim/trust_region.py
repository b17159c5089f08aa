"""How far one step of the Bayesian learning rule may move ``q``, and how large steps should be.

Two numbers adapt to what the steps did, without further evaluations of the model. Let ``slope``
be the derivative of the bound along the last change of ``q``, at its beginning and at its end.

- The *radius* bounds ``KL(q_new || q_old)``. It grows tenfold past a step whose slope is still
  positive at its end (it could have been longer), and falls to a quarter of a step's length
  when the slope has turned and is larger than before (it went far beyond the optimum).
- The *step size* is ``1 / (1 + DECREASE n)``, where ``n`` counts the steps at whose end the slope
  was negative (Kesten, 1958, *Accelerated stochastic approximation*): far from the optimum steps
  stay whole, and at the optimum, where noise turns the slope every other time, they decrease
  as averaging needs them to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from pyro_ngvi.families.direction import Families

#: The first radius, in nats.
INITIAL_RADIUS = 1.0
GROWTH = 10.0
SHRINKAGE = 0.25
DECREASE = 0.5

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

    radius: float = INITIAL_RADIUS  #: largest KL divergence of a step, in nats
    num_turns: int = 0  #: steps at whose end the bound was falling
    slope: float = 0.0  #: of the bound at the beginning of the last step; 0 before the first
    length: float = 0.0  #: KL divergence of the last step, in nats


def judge(
    progress: Progress, families: Families, directions: Families, change: Families
) -> Progress:
    """The radius and the number of turns, after looking at the end of the last step.

    :param directions: natural gradients of the bound at ``families``.
    :param change: the last step, in coordinates.
    """
    if not progress.slope > 0:
        return progress
    slope = slope_along(families, directions, change)
    radius = progress.radius
    if slope < -progress.slope:
        radius = max(SHRINKAGE * progress.length, smallest_radius(families))
    elif slope > 0:
        radius = max(radius, GROWTH * progress.length)
    return progress._replace(radius=radius, num_turns=progress.num_turns + (slope < 0))


def smallest_radius(families: Families) -> float:
    """The radius below which none should fall, in nats."""
    dim = sum(family.dim for family in families)
    return ROUNDING * dim * torch.finfo(families[0].loc.dtype).eps


def step_size(progress: Progress, decrease: float = DECREASE) -> float:
    """The step size that decreases with every turn."""
    return 1.0 / (1.0 + decrease * progress.num_turns)


def advance_within(
    radius: float, families: Families, advance: Callable[[float], Families], rho: float
) -> tuple[Families, float]:
    """The largest step up to ``rho`` that stays within the radius.

    :param radius: largest KL divergence from the old Gaussians, in nats, all together.
    :param advance: the families after a step of a given size.
    :return: the families, and the KL divergence of the step.
    """
    return longest_within(radius, families, advance, rho)[:2]


def longest_within(
    radius: float, families: Families, advance: Callable[[float], Families], rho: float
) -> tuple[Families, float, float]:
    """As :func:`advance_within`, which also tells the step's size."""
    low, high = 0.0, rho
    for count in range(MAX_ATTEMPTS + 1):
        moved = advance(rho)
        length = sum(
            float(new.kl_divergence(old)) for new, old in zip(moved, families, strict=True)
        )
        if length <= radius:
            low = rho
            if length >= CLOSE * radius or rho >= high or count >= MAX_REFINEMENTS:
                break
        else:
            high = rho
        least = 0.1 ** max(1, count + 2 - PATIENCE)
        if count == MAX_ATTEMPTS:
            break
        if low > 0 and count + 1 >= MAX_REFINEMENTS:
            # The divergence may jump, where a correction sets in: what fits on one side will do.
            rho = low
        elif low > 0:
            rho = math.sqrt(low) * math.sqrt(high)
        elif math.isfinite(length):
            # The divergence grows like rho^2 while it is small, and faster later.
            # Far from a fit it may grow like log rho: then the size of rho is to be found first.
            most = 0.1 if count + 1 > PATIENCE else 0.8
            rho = high * min(max(math.sqrt(radius / length), least), most)
        else:
            rho = least * high
    return moved, length, rho


def slope_along(families: Families, directions: Families, change: Families) -> float:
    """The derivative of the bound along a change of coordinates, in nats."""
    return sum(
        float(family.inner(direction, step))
        for family, direction, step in zip(families, directions, change, strict=True)
    )
