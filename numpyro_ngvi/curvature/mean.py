"""The delta method: gradient and Hessian at the mean of ``q`` in place of their averages."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from numpyro_ngvi.curvature.hessian import Hessian
from numpyro_ngvi.curvature.moments import Density, Estimate, Families, Points


@dataclasses.dataclass(frozen=True)
class Mean:
    """``grad l`` and ``hess l`` at the mean; it has no values at draws.

    :param partners: whether the guide draws more than latent vectors: over its other draws the
        mean's gradient is averaged.
    """

    partners: bool

    def __call__(
        self, density: Density, here: Families, points: Points, ordinary: Any = ()
    ) -> Estimate:
        points = points if self.partners else points.some(slice(1))
        noise = {site: jnp.zeros_like(value) for site, value in points.noise.items()}
        count = len(points.weights)
        found = Hessian(count, count)(density, here, points._replace(noise=noise), ordinary)
        return found._replace(values=found.values[:0])
