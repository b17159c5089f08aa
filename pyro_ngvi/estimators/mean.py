"""The delta method; see :class:`ngvi.estimators.table.Mean`."""

from __future__ import annotations

import dataclasses

import torch

from ngvi._docs import shared_doc
from ngvi.estimators import table
from ngvi.estimators.points import Families, PointsBySite
from pyro_ngvi.estimators.differentiate import Differentiator
from pyro_ngvi.estimators.hessian import Hessian
from pyro_ngvi.estimators.moments import Averages


@shared_doc(table.Mean)
@dataclasses.dataclass(frozen=True)
class Mean:
    """It has values at the draws."""

    partners: bool

    def __call__(self, evaluate: Differentiator, here: Families, points: PointsBySite) -> Averages:
        values = evaluate(here, points)
        at_mean = points if self.partners else points.some(slice(1))
        noise = {site: torch.zeros_like(z) for site, z in at_mean.noise.items()}
        found = Hessian(len(at_mean.weights))(evaluate, here, at_mean._replace(noise=noise))
        params = [(leaf, gradient / values.count()) for leaf, gradient in values.params]
        return Averages(found.directions, values.values, values.kept, values.num_dropped, params)
