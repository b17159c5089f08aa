"""A start for models whose density explodes at the PPLs' own.

The default strategy takes the median of 15 draws of each prior, which is about 0.3 standard
deviations from the prior's median. With wide priors and an exponential in the model (counts on a
log scale), that start may be ``1e18`` nats below the optimum, and each Newton step improves it by
one e-fold. Medians of more draws are closer, and still differ between latents, as the weights of a
network and the components of a mixture must. If these are too far as well, the means of unbounded
priors are tried last, where latents may be equal.

For the coefficient of an income of 40,000, a standard deviation of 0.1 is 4000 on the log scale. If
such wide draws explode, the guide starts narrower; Newton's steps widen it within a few steps. A
Gaussian that loses at most ``d`` nats by its width is no wider than the posterior in the most
curved direction.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class RobustInit:
    """Options of a robust start: when another one is tried, and how wide the Gaussian is there.

    Log densities are in nats, and not finite where there is none.
    """

    num_samples: int = 1000  #: Draws of a median, which is then hardly random.
    max_numbers: int = 10**7  #: Most numbers in all draws of a site.
    low: float = -1e6  #: Log density, in nats, below which a start may be far too low.
    factor: float = 10.0  #: Ratio of log densities from which a start is too low.
    scale: float = 0.1  #: Usual initial standard deviation.
    #: Scales to try where the density explodes within the usual scale.
    narrower: tuple[float, ...] = tuple(10.0**-power for power in range(2, 9))

    def num_samples_for(self, size: int) -> int:
        """Return the number of draws of a median for a site of this size; the PPLs take 15."""
        return max(15, min(self.num_samples, self.max_numbers // max(size, 1)))

    def is_low(self, log_density: float) -> bool:
        """Say whether another start is to be tried."""
        return not log_density > self.low

    def is_better(self, log_density: float, than: float) -> bool:
        """Say whether a start is worth the change from one that is low."""
        if not math.isfinite(log_density):
            return False
        return not math.isfinite(than) or self.factor * log_density > than

    def best(
        self, strategies: Iterable[Any], start: Callable[[Any], tuple[float, Any]]
    ) -> tuple[float, Any]:
        """Return the first start that is not low, or else the best, or None.

        :param start: the log density of a strategy's start, and the start or None.
        :return: the same of the best.
        """
        level, best = math.nan, None
        for strategy in strategies:
            found, other = start(strategy)
            if best is None or self.is_better(found, level):
                level, best = found, other
            if best is not None and not self.is_low(level):
                break
        return level, best

    def directions(self, dim: int) -> np.ndarray:
        """Return the same standard normal draws: two pairs, or none for very many latents."""
        if self.num_samples * dim > 10 * self.max_numbers:
            return np.zeros((0, dim))
        normal = np.random.default_rng(0).standard_normal((2, dim))
        return np.concatenate([normal, -normal])

    def explodes(self, around: Sequence[float], start: float) -> bool:
        """Say whether the log density explodes within :attr:`scale` of a start.

        :param around: at draws.
        :param start: at the start.
        """
        if not np.size(around):
            return False
        level = float(np.mean(around))
        return self.is_low(level) and self.is_better(start, level)

    def narrow_scale(self, levels: Sequence[Sequence[float]], start: float, dim: int) -> float:
        """Return the widest of :attr:`narrower` that loses at most ``dim`` nats.

        :param levels: of each, the log density at the draws.
        """
        for scale, around in zip(self.narrower, levels, strict=True):
            if start - np.mean(around) <= dim:
                return scale
        return self.narrower[-1]


#: The options with their defaults.
ROBUST_INIT = RobustInit()
