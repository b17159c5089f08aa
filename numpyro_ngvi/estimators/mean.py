"""The delta method; see :class:`ngvi.estimators.kinds.Mean`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from ngvi._docs import shared_doc
from ngvi.estimators import kinds as estimators
from ngvi.estimators.kinds import Families, Points
from numpyro_ngvi.estimators.hessian import Hessian
from numpyro_ngvi.estimators.moments import Density, Estimate


@shared_doc(estimators.Mean)
@dataclasses.dataclass(frozen=True)
class Mean:
    """It has no values at draws."""

    partners: bool

    def __call__(
        self, density: Density, here: Families, points: Points, ordinary: Any = ()
    ) -> Estimate:
        points = points if self.partners else points.some(slice(1))
        noise = {site: jnp.zeros_like(value) for site, value in points.noise.items()}
        count = len(points.weights)
        found = Hessian(count, count)(density, here, points._replace(noise=noise), ordinary)
        return found._replace(values=found.values[:0])
