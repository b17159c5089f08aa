"""What a model says of its latents before it sees data, by draws."""

from __future__ import annotations

import dataclasses

import numpy as np

from ngvi.inference.engine import Engine

#: Draws of the prior, and the quantiles that its standard deviations come from: of a normal
#: distribution they are so many standard deviations apart.
NUM_PRIOR, QUARTILES, APART = 100, (0.25, 0.75), 1.349
#: A prior is another start if a mean is so far from the first one's, or a standard deviation
#: outside this range.
FAR, USUAL_SCALES = 5.0, (0.02, 50.0)


@dataclasses.dataclass(frozen=True)
class Prior:
    """What a model says of its latents before it sees data, on the unconstrained scale.

    :ivar mean: the median of each latent, shape ``(d,)``.
    :ivar sd: the standard deviation by the quartiles of each, shape ``(d,)``.
    :ivar draws: shape ``(N, d)``.
    """

    mean: np.ndarray
    sd: np.ndarray
    draws: np.ndarray

    @classmethod
    def of(cls, engine: Engine, rng: np.random.Generator) -> Prior | None:
        """A model's, or None if it cannot be sampled."""
        draws = engine.evaluator.prior(rng, NUM_PRIOR)
        if draws is None:
            return None
        draws = draws[np.isfinite(draws).all(1)]
        if len(draws) < NUM_PRIOR // 2:
            return None
        low, high = np.quantile(draws, QUARTILES, 0)
        sd = (high - low) / APART
        return cls(np.median(draws, 0), np.where(sd > 0, sd, 1.0), draws)

    def is_elsewhere(self, mean: np.ndarray) -> bool:
        """Whether this is not about ``N(mean, I)``."""
        low, high = USUAL_SCALES
        far = np.abs(self.mean - mean) > FAR
        return bool((far | (self.sd < low) | (self.sd > high)).any())
