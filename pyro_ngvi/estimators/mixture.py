"""Natural gradients of a mixture, at the same points of each component."""

from __future__ import annotations

from typing import Any

import torch

from ngvi.estimators.from_gradients import Averages
from ngvi.estimators.points import Families, PointsBySite
from pyro_ngvi.estimators.moments import of_kept, sums_by_leaf
from pyro_ngvi.host import label


def of_mixture(evaluate: Any, here: Families, site: str, points: PointsBySite) -> Averages:
    """Estimate the natural gradient of a guide's mixture (:mod:`ngvi.families.mixture`).

    Each point stands for a draw of every component; the values are their averages. Gradients of
    other parameters are those of points with equal weights.

    :param site: of the mixture.
    """
    family, count = here[site], len(points.weights)
    equal = points._replace(weights=torch.ones_like(points.weights))
    found = [evaluate({site: one}, equal) for one in family.components]
    kept = torch.stack([one.kept for one in found]).all(0)
    values = torch.stack([one.values for one in found])
    slopes = torch.stack([one.by_site[site] for one in found])
    weights = of_kept(points.weights, kept)
    weights = weights / weights.sum()
    with label("direction"):
        direction = family.bound_direction(
            torch.where(kept, values, 0.0),
            torch.where(kept[:, None], slopes, 0.0),
            points.noise[site],
            weights,
        )
    shares = zip(family.weights, found, strict=True)
    params = sums_by_leaf(
        (leaf, share * gradient / count) for share, one in shares for leaf, gradient in one.params
    )
    return Averages({site: direction}, family.weights @ values, kept, params)
