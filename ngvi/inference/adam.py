"""Adam (Kingma and Ba, 2015), for parameters that are not Gaussian."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

#: Decay of the averages of gradients and of their squares, and what keeps off a division by zero.
DECAY, SQUARE_DECAY, EPSILON = 0.9, 0.999, 1e-8


@dataclass
class Adam:
    """The state of an ascent."""

    count: int = 0
    means: list[np.ndarray] = field(default_factory=list)
    squares: list[np.ndarray] = field(default_factory=list)

    def steps(self, gradients: Sequence[np.ndarray], step_size: float) -> list[np.ndarray]:
        """What to add to the parameters.

        :param gradients: of what is to rise, one array for each parameter.
        """
        if not self.count:
            self.means = self.squares = [np.zeros_like(gradient) for gradient in gradients]
        self.count += 1
        self.means = [
            DECAY * old + (1.0 - DECAY) * new
            for old, new in zip(self.means, gradients, strict=True)
        ]
        self.squares = [
            SQUARE_DECAY * old + (1.0 - SQUARE_DECAY) * new**2
            for old, new in zip(self.squares, gradients, strict=True)
        ]
        rate = step_size / (1.0 - DECAY**self.count)
        unbiased = 1.0 - SQUARE_DECAY**self.count
        return [
            rate * mean / (np.sqrt(square / unbiased) + EPSILON)
            for mean, square in zip(self.means, self.squares, strict=True)
        ]
