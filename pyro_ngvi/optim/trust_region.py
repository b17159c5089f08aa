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

import math
from typing import Any, NamedTuple

import torch

from ngvi.trust_region import GROWTH, INITIAL_RADIUS
from pyro_ngvi.families import direction
from pyro_ngvi.families.direction import Families

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

    radius: float = INITIAL_RADIUS  #: largest KL divergence of a step, in nats
    mean_turns: int = 0  #: steps at whose end the bound was falling with the mean's change
    scale_turns: int = 0  #: ... and with that of all other coordinates
    slope: float = 0.0  #: of the bound at the beginning of the last step; 0 before the first
    ratio: float = 0.0  #: of the slopes at the end and at the beginning of the step before
    length: float = 0.0  #: KL divergence of the last step, in nats


def judge(progress: Progress, families: Families, duals: Families, change: Families) -> Progress:
    """The radius and the numbers of turns, after looking at the end of the last step.

    :param duals: Euclidean gradients of the bound at ``families``.
    :param change: the last step, in coordinates.
    """
    if not progress.slope > 0:
        return progress._replace(ratio=0.0)
    means = sum((d.loc * c.loc).sum() for d, c in zip(duals, change, strict=True))
    slope, of_mean = torch.stack([direction.dot(duals, change), means]).tolist()
    ratio = slope / progress.slope
    # A slope that is linear in the step vanishes at 1 / (1 - ratio) of it.
    factor = 1 / (1 - min(ratio, 0.9)) ** 2
    radius = min(max(factor, 1 / GROWTH), GROWTH) * progress.length
    if ratio < -1:
        radius = max(radius, smallest_radius(families))
    else:
        radius = max(radius, progress.radius) if ratio > 0 else progress.radius
    is_steady = all(STEADY[0] < one <= STEADY[1] for one in (ratio, progress.ratio))
    given_back = GIVEN_BACK if is_steady else 0
    return progress._replace(
        radius=radius,
        mean_turns=max(progress.mean_turns + (of_mean < 0) - given_back, 0),
        scale_turns=max(progress.scale_turns + (slope - of_mean < 0) - given_back, 0),
        ratio=ratio,
    )


def smallest_radius(families: Families) -> float:
    """The radius below which none should fall, in nats."""
    dim = sum(family.dim for family in families)
    return ROUNDING * dim * torch.finfo(families[0].loc.dtype).eps


def step_size(num_turns: int, decrease: float = DECREASE) -> float:
    """The step size that decreases with every turn."""
    return 1.0 / (1.0 + decrease * num_turns)


def longest_within(radius: float, path: Any, rho: float) -> tuple[Any, float, float]:
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
    low, high = 0.0, rho
    for count in range(MAX_ATTEMPTS + 1):
        attempt = path.at(rho)
        length = float(path.kl(attempt))
        fits = length <= radius
        enough = length >= CLOSE * radius or rho >= high or count >= MAX_REFINEMENTS
        if (fits and enough) or count == MAX_ATTEMPTS:
            break
        low, high = (rho, high) if fits else (low, rho)
        if low > 0:
            # What fits on one side of a jump will do.
            rho = math.sqrt(low) * math.sqrt(high) if count + 1 < MAX_REFINEMENTS else low
        else:
            least = 0.1 ** max(1, count + 2 - PATIENCE)
            # Far from a fit it may grow like log rho: then the size of rho is to be found first.
            most = 0.8 if count < PATIENCE else 0.1
            ratio = math.sqrt(radius / length) if math.isfinite(length) else least
            rho = high * min(max(ratio, least), most)
    return attempt, length, rho
