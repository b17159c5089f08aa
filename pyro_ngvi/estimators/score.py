"""Values alone; see :class:`ngvi.estimators.table.Score`."""

from __future__ import annotations

import dataclasses

import torch

from ngvi._docs import shared_doc
from ngvi.estimators import table
from ngvi.estimators.points import Families, PointsBySite, log_q
from ngvi.estimators.score import score_direction
from pyro_ngvi.estimators.differentiate import Differentiator
from pyro_ngvi.estimators.moments import Averages, finite_draws


@shared_doc(table.Score)
@dataclasses.dataclass(frozen=True)
class Score:
    """All draws count, or none."""

    @torch.no_grad()
    def __call__(self, evaluate: Differentiator, here: Families, points: PointsBySite) -> Averages:
        values = evaluate.values(here, points)
        kept = finite_draws(values)
        evaluate.report(points, values, kept)
        log_weights = values - log_q(here, points.noise)
        directions = {
            site: score_direction(family, log_weights, points.noise[site])
            for site, family in here.items()
        }
        count = evaluate.reads.later(kept.sum())
        return Averages(directions, values, kept, lambda: len(kept) - int(count()[0]), [])
