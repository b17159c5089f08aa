"""Natural gradients of a mixture, at the same points of each component."""

from __future__ import annotations

import torch

from ngvi.estimators.points import Families, PointsBySite
from pyro_ngvi.estimators.differentiate import Differentiator, sums_by_leaf
from pyro_ngvi.estimators.moments import Averages
from pyro_ngvi.host import label


def of_mixture(
    evaluate: Differentiator, here: Families, site: str, points: PointsBySite
) -> Averages:
    """Estimate the natural gradient of a guide's mixture (:mod:`ngvi.families.mixture`).

    Each point stands for a draw of every component; the values are their averages. Gradients of
    other parameters are those of points with equal weights.

    :param site: of the mixture.
    """
    family, listener = here[site], evaluate.listener
    evaluate.listener = None  # it hears of all components together
    found = [evaluate({site: one}, points) for one in family.components]
    kept = torch.stack([one.kept for one in found]).all(0)
    values = torch.stack([one.values for one in found])
    slopes = torch.stack([one.gradients[site] for one in found])
    weights = torch.where(kept, points.weights, 0.0)
    weights = weights / weights.sum()
    with label("direction"):
        direction = family.bound_direction(
            torch.where(kept, values, 0.0),
            torch.where(kept[:, None], slopes, 0.0),
            points.noise[site],
            weights,
        )
    mean = family.weights @ values
    evaluate.listener = listener
    evaluate.report(points, mean, kept)
    shares = zip(family.weights, found, strict=True)
    params = sums_by_leaf(
        (leaf, share * gradient / one.count())
        for share, one in shares
        for leaf, gradient in one.params
    )
    return Averages({site: direction}, mean, kept, lambda: int((~kept).sum()), params)
