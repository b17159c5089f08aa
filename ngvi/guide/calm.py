"""A calmer start than the PPLs' medians, for models whose density explodes about them.

The default strategy takes the median of 15 draws of each prior, which is 0.3 sds from the prior's
own. With wide priors and an exponential in the model (counts on a log scale) that may be ``1e18``
nats below the optimum, and Newton's steps come down by one e-fold each. Medians of more draws are
nearer, and still differ from latent to latent, as weights of a network and components of a mixture
must.
"""

from __future__ import annotations

import math

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
