"""The log density at many draws: values, gradients and curvature, as many in a pass as fit."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ngvi.estimators.from_gradients import Averages, Gradients
from ngvi.estimators.points import Arrays, Families, PointsBySite
from ngvi.estimators.quadrature import Expectations, expectations, find_terms
from pyro_ngvi.estimators.moments import (
    ByLeaf,
    finite_draws,
    gradient_of,
    gradients_of,
    leaves_of,
    of_kept,
    plus,
    sums_by_leaf,
)
from pyro_ngvi.estimators.quadrature import TorchCalculus
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.coordinates import coordinate_of
from pyro_ngvi.host import label
from pyro_ngvi.tracing import LogDensity, NoiseState
from pyro_ngvi.tracing.additive_terms import terms_of


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


class Curvature(NamedTuple):
    """An estimate of the Hessian at each of ``K`` draws, as far as a family needs it."""

    #: Which draws have a finite one, booleans of shape ``(K,)``.
    finite: Callable[[], Tensor]
    #: The sum over the draws that are kept, as the family assembles it.
    total: Callable[[Tensor], Any]


class Slope(NamedTuple):
    """A gradient at ``K`` draws that is to be differentiated."""

    gradient: Tensor  #: With its graph, shape ``(K, d)``.
    theta: Tensor  #: The draws, likewise.
    #: The log density at draws, shape ``(K,)``, with the same noise and data.
    evaluate: Callable[[Tensor], Tensor]
    bytes_per_product: float  #: Bytes of the intermediate results that one product needs.


class Parts(NamedTuple):
    """A log density with its graph, by how often it is differentiated."""

    once: Tensor | None  #: What is differentiated once, shape ``(K,)``.
    twice: Tensor | None = None  #: What is differentiated twice, likewise.
    examples: Any = None  #: Single examples of it.

    @property
    def values(self) -> Tensor:
        """The log density, shape ``(K,)``."""
        if self.once is None or self.twice is None:
            return self.twice if self.once is None else self.once
        return self.once + self.twice


@dataclasses.dataclass
class Differentiator:
    """Runs a log density, and differentiates it; see :mod:`ngvi.estimators.from_gradients`.

    :param plan: how many draws share a pass, and which way of differentiating works.
    :param leaves: the model parameters; None finds them, and leaves draws out of their
        gradients that are not finite.
    """

    density: LogDensity
    plan: Any
    leaves: list[Tensor] | None = None

    package = "pyro_ngvi"
    label, gradient_of = staticmethod(label), staticmethod(gradient_of)

    def __call__(self, here: Families, points: PointsBySite) -> Gradients:
        return _joined([self._once(here, some) for some in self.passes(points)])

    def twice(
        self, here: Families, points: PointsBySite, second: Any
    ) -> tuple[Gradients, dict[str, Any]]:
        """Differentiate the log density at some points twice.

        :param points: of equal weights.
        :param second: a :class:`~pyro_ngvi.estimators.hessian.Hessian`.
        :return: gradients, and by site the sums of the curvatures of draws that are kept.
        """
        found, totals = [], []
        for some in self.passes(points):
            one, curvatures = self._second_order(here, some, second)
            totals.append({site: c.total(one.kept) for site, c in curvatures.items()})
            found.append(one._replace(params=self._without_dropped(here, some, one)))
        sites = totals[0]
        sums = {site: functools.reduce(plus, [one[site] for one in totals]) for site in sites}
        return _joined(found), sums

    def of_mixture(self, here: Families, site: str, points: PointsBySite) -> Averages:
        return of_mixture(self, here, site, points)

    @torch.no_grad()
    def expectations(self, here: Families) -> Expectations:
        terms = find_terms(terms_of, self.density.of_one, here)
        return expectations(terms, list(here.values()), TorchCalculus(), [])

    def passes(self, points: PointsBySite) -> list[PointsBySite]:
        """Split points, with as many at once as fit."""
        at_once = self.plan.draws_per_pass(self.density.args, self.density.kwargs)
        starts = range(0, len(points.weights), at_once)
        return [points.some(slice(start, start + at_once)) for start in starts]

    def _once(self, here: Families, points: PointsBySite) -> Gradients:
        one = self._first_order(here, points)
        return one._replace(params=self._without_dropped(here, points, one))

    def _without_dropped(self, here: Families, points: PointsBySite, one: Gradients) -> ByLeaf:
        """Return gradients of model parameters from the draws that are kept."""
        if self.leaves is not None or not one.params:
            return one.params
        while count := int(one.kept.sum()):
            if count == len(one.kept):
                return one.params
            # The gradient of a sum with a draw in it that is not finite is not either.
            total, points = points.weights.sum(), points.some(one.kept)
            points = points._replace(weights=points.weights * (total / points.weights.sum()))
            one = self._first_order(here, points)
        # None for a parameter; of a factor of a site the optimiser is to see that it has none.
        leaves = [leaf for leaf, _ in one.params if coordinate_of(leaf) is not None]
        return [(leaf, torch.full_like(leaf, torch.nan)) for leaf in leaves]

    def _first_order(self, here: Families, points: PointsBySite) -> Gradients:
        density, latents, weights = self.density, points.of(here), points.weights
        if self.leaves is not None:
            values, by_site, found = values_and_gradients(density, latents, weights, self.leaves)
            params = list(zip(self.leaves, found, strict=True))
        else:
            latents = {site: v.detach().requires_grad_() for site, v in latents.items()}
            with torch.enable_grad():
                graph = density(latents, is_first_order=True)
                leaves = leaves_of(graph, latents)
                found = gradients_of((weights * graph).sum(), [*latents.values(), *leaves])
            values, by_site = graph.detach(), dict(zip(latents, found, strict=False))
            params = list(zip(leaves, found[len(latents) :], strict=True))
        return Gradients(values, by_site, finite_draws(values, *by_site.values()), params)

    def _second_order(
        self, here: Families, points: PointsBySite, second: Any
    ) -> tuple[Gradients, dict[str, Curvature]]:
        density, weight = self.density, points.weights[0]
        latents = {site: v.detach().requires_grad_() for site, v in points.of(here).items()}
        state = NoiseState() if density.facts.is_stochastic else None
        with torch.enable_grad():
            parts = second.parts(density, latents)
            leaves = leaves_of(parts.values, latents) if self.leaves is None else self.leaves
            inputs, once = [*latents.values(), *leaves], ()
            if parts.once is not None:
                once = gradients_of(parts.once.sum(), inputs, retain_graph=True)
            twice = gradients_of(parts.twice.sum(), inputs, create_graph=True)
            gradients = [weight * g.detach() for g in twice]
            if once:
                gradients = [g + weight * more for g, more in zip(gradients, once, strict=True)]
            curvatures = {}
            for index, (site, theta) in enumerate(latents.items()):
                products = self._products(second, latents, site, twice[index], state)
                curvatures[site] = second.curvature(parts, products, theta, here[site])
        values, by_site = parts.values.detach(), dict(zip(latents, gradients, strict=False))
        kept = finite_draws(values, *by_site.values())
        for curvature in curvatures.values():
            kept = kept & curvature.finite()
        params = list(zip(leaves, gradients[len(latents) :], strict=True))
        return Gradients(values, by_site, kept, params), curvatures

    def _products(
        self, second: Any, latents: Arrays, site: str, gradient: Tensor, state: NoiseState | None
    ) -> Callable[..., Tensor]:
        """Return products with the Hessian of what is differentiated twice, for one site."""
        density, plan = self.density, self.plan
        theta = latents[site]

        def again(theta: Tensor) -> Tensor:
            at = {name: v.detach() for name, v in latents.items()} | {site: theta}
            with contextlib.nullcontext() if state is None else state.again():
                return second.parts(density, at).twice

        size = plan.bytes(density.args, density.kwargs) * len(theta)
        of = Slope(gradient, theta, again, size)

        def products(family: Family, *, diagonal: bool = False) -> Tensor:
            if diagonal:
                return plan.products.diagonal(of)
            return plan.products(family.hessian_probes(), of)

        return products


def _joined(parts: list[Gradients]) -> Gradients:
    """Return what is known of the draws of all passes."""
    if len(parts) == 1:
        return parts[0]
    return Gradients(
        torch.cat([one.values for one in parts]),
        {site: torch.cat([one.by_site[site] for one in parts]) for site in parts[0].by_site},
        torch.cat([one.kept for one in parts]),
        sums_by_leaf(pair for one in parts for pair in one.params),
    )


def values_and_gradients(
    density: LogDensity, latents: Arrays, weights: Tensor, leaves: Sequence[Tensor] = ()
) -> tuple[Tensor, Arrays, tuple[Tensor, ...]]:
    """Return a log density at ``K`` draws, and the gradients of its weighted sum.

    :return: values, gradients by site, and those of the leaves.
    """

    def first_order(weights: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
        at = {s: r.detach().requires_grad_() for s, r in zip(latents, rows, strict=True)}
        with torch.enable_grad():
            values = density(at, is_first_order=True)
            gradients = gradients_of((weights * values).sum(), [*at.values(), *leaves])
        return (values.detach(), *gradients)

    values, *found = density.replayed(first_order, weights, *latents.values(), leaves=leaves)
    by_site = dict(zip(latents, found, strict=False))
    return values, by_site, tuple(found[len(latents) :])
