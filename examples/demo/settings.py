"""What is compared, and with which settings.

Both guides start at the same Gaussian, see the same data and the same stock ``Trace_ELBO`` with
one draw a step, and both optimisers follow the same cosine schedule from their first learning
rate to zero. That rate is for each the best of those tried, by the bound after 2000 steps in
NumPyro (``TRIED``); a constant rate and a linear decrease were tried as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

PRIOR_SCALE = 10.0  #: standard deviation of every weight under the prior
INIT_SCALE = 0.1  #: standard deviation of every weight at the start; the mean starts at 0
BOUND_DRAWS = 500  #: draws for the stock estimate of the final bound

TRIED = {
    "Snngm": (1e-2, 5e-3, 3e-3, 2e-3, 1e-3, 3e-4),
    "Adam": (1e-1, 5e-2, 3e-2, 2e-2, 1e-2, 3e-3, 1e-3),
}


@dataclass(frozen=True)
class Method:
    """A guide with an optimiser."""

    guide: Literal["NaturalGaussianGuide", "AutoMultivariateNormal"]
    optimiser: Literal["Snngm", "Adam"]
    learning_rate: float
    #: Whether log q is differentiated through the draw only. The stock guides cannot;
    #: without it, our guide shows what the natural gradient does alone.
    sticking_the_landing: bool
    colour: str

    @property
    def name(self) -> str:
        """For tables and legends."""
        option = ""
        if self.guide == "NaturalGaussianGuide" and not self.sticking_the_landing:
            option = "(sticking_the_landing=False)"
        return f"{self.guide}{option} + {self.optimiser}"


OURS = Method("NaturalGaussianGuide", "Snngm", 2e-3, True, "#0072b2")
OURS_FULL_GRADIENT = Method("NaturalGaussianGuide", "Snngm", 2e-3, False, "#56b4e9")
STOCK = Method("AutoMultivariateNormal", "Adam", 2e-2, False, "#d55e00")
METHODS = (OURS, OURS_FULL_GRADIENT, STOCK)


def cosine(first: float, step: int, num_steps: int) -> float:
    """A learning rate that falls from ``first`` to zero along half a cosine."""
    return 0.5 * first * (1 + math.cos(math.pi * min(step, num_steps) / num_steps))
