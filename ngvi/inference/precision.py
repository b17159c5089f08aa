"""Whether single precision can be believed: the same log density in double, at a few points.

Rounding is small next to the numbers that are rounded, and these may be far larger than the log
density that is left of them: a negative binomial of a concentration of 1e14 is a difference of
logarithms of Gamma functions of 4e15 each. What is left then is smooth, has an optimum, and is
wrong, thousands of nats too high, maybe. Nothing in the same precision can see it.
"""

from __future__ import annotations

import numpy as np

from ngvi.inference.engine import Engine, Place

#: Units of precision above which numbers are not double.
SINGLE = 1e-10
#: Data of more numbers than these, 256 MiB, are not copied to double precision.
MOST_NUMBERS = 2**25
#: Points that double precision sees.
NUM_CHECKED = 16
#: Values are wrong if they are off by so many nats, and by so large a part of themselves: sums over
#: many rows are rounded by less.
WRONG, PART = 1.0, 1e-4


def rounding(engine: Engine, value: float) -> float:
    """One unit of rounding of a log density or a bound, in nats."""
    return engine.parameters.eps * abs(value)


def excess(engine: Engine, place: Place, theta: np.ndarray, values: np.ndarray) -> np.ndarray:
    """By how many nats values are too high, as far as they are wrong: zero if they can be believed.

    :param theta: vectors of all latents, shape ``(N, d)``.
    :param values: the log density there, finite.
    :return: shape ``(N,)``.
    """
    if not len(theta) or engine.parameters.eps < SINGLE:
        return np.zeros(len(theta))
    found = engine.evaluator.values_in_double(place, theta)
    if found is None or not np.isfinite(found).all():
        return np.zeros(len(theta))
    gaps = values - found
    return np.where(np.abs(gaps) > np.maximum(WRONG, PART * np.abs(values)), gaps, 0.0)
