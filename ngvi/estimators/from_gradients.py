"""Estimators of values and gradients at points, which a package evaluates.

:mod:`ngvi.estimators.table` has their equations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ngvi.estimators import table
from ngvi.estimators.points import Arrays, Families, PointsBySite, log_q, map_tree, mixture_in
from ngvi.families.base import Array, Family
from ngvi.families.curvature import (
    GroupSpread,
    natural_gradient_from_groups,
    natural_gradient_from_points,
)
from ngvi.families.draws import draw_at, sticking_log_prob


class Gradients(NamedTuple):
    """Values and gradients at ``N`` draws."""

    values: Array  #: The log density, shape ``(N,)``.
    by_site: Arrays  #: Gradients times the points' weights, shapes ``(N, d)``.
    kept: Array  #: True if everything of a draw is finite, booleans of shape ``(N,)``.
    params: Any  #: The weighted sum of the gradients of other parameters.


class Averages(NamedTuple):
    """Averages over the draws all of whose numbers are finite; NaN if there are none."""

    directions: Families  #: The natural gradients of the bound.
    values: Array  #: The log density at the first draws, shape ``(M,)``.
    kept: Array  #: True if a draw counts, booleans of shape ``(N,)``.
    params: Any  #: The mean gradients of other parameters.
    spread: GroupSpread | None = None  #: Spread of groups of points, all families together.


class Evaluator(Protocol):
    """A package's evaluations of a log density."""

    package: str  #: Name of the package.
    label: Callable[[str], Any]  #: Name a part of a step for profilers.

    def __call__(self, here: Families, points: PointsBySite) -> Gradients:
        """Evaluate and differentiate the log density at some points."""

    def gradient_of(self, function: Callable[[Any], Array], family: Any) -> Any:
        """Differentiate a scalar function of a family by its coordinates."""

    def of_mixture(self, here: Families, site: str, points: PointsBySite) -> Averages:
        """Estimate the direction of a mixture."""

    def expectations(self, here: Families) -> Any:
        """Integrate the log density term by term."""


def masked(values: Array, kept: Array, xp: Any) -> Array:
    """Return rows of draws, with zeros for those that are left out."""
    return xp.where(kept.reshape(-1, *[1] * (values.ndim - 1)), values, 0.0)


@dataclasses.dataclass(frozen=True)
class Spherical(table.Spherical):
    """See :class:`ngvi.estimators.table.Spherical`.

    :param num_groups: of points, whose spread is returned if there are several.
    """

    num_groups: int

    def __call__(self, evaluate: Evaluator, here: Families, points: PointsBySite) -> Averages:
        """Estimate from one group of points or several."""
        if (site := mixture_in(here)) is not None:
            return evaluate.of_mixture(here, site, points)
        found = evaluate(here, points)
        # Without the points that are left out, for which the others stand; NaN of none.
        squares = points.weights * sum((z**2).sum(-1) for z in points.noise.values())
        xp = next(iter(here.values())).xp
        part = masked(squares, found.kept, xp).sum() / squares.sum()
        directions, spreads = {}, []
        with evaluate.label("direction"):
            for site, family in here.items():
                weighted = masked(found.by_site[site], found.kept, xp) / part
                noise = points.noise[site]
                if self.num_groups == 1:
                    directions[site] = natural_gradient_from_points(family, weighted, noise)
                    continue
                directions[site], spread = natural_gradient_from_groups(
                    family, weighted, noise, self.num_groups
                )
                spreads.append(spread)
        together = GroupSpread(*map(sum, zip(*spreads, strict=True))) if spreads else None
        return Averages(directions, found.values, found.kept, found.params, together)


@dataclasses.dataclass(frozen=True)
class Stein(table.Stein):
    """See :class:`ngvi.estimators.table.Stein`; draws that are not finite are left out."""

    def __call__(self, evaluate: Evaluator, here: Families, points: PointsBySite) -> Averages:
        """Estimate from random draws."""
        if (site := mixture_in(here)) is not None:
            return evaluate.of_mixture(here, site, points)
        found = evaluate(here, points)
        xp = next(iter(here.values())).xp
        weights = masked(points.weights, found.kept, xp)
        total = weights.sum()
        with evaluate.label("direction"):
            directions = {
                site: stein_direction(
                    family,
                    masked(found.by_site[site], found.kept, xp) / total,
                    points.noise[site],
                    weights / total,
                    evaluate.gradient_of,
                )
                for site, family in here.items()
            }
        return Averages(directions, found.values, found.kept, found.params)


def stein_direction(
    family: Family,
    gradients: Array,
    noise: Array,
    weights: Array,
    gradient_of: Callable[[Callable[[Any], Array], Any], Any],
) -> Family:
    """Return the natural gradient of the bound from gradients of the log density.

    :param gradients: of the log density at the draws, times their weights; shape ``(K, d)``.
    :param noise: ``z`` of the draws, shape ``(K, d)``.
    :param weights: of the draws, which sum to one, shape ``(K,)``; NaN of none.
    :param gradient_of: as an :class:`Evaluator` has it.
    """
    own: Any = family
    if hasattr(own, "draw_vjp"):
        return own.draw_vjp(noise, own.transposed(gradients) + weights[:, None] * noise)

    def bound(q: Family) -> Array:
        # Its derivative is the bound's: the gradients are constants here.
        reparametrised = q.reparametrised(noise)
        along = (gradients * draw_at(q, reparametrised)).sum()
        return along - (weights * sticking_log_prob(q, reparametrised)).sum()

    return gradient_of(bound, family)


@dataclasses.dataclass(frozen=True)
class Mean(table.Mean):
    """See :class:`ngvi.estimators.table.Mean`; it has values at the draws."""

    partners: bool

    def __call__(self, evaluate: Evaluator, here: Families, points: PointsBySite) -> Averages:
        """Estimate from the mean, or from the mean beside other draws."""
        at_draws = evaluate(here, points)
        at_mean = points if self.partners else points.some(slice(1))
        noise = {site: 0.0 * z for site, z in at_mean.noise.items()}
        count = len(at_mean.weights)
        cost = table.EstimateCost.of_draws(count, count, 0)
        hessian = table.new_estimator("hessian", evaluate.package, cost)
        found = hessian(evaluate, here, at_mean._replace(noise=noise))
        return Averages(found.directions, at_draws.values, at_draws.kept, at_draws.params)


@dataclasses.dataclass(frozen=True)
class Quadrature(table.Quadrature):
    """See :class:`ngvi.estimators.table.Quadrature`."""

    def __call__(self, evaluate: Evaluator, here: Families, points: PointsBySite) -> Averages:
        """Integrate; the points' values are the bound, each of them, for any noise."""
        found = evaluate.expectations(here)
        xp = next(iter(here.values())).xp
        nothing = xp.where(found.is_finite, 0.0, xp.nan)
        directions = {}
        with evaluate.label("direction"):
            for (site, family), (gradient, hessian) in zip(here.items(), found.parts, strict=True):
                # The direction is not finite if anything is not; a step looks at it later.
                hessian = map_tree(lambda part: xp.where(found.is_finite, part, 0.0), hessian)
                directions[site] = family.bonnet_price(gradient + nothing, hessian)
        entropy = sum(family.entropy() for family in here.values())
        values = found.value + entropy + log_q(here, points.noise)
        kept = xp.broadcast_to(found.is_finite, values.shape)
        return Averages(directions, values, kept, found.params)
