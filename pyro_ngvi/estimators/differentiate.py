"""The log density at many draws: values, gradients and curvature, as many in a pass as fit."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ngvi.estimators.points import Arrays, Families, PointsBySite
from pyro_ngvi.estimators.moments import Averages, concatenated, finite_draws, nowhere, plus
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.coordinates import coordinate_of
from pyro_ngvi.host import Reads, label
from pyro_ngvi.tracing import LogDensity, NoiseState

#: Gradients by the tensors that they are of.
ByLeaf = list[tuple[Tensor, Tensor]]


class Curvature(NamedTuple):
    """An estimate of the Hessian at each of ``K`` draws, as far as a family needs it."""

    #: Which draws have a finite one, booleans of shape ``(K,)``.
    finite: Callable[[], Tensor]
    #: The sum over the draws that are kept, as the family assembles it; None are all.
    total: Callable[[Tensor | None], Any]


class Parts(NamedTuple):
    """A log density with its graph, by how often it is differentiated."""

    once: Tensor | None  #: shape ``(K,)``
    twice: Tensor | None = None  #: likewise
    examples: Any = None  #: what is known of single examples

    @property
    def values(self) -> Tensor:
        """The log density, shape ``(K,)``."""
        if self.once is None or self.twice is None:
            return self.twice if self.once is None else self.once
        return self.once + self.twice


@dataclasses.dataclass
class Evaluated:
    """What is known of ``N`` draws.

    :ivar values: the log density at each, shape ``(N,)``.
    :ivar gradients: of the log density times the draws' weights, by site, shapes ``(N, d)``.
    :ivar kept: which draws have nothing in them that is not finite, shape ``(N,)``.
    :ivar count: how many these are, a number that is read when it is wanted.
    :ivar hessians: the sums of the curvatures of those that are kept, by site.
    :ivar params: the weighted sum of the gradients for each model parameter.
    """

    values: Tensor
    gradients: Arrays
    kept: Tensor
    count: Callable[[], int]
    hessians: dict[str, Any]
    params: ByLeaf

    @classmethod
    def joined(cls, parts: list[Evaluated]) -> Evaluated:
        """Of the draws of all."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        return cls(
            torch.cat([one.values for one in parts]),
            {site: torch.cat([one.gradients[site] for one in parts]) for site in first.gradients},
            torch.cat([one.kept for one in parts]),
            lambda: sum(one.count() for one in parts),
            {
                site: functools.reduce(plus, [p.hessians[site] for p in parts])
                for site in first.hessians
            },
            sums_by_leaf(pair for one in parts for pair in one.params),
        )

    @property
    def some_kept(self) -> Tensor | None:
        """Which are kept, None if all are."""
        return None if self.count() == len(self.kept) else self.kept

    def num_dropped(self) -> int:
        """The number of the others."""
        return len(self.kept) - self.count()


