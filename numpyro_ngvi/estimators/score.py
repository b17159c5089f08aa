"""Values alone; see :class:`ngvi.estimators.table.Score`."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from ngvi._docs import shared_doc
from ngvi.estimators import table
from ngvi.estimators.points import Families, PointsBySite, log_q
from ngvi.estimators.score import score_direction
from numpyro_ngvi.estimators.moments import Averages, Density, finite_draws, in_passes


@shared_doc(table.Score)
@dataclasses.dataclass(frozen=True)
class Score:
    """:param at_once: how many draws share a pass."""

    at_once: int

    def __call__(
        self, density: Density, here: Families, points: PointsBySite, params: Any = ()
    ) -> Averages:
        values = in_passes(
            lambda draw: density(draw[0], params, draw[1]),
            (points.of(here), points.keys),
            self.at_once,
        )
        log_weights = values - log_q(here, points.noise)
        directions = {
            site: score_direction(family, log_weights, points.noise[site])
            for site, family in here.items()
        }
        nothing = jax.tree.map(jnp.zeros_like, params)
        return Averages(directions, values, finite_draws(values), nothing)
