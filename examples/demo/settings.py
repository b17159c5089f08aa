"""What is compared, and with which settings.

All guides start at the same Gaussian and see the same data. ``BLR`` with ``NaturalELBO`` has no
settings. The two first-order optimisers see the stock ``Trace_ELBO`` with one draw a step, and
follow the same cosine schedule from their first learning rate to zero. That rate is for each the
best of those tried, by the bound after 2000 steps in NumPyro (``TRIED``); a constant rate and a
linear decrease were tried as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

PRIOR_SCALE = 10.0  #: standard deviation of every weight under the prior
INIT_SCALE = 0.1  #: standard deviation of every weight at the start; the mean starts at 0
NEWTON_STEPS = 30  #: of BLR; the others take those of the command line
BOUND_DRAWS = 500  #: draws for the stock estimate of the final bound

TRIED = {
    "Snngm": (1e-2, 5e-3, 3e-3, 2e-3, 1e-3, 3e-4),
    "Adam": (1e-1, 5e-2, 3e-2, 2e-2, 1e-2, 3e-3, 1e-3),
}


@dataclass(frozen=True)
class Method:
    """A guide with an optimiser."""

    guide: Literal["NaturalGaussianGuide", "AutoMultivariateNormal"]
    optimiser: Literal["BLR", "Snngm", "Adam"]
    learning_rate: float | None
    colour: str

    @property
    def name(self) -> str:
        """For tables and legends."""
        elbo = " + NaturalELBO" if self.optimiser == "BLR" else ""
        return f"{self.guide} + {self.optimiser}{elbo}"

    def num_steps(self, num_steps: int) -> int:
        """Steps that this method takes where the first-order ones take ``num_steps``."""
        return min(NEWTON_STEPS, num_steps) if self.optimiser == "BLR" else num_steps


SECOND_ORDER = Method("NaturalGaussianGuide", "BLR", None, "#009e73")
FIRST_ORDER = Method("NaturalGaussianGuide", "Snngm", 2e-3, "#0072b2")
STOCK = Method("AutoMultivariateNormal", "Adam", 2e-2, "#d55e00")
METHODS = (SECOND_ORDER, FIRST_ORDER, STOCK)


def cosine(first: float, step: int, num_steps: int) -> float:
    """A learning rate that falls from ``first`` to zero along half a cosine."""
    return 0.5 * first * (1 + math.cos(math.pi * min(step, num_steps) / num_steps))