@dataclasses.dataclass
class Differentiator:
    """Runs a log density, and differentiates it.

    :param plan: how many draws share a pass, and which way of differentiating works.
    :param leaves: the model parameters; None finds them, and leaves draws out of their
        gradients that are not finite.
    :param listener: hears of the first draws, their values and which of these count, before
        anything is read.
    :ivar reads: what is read together.
    """

    density: LogDensity
    plan: Any
    leaves: list[Tensor] | None = None
    listener: Callable[[PointsBySite, Tensor, Tensor], None] | None = None
    reads: Reads = dataclasses.field(default_factory=Reads)

    def __call__(
        self, here: Families, points: PointsBySite, second: Any = None, *, weighted: bool = False
    ) -> Evaluated:
        """Differentiate the log density at some points once or twice.

        :param second: a :class:`~pyro_ngvi.estimators.hessian.Hessian`, which differentiates twice.
        :param weighted: whether gradients are multiplied by the weights; else these are one.
        """
        parts = list(self._parts_of(points))
        found = [self._evaluated(here, some, second, weighted, len(parts) == 1) for some in parts]
        whole = Evaluated.joined(found)
        self.report(points, whole.values, whole.kept)
        return whole

    def values(self, here: Families, points: PointsBySite) -> Tensor:
        """The log density at some points, without derivatives."""
        return concatenated([self.density(some.of(here)) for some in self._parts_of(points)])

    def report(self, points: PointsBySite, values: Tensor, kept: Tensor) -> None:
        """Let the listener hear of draws, if they are the first."""
        if self.listener is not None:
            self.listener(points, values, kept)
            self.listener = None

    def _parts_of(self, points: PointsBySite) -> Iterable[PointsBySite]:
        """As many at once as fit."""
        at_once = self.plan.draws_per_pass(self.density.args, self.density.kwargs)
        for start in range(0, len(points.weights), at_once):
            yield points.some(slice(start, start + at_once))

    def _evaluated(
        self, here: Families, points: PointsBySite, second: Any, weighted: bool, are_all: bool
    ) -> Evaluated:
        """The draws of one pass."""
        one = self._pass(here, points, second, weighted)
        number = self.reads.later(one.kept.sum())
        if are_all:
            self.report(points, one.values, one.kept)
        found = Evaluated(
            one.values, one.gradients, one.kept, lambda: int(number()[0]), {}, one.params
        )
        if one.curvatures:
            kept = found.some_kept
            found.hessians = {site: c.total(kept) for site, c in one.curvatures.items()}
        if self.leaves is None and one.params:
            found.params = self._without_dropped(here, points, one, weighted, found.count())
        return found

    def _without_dropped(
        self, here: Families, points: PointsBySite, one: _Pass, weighted: bool, count: int
    ) -> ByLeaf:
        """Gradients of model parameters from the draws that are kept."""
        while 0 < count < len(one.kept):
            # The gradient of a sum with a draw in it that is not finite is not either.
            points = points.some(one.kept)
            one = self._pass(here, points, None, weighted)
            count = int(one.kept.sum())
        if count:
            return one.params
        # None for a parameter; of a factor of a site the optimiser is to see that it has none.
        leaves = [leaf for leaf, _ in one.params if coordinate_of(leaf) is not None]
        return [(leaf, torch.full_like(leaf, torch.nan)) for leaf in leaves]

    def _pass(self, here: Families, points: PointsBySite, second: Any, weighted: bool) -> _Pass:
        density = self.density
        if second is None and self.leaves is not None:
            return self._first_order(here, points, weighted)
        latents = {site: v.detach().requires_grad_() for site, v in points.of(here).items()}
        state = NoiseState() if density.facts.is_stochastic else None
        with torch.enable_grad():
            if second is None:
                parts = Parts(density(latents, is_first_order=True))
            else:
                parts = second.parts(density, latents)
            values, leaves = parts.values, self.leaves
            if leaves is None:
                leaves = leaves_of(values, latents)
            inputs = [*latents.values(), *leaves]
            once = twice = ()
            if parts.once is not None:
                total = (points.weights * parts.once if weighted else parts.once).sum()
                once = gradients_of(total, inputs, retain_graph=second is not None)
            if parts.twice is not None:
                twice = gradients_of(parts.twice.sum(), inputs, create_graph=True)
            gradients = [g.detach() for g in (twice or once)]
            if once and twice:
                gradients = [g + more for g, more in zip(gradients, once, strict=True)]
            curvatures = {}
            for index, (site, theta) in enumerate(latents.items() if second else ()):
                products = self._products(second, latents, site, twice[index], state)
                curvatures[site] = second.curvature(parts, products, theta, here[site])
        by_site = dict(zip(latents, gradients, strict=False))
        kept = finite_draws(values, *by_site.values())
        for curvature in curvatures.values():
            kept = kept & curvature.finite()
        params = list(zip(leaves, gradients[len(latents) :], strict=True))
        return _Pass(values.detach(), by_site, kept, curvatures, params)

    def _first_order(self, here: Families, points: PointsBySite, weighted: bool) -> _Pass:
        weights = points.weights if weighted else torch.ones_like(points.weights)
        values, by_site, gradients = values_and_gradients(
            self.density, points.of(here), weights, self.leaves
        )
        params = list(zip(self.leaves, gradients, strict=True))
        return _Pass(values, by_site, finite_draws(values, *by_site.values()), {}, params)

    def _products(
        self, second: Any, latents: Arrays, site: str, gradient: Tensor, state: NoiseState | None
    ) -> Callable[..., Tensor]:
        """With the Hessian of what is differentiated twice, for one site."""
        density, plan = self.density, self.plan
        theta = latents[site]
        size = plan.bytes(density.args, density.kwargs) * len(theta)

        def again(theta: Tensor) -> Tensor:
            at = {name: v.detach() for name, v in latents.items()} | {site: theta}
            with contextlib.nullcontext() if state is None else state.again():
                return second.parts(density, at).twice

        def products(family: Family, *, diagonal: bool = False) -> Tensor:
            if diagonal:
                return plan.products.diagonal(gradient, theta, again, bytes_per_product=size)
            probes = family.hessian_probes()
            return plan.products(gradient, theta, probes, again, bytes_per_product=size)

        return products


