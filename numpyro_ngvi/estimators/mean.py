"""The delta method; see :class:`ngvi.estimators.table.Mean`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from ngvi._docs import shared_doc
from ngvi.estimators import table
from ngvi.estimators.points import Families, PointsBySite
from numpyro_ngvi.estimators.hessian import Hessian
from numpyro_ngvi.estimators.moments import Averages, Density


@shared_doc(table.Mean)
@dataclasses.dataclass(frozen=True)
class Mean:
    """It has no values at draws."""

    partners: bool

    def __call__(
        self, density: Density, here: Families, points: PointsBySite, params: Any = ()
    ) -> Averages:
        points = points if self.partners else points.some(slice(1))
        noise = {site: jnp.zeros_like(value) for site, value in points.noise.items()}
        count = len(points.weights)
        found = Hessian(count, count)(density, here, points._replace(noise=noise), params)
        return found._replace(values=found.values[:0])
