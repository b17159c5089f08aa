"""The log density at many draws: values, gradients and curvature, as many in a pass as fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from ngvi.estimators.kinds import Arrays, Families, Points
from pyro_ngvi.estimators.moments import Estimate, concatenated, finite_draws, nowhere, plus
from pyro_ngvi.families.base import Family
from pyro_ngvi.families.coordinates import coordinate_of
from pyro_ngvi.host import Reads, likely_all
from pyro_ngvi.tracing import LogDensity, NoiseState


class Curvature(Protocol):
    """An estimate of the Hessian at each of ``K`` draws, as far as a family needs it."""

    def finite(self) -> Tensor:
        """Which draws have a finite one, booleans of shape ``(K,)``."""

    def total(self, kept: Tensor | None) -> Any:
        """The sum over the draws that are ``kept``, as the family assembles it; None are all."""


class Parts(NamedTuple):
    """A log density with its graph, shape ``(K,)``, and what its curvature is made of."""

    values: Tensor
    smooth: Tensor  #: what is differentiated twice: all of the values, or a part
    rest: Any = None
    plain: Tensor | None = None  #: the values without the smooth part, to be differentiated alone
    between: Sequence[Tensor] = ()  #: tensors for which ``plain`` is differentiated as well
    #: The gradients of ``plain``, for one site's draws and for what is ``between``.
    slopes: tuple[Tensor, Sequence[Tensor]] | None = None


class SecondOrder(Protocol):
    """How the curvature at a draw is found."""

    def parts(self, density: LogDensity, latents: Arrays) -> Parts:
        """The log density at some draws."""

    def curvature(self, parts: Parts, products: Callable, theta: Tensor, q: Family) -> Curvature:
        """One site's curvature at the same draws.

        :param products: gives the products of the Hessian of ``parts.smooth`` with a family's
            probes, or its ``diagonal``.
        """


@dataclasses.dataclass
class Evaluated:
    """What is known of ``N`` draws.

    :ivar values: the log density at each, shape ``(N,)``.
    :ivar gradients: of the log density times the draws' weights, by site, shapes ``(N, d)``.
    :ivar kept: which draws have nothing in them that is not finite, shape ``(N,)``.
    :ivar count: how many these are, a number that is read when it is wanted.
    :ivar hessians: the sums of the curvatures of those that are kept, by site.
    :ivar ordinary: the weighted sum of the gradients for each ordinary parameter.
    """

    values: Tensor
    gradients: Arrays
    kept: Tensor
    hessians: dict[str, Any]
    ordinary: list[tuple[Tensor, Tensor]]
    count: Callable[[], int]

    @property
    def num_kept(self) -> int:
        """The number of draws that are kept."""
        return self.count()

    @property
    def some_kept(self) -> Tensor | None:
        """Which are kept, None if all are."""
        return None if self.num_kept == len(self.kept) else self.kept

    def num_dropped(self) -> int:
        """The number of the others."""
        return len(self.kept) - self.num_kept


@dataclasses.dataclass
class Evaluator:
    """Runs a log density.

    :param plan: how many draws share a pass, and which way of differentiating works.
    :param leaves: the ordinary parameters; None finds them, and leaves draws out of their
        gradients that are not finite.
    :param tell: is told of the first draws, their values and which of these count, before anything
        is read.
    :ivar reads: what is read together.
    """

    density: LogDensity
    plan: Any
    leaves: list[Tensor] | None = None
    tell: Callable[[Points, Tensor, Tensor], None] | None = None
    reads: Reads = dataclasses.field(default_factory=Reads)

    def __call__(
        self,
        here: Families,
        points: Points,
        second: SecondOrder | None = None,
        *,
        weighted: bool = False,
    ) -> Evaluated:
        """Differentiate the log density at some points once or twice.

        :param second: how to differentiate twice.
        :param weighted: whether gradients are multiplied by the weights; else these are one.
        """
        found: list[_Pass] = []
        counts = []
        hessians: dict[str, Any] = {}
        ordinary: dict[int, tuple[Tensor, Tensor]] = {}
        at_once = self.plan.draws_per_pass(self.density.args, self.density.kwargs)
        for start in range(0, len(points.weights), at_once):
            some = points.some(slice(start, start + at_once))
            one = self._pass(here, some, second, weighted)
            found.append(one)
            counts.append(self._counted(one.kept))
            if at_once >= len(points.weights):
                self.told(points, one.values, one.kept)
            if one.curvatures:
                some_kept = None if counts[-1]() == len(one.kept) else one.kept
            for site, curvature in one.curvatures.items():
                total = curvature.total(some_kept)
                if site in hessians:
                    total = plus(hessians[site], total)
                hessians[site] = total
            if self.leaves is None and one.ordinary:
                one = self._without_dropped(here, some, one, weighted, counts[-1]())
            for leaf, gradient in one.ordinary:
                if id(leaf) in ordinary:
                    gradient = ordinary[id(leaf)][1] + gradient
                ordinary[id(leaf)] = leaf, gradient
        values = concatenated([one.values for one in found])
        kept = concatenated([one.kept for one in found])
        self.told(points, values, kept)
        return Evaluated(
            values,
            {site: concatenated([one.gradients[site] for one in found]) for site in here},
            kept,
            hessians,
            list(ordinary.values()),
            lambda: sum(count() for count in counts),
        )

    def _counted(self, kept: Tensor) -> Callable[[], int]:
        """How many are kept: all of them, where that is taken to hold."""
        number = self.reads.later(kept.sum())

        def read() -> int:
            return int(number()[0])

        return lambda: len(kept) if likely_all(kept, read) else read()

    def told(self, points: Points, values: Tensor, kept: Tensor) -> None:
        """Tell of draws, if they are the first."""
        if self.tell is not None:
            self.tell(points, values, kept)
            self.tell = None

    def _without_dropped(
        self, here: Families, points: Points, one: _Pass, weighted: bool, count: int
    ) -> _Pass:
        """The pass of the draws that are kept, for gradients of ordinary parameters."""
        while 0 < count < len(one.kept):
            # The gradient of a sum with a draw in it that is not finite is not either.
            points = points.some(one.kept)
            one = self._pass(here, points, None, weighted)
            count = int(one.kept.sum())
        return one if count else one._replace(ordinary=_of_no_draws(one.ordinary))

    def _pass(
        self, here: Families, points: Points, second: SecondOrder | None, weighted: bool
    ) -> _Pass:
        density, plan = self.density, self.plan
        latents = {site: v.detach().requires_grad_() for site, v in points.of(here).items()}
        state = NoiseState() if density.facts.is_stochastic else None
        with torch.enable_grad():
            if second is None:
                values = density(latents, is_first_order=True)
                parts = Parts(values, values)
            else:
                parts = second.parts(density, latents)
            leaves = self.leaves
            if leaves is None:
                leaves = ordinary_leaves(parts.values, latents)
            total = (points.weights * parts.values if weighted else parts.values).sum()
            keep = second is not None
            is_whole = keep and parts.smooth is parts.values  # all is differentiated twice
            inputs = [*latents.values(), *leaves]
            if parts.plain is None:
                gradients = gradients_of(total, inputs, is_whole, keep)
                plain, smooth = (), gradients
                if keep and not is_whole:
                    smooth = gradients_of(parts.smooth.sum(), inputs[: len(latents)], True)
            else:
                of_plain = [*inputs, *parts.between]
                plain = gradients_of(parts.plain.sum(), of_plain, False, True)
                smooth = gradients_of(parts.smooth.sum(), inputs, True)
                gradients = tuple(a + b.detach() for a, b in zip(plain, smooth, strict=False))
            by_site = dict(zip(latents, gradients, strict=False))
            curvatures = {}
            bytes_per_product = plan.bytes(density.args, density.kwargs) * len(parts.values)
            for index, (site, theta) in enumerate(latents.items() if keep else ()):
                gradient = smooth[index]
                if plain:
                    parts = parts._replace(slopes=(plain[index], plain[len(inputs) :]))

                def again(theta: Tensor, site: str = site) -> Tensor:
                    at = {name: v.detach() for name, v in latents.items()} | {site: theta}
                    if state is None:
                        return second.parts(density, at).smooth
                    with state.again():
                        return second.parts(density, at).smooth

                def products(
                    family: Family,
                    gradient: Tensor = gradient,
                    at: Tensor = theta,
                    f: Callable = again,
                    *,
                    diagonal: bool = False,
                ) -> Tensor:
                    size = {"bytes_per_product": bytes_per_product}
                    if diagonal:
                        return plan.products.diagonal(gradient, at, f, **size)
                    return plan.products(gradient, at, family.hessian_probes(), f, **size)

                curvatures[site] = second.curvature(parts, products, theta, here[site])
        values = parts.values.detach()
        by_site = {site: gradient.detach() for site, gradient in by_site.items()}
        kept = finite_draws(values, *by_site.values())
        for curvature in curvatures.values():
            kept = kept & curvature.finite()
        of_leaves = [g.detach() for g in gradients[len(latents) :]]
        return _Pass(values, by_site, curvatures, kept, list(zip(leaves, of_leaves, strict=True)))


class _Pass(NamedTuple):
    """As :class:`Evaluated`, of the draws of one pass."""

    values: Tensor
    gradients: Arrays
    curvatures: dict[str, Curvature]
    kept: Tensor
    ordinary: list[tuple[Tensor, Tensor]]


def _of_no_draws(ordinary: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """None for a parameter; of a conjugate site the optimiser is to see that it has none."""
    leaves = [leaf for leaf, _ in ordinary if coordinate_of(leaf) is not None]
    return [(leaf, torch.full_like(leaf, torch.nan)) for leaf in leaves]


class FromGradients:
    """An estimator that needs the gradients at all draws, and no more.

    :cvar weighted: whether the points' weights count; else all draws count alike.
    """

    weighted: ClassVar[bool]

    def __call__(self, evaluate: Evaluator, here: Families, points: Points) -> Estimate:
        found = evaluate(here, points, weighted=self.weighted)
        nothing = not self.weighted and not found.num_kept
        directions = {
            site: nowhere(family) if nothing else self.direction(site, family, found, points)
            for site, family in here.items()
        }
        ordinary = found.ordinary
        if not self.weighted:
            ordinary = [(leaf, gradient / found.num_kept) for leaf, gradient in ordinary]
        return Estimate(directions, found.values, found.kept, found.num_dropped, ordinary)

    def direction(self, site: str, family: Family, found: Evaluated, points: Points) -> Family:
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


def gradients_of(
    total: Tensor, leaves: list[Tensor], create_graph: bool, retain_graph: bool | None = None
) -> tuple[Tensor, ...]:
    """The gradients of a scalar, zero where there are none."""
    if not total.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    return torch.autograd.grad(
        total,
        leaves,
        create_graph=create_graph,
        retain_graph=create_graph if retain_graph is None else retain_graph,
        materialize_grads=True,
    )


def ordinary_leaves(values: Tensor, latents: Arrays) -> list[Tensor]:
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
