"""A calmer start than the PPLs', for models whose density explodes about it.

The default strategy takes the median of 15 draws of each prior, which is 0.3 sds from the prior's
own. With wide priors and an exponential in the model (counts on a log scale) that may be ``1e18``
nats below the optimum, and Newton's steps come down by one e-fold each. Medians of more draws are
nearer, and still differ from latent to latent, as weights of a network and components of a mixture
must. Where they are too far as well, the means of priors on all reals come last, at which latents
need not differ.

A standard deviation of 0.1 is 4000 on the log scale for the coefficient of an income of 40,000.
Where draws so wide explode, a guide starts as narrow as it must, for Newton's steps widen it within
a few. A Gaussian is at most as wide as its posterior in the most curved direction if it loses no
more than ``d`` nats by its width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ngvi.errors import check_finite

#: A start whose log density is below, in nats, may be far too low.
LOW = -1e6
#: It is, if medians of so many draws are higher by this factor; of fewer, where a site would have
#: more numbers than these in all.
NUM_SAMPLES, FACTOR, MANY_NUMBERS = 1000, 10.0, 10**7
#: What the PPLs take.
USUAL = 15


def num_samples(size: int) -> int:
    """Of a median, for a site of so many numbers."""
    return max(USUAL, min(NUM_SAMPLES, MANY_NUMBERS // max(size, 1)))


def is_low(log_density: float) -> bool:
    """Whether a start asks for a look at a calmer one."""
    return not log_density > LOW


def is_calmer(log_density: float, than: float) -> bool:
    """Whether a start is worth the change from one that is low.

    :param than: the log density of the latter, not finite if it has none.
    """
    if not math.isfinite(log_density):
        return False
    return not math.isfinite(than) or FACTOR * log_density > than


#: The usual initial sd, and narrower ones.
SCALE = 0.1
NARROWER = tuple(10.0**-power for power in range(2, 9))
#: Draws that look about the start, for so many latents at most: twice so many numbers, and theirs
#: with the other sign.
NUM_PAIRS, MAX_DIM = 2, 10**5


def check_scale(scale: float | None) -> float | None:
    """A guide's ``init_scale``; None leaves it to the guide.

    :raises ValueError: for a number that is not positive and finite.
    """
    return None if scale is None else check_finite(scale, "init_scale")


def directions(dim: int) -> np.ndarray:
    """Standard normal draws, always the same, shape ``(2 * NUM_PAIRS, dim)``; none of too many."""
    if dim > MAX_DIM:
        return np.zeros((0, dim))
    normal = np.random.default_rng(0).standard_normal((NUM_PAIRS, dim))
    return np.concatenate([normal, -normal])


def explodes(around: Sequence[float], start: float) -> bool:
    """Whether the log density does so within :data:`SCALE` of a start.

    :param around: at draws; not finite where it has none.
    :param start: at the start.
    """
    if not np.size(around):
        return False
    level = float(np.mean(around))
    return is_low(level) and is_calmer(start, level)


def narrow_scale(levels: Sequence[Sequence[float]], start: float, dim: int) -> float:
    """The widest of :data:`NARROWER` that loses no more than ``dim`` nats, or else the narrowest.

    :param levels: of each, the log density at the draws.
    """
    for scale, around in zip(NARROWER, levels, strict=True):
        if start - np.mean(around) <= dim:
            return scale
    return NARROWER[-1]