class _Pass(NamedTuple):
    """As :class:`Evaluated`, of the draws of one pass."""

    values: Tensor
    gradients: Arrays
    kept: Tensor
    curvatures: dict[str, Curvature]
    params: ByLeaf


class FromGradients:
    """An estimator that needs the gradients at all draws, and no more.

    :cvar weighted: whether the points' weights count; else all draws count alike.
    """

    weighted: ClassVar[bool]

    def __call__(self, evaluate: Differentiator, here: Families, points: PointsBySite) -> Averages:
        found = evaluate(here, points, weighted=self.weighted)
        nothing = not self.weighted and not found.count()
        with label("direction"):
            directions = {
                site: nowhere(family) if nothing else self.direction(site, family, found, points)
                for site, family in here.items()
            }
        params = found.params
        if not self.weighted:
            params = [(leaf, gradient / found.count()) for leaf, gradient in params]
        return Averages(directions, found.values, found.kept, found.num_dropped, params)

    def direction(
        self, site: str, family: Family, found: Evaluated, points: PointsBySite
    ) -> Family:
        """One site's natural gradient, NaN where weighted draws are all left out."""
        raise NotImplementedError

    def of_groups(
        self, family: Family, weighted: Tensor, noise: Tensor, kept: Tensor, rows: Callable
    ) -> Tensor:
        """One site's natural gradients from many groups, not finite where a gradient is not.

        :param weighted: gradients times weights that sum to one, shape ``(groups, n, d)``.
        :param noise: shape ``(groups, n, d)``.
        :param kept: which draws are finite, shape ``(groups, n)``.
        :param rows: a function of a group to families, at each group; see ``EachRow`` of ``fit``.
        :return: all coordinates of a direction in a row, shape ``(groups, m)``.
        """
        raise NotImplementedError


def values_and_gradients(
    density: LogDensity, latents: Arrays, weights: Tensor, leaves: Sequence[Tensor] = ()
) -> tuple[Tensor, Arrays, tuple[Tensor, ...]]:
    """A log density at ``K`` draws, and the gradients of its weighted sum.

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


def gradients_of(
    total: Tensor, leaves: list[Tensor], *, create_graph: bool = False, retain_graph: bool = False
) -> tuple[Tensor, ...]:
    """The gradients of a scalar, zero where there are none."""
    if not total.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    return torch.autograd.grad(
        total,
        leaves,
        create_graph=create_graph,
        retain_graph=create_graph or retain_graph,
        materialize_grads=True,
    )


def leaves_of(values: Tensor, latents: Arrays) -> list[Tensor]:
    """The tensors besides the latents that ``values`` can be differentiated for."""
    known = {id(value) for value in latents.values()}
    leaves: dict[int, Tensor] = {}
    nodes, seen = [values.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.next_functions:
            nodes.extend(following for following, _ in node.next_functions)
            continue
        leaf = getattr(node, "variable", None)
        if leaf is not None and id(leaf) not in known:
            leaves[id(leaf)] = leaf
    return list(leaves.values())


def sums_by_leaf(pairs: Iterable[tuple[Tensor, Tensor]]) -> ByLeaf:
    """The sum of the gradients of each tensor."""
    sums: dict[int, tuple[Tensor, Tensor]] = {}
    for leaf, gradient in pairs:
        if id(leaf) in sums:
            gradient = sums[id(leaf)][1] + gradient
        sums[id(leaf)] = leaf, gradient
    return list(sums.values())
