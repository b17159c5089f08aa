"""Expectations of single terms; see :class:`ngvi.estimators.kinds.Quadrature`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi.estimators import kinds as estimators
from ngvi.estimators.additive_terms import NotASumError, Sum, Term, evaluate
from ngvi.estimators.kinds import Families, Points, log_q
from ngvi.estimators.quadrature import (
    MISSED,
    OfNodes,
    OfTerm,
    Pull,
    Push,
    Spread,
    check_paths,
    check_smooth,
    expectations,
    max_halvings,
    nodes,
    num_probes,
)
from pyro_ngvi.estimators.evaluate import Evaluator, ordinary_leaves
from pyro_ngvi.estimators.moments import Estimate, nowhere
from pyro_ngvi.host import likely
from pyro_ngvi.tracing import LogDensity
from pyro_ngvi.tracing.messengers import quiet
from pyro_ngvi.tracing.terms import terms_of

#: Draws at which the sum of the terms is compared with the density, and up to which part of it or
#: nats they are the same: rounding is less.
NUM_CHECKED, SAME = 3, 1e-2
#: Numbers of a term at all nodes that are computed together.
NUMBERS_AT_ONCE = 2**18


@shared_doc(estimators.Quadrature)
@dataclasses.dataclass(frozen=True)
class Quadrature:
    """The terms are found by one run of the model at every call."""

    @torch.no_grad()
    def __call__(self, evaluate: Evaluator, here: Families, points: Points) -> Estimate:
        terms = find_terms(evaluate.density, here)
        found = expectations(terms, list(here.values()), TorchCalculus())
        entropy = sum(family.entropy() for family in here.values())
        # Values at draws without their noise: minus log q they are the bound, each of them.
        values = found.value + entropy + log_q(here, points.noise)
        kept = found.is_finite.expand(values.shape)
        evaluate.told(points, values, kept)
        is_finite = likely(found.is_finite)
        directions = {
            site: family.bonnet_price(*part) if is_finite else nowhere(family)
            for (site, family), part in zip(here.items(), found.parts, strict=True)
        }
        num_dropped = 0 if is_finite else len(values)
        return Estimate(directions, values, kept, lambda: num_dropped, [])


def find_terms(density: LogDensity, here: Families) -> Sum:
    """Those of a log density.

    :raises NotASumError: naming an operation, if it is no sum of such terms.
    """

    def of_vectors(*vectors: Tensor) -> Tensor:
        return density.of_one(dict(zip(here, vectors, strict=True)))

    found = terms_of(of_vectors, [family.mean for family in here.values()])
    found.check_size(sum(num_probes(family) for family in here.values()))
    return found


def unlike(density: LogDensity) -> Exception | None:
    """Why a log density is no sum of smooth terms, or None."""
    here = {site: family.detach() for site, family in density.posteriors.items()}
    latents = {site: family.mean[None].clone().requires_grad_() for site, family in here.items()}
    try:
        with torch.enable_grad():
            if ordinary_leaves(density(latents), latents):
                return NotASumError("the model has parameters of its own")
        terms = find_terms(density, here)
        with quiet():  # at some of the draws a distribution may have no valid parameters
            _check_values(terms, density, here)
        check_paths(terms, list(here.values()), TorchCalculus())
        check_smooth(terms, list(here.values()), TorchCalculus())
    except Exception as error:  # noqa: BLE001  a model may do what this cannot follow
        return error
    return None


def _check_values(terms: Sum, density: LogDensity, here: Families) -> None:
    """Refuse terms that are not the density elsewhere: a run shows one way through the model.

    :raises NotASumError: if they differ at one of a few draws.
    """
    rng = np.random.default_rng(0)
    for _ in range(NUM_CHECKED):
        latents = {}
        for site, family in here.items():
            noise = torch.as_tensor(rng.standard_normal((1, family.dim))).to(family.mean)
            latents[site] = family.sample(noise)[0]
        known = dict(zip(map(id, terms.latents), latents.values(), strict=True))
        found, wanted = evaluate([terms.result], known)[0], density.of_one(latents)
        if not torch.isclose(found, wanted, rtol=SAME, atol=SAME, equal_nan=True):
            raise NotASumError("it takes another way at other latents")


class TorchCalculus:
    """See :class:`ngvi.estimators.quadrature.Calculus`."""

    xp = torch

    def linear(
        self, function: Callable[..., list[Tensor]], at: list[Tensor]
    ) -> tuple[list[Tensor], Push, Pull]:
        at = [vector.detach() for vector in at]

        def whole(*vectors: Tensor) -> tuple[Tensor, ...]:
            return tuple(function(*vectors))

        values, back = torch.func.vjp(whole, *at)

        def push(rows: list[Tensor]) -> list[Tensor]:
            def along(*row: Tensor) -> tuple[Tensor, ...]:
                return torch.func.jvp(whole, tuple(at), row)[1]

            return list(torch.func.vmap(along, out_dims=-1)(*rows))

        def pull(changes: list[Tensor]) -> list[Tensor]:
            return list(torch.func.vmap(back, in_dims=-1)(tuple(changes)))

        return list(values), push, pull

    def value_and_gradient(
        self, function: Callable[[list[Tensor]], Tensor], at: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        gradient, value = torch.func.grad_and_value(function)(at)
        return value, gradient

    def mean(self, term: Term, means: list[Tensor], spread: Spread) -> OfTerm:
        points, distance = nodes(dim := len(means))
        eps, size = torch.finfo(means[0].dtype).eps, math.prod(term.node.shape)

        def at_some(noise: Tensor) -> OfNodes:
            def along(z: Tensor) -> tuple[Tensor, ...]:
                return _flat(derivatives(term.value, spread.at(means, z.unbind())))

            # Beside numbers of double precision vmap may have widened them.
            value, *parts = (part.to(noise) for part in torch.func.vmap(along)(noise))
            found = OfTerm(value, parts[:dim], parts[dim:])
            return OfNodes.at(noise, found, means, spread, torch)

        for halvings in range(max_halvings(size, dim) + 1):
            one = ((np.arange(2**halvings) + 0.5) / 2**halvings - 0.5) * distance
            shifts = np.stack(np.meshgrid(*[one] * dim), -1).reshape(-1, dim)
            rows = torch.as_tensor((points[:, None] + shifts).reshape(-1, dim)).to(means[0])
            some = rows.split(max(1, NUMBERS_AT_ONCE // max(1, size)))
            sums = functools.reduce(OfNodes.plus, map(at_some, some))
            if likely(~(sums.missed(spread, eps, torch) > MISSED)):
                break
        return sums.mean()

    def compiled(self, function: Callable) -> Callable:
        return function

    def numpy(self, array: Tensor) -> np.ndarray:
        return array.detach().cpu().numpy()

    def line(
        self, term: Term, centre: list[Tensor]
    ) -> Callable[[np.ndarray, list[np.ndarray]], tuple[np.ndarray, np.ndarray]]:
        def at(t: np.ndarray, half: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            steps = [torch.as_tensor(step).to(centre[0]) for step in half]
            places = torch.as_tensor(t).to(centre[0])
            roots = [one + places * step for one, step in zip(centre, steps, strict=True)]
            value, *slopes = _flat(derivatives(term.value, roots, twice=False))
            slope = sum(part * step for part, step in zip(slopes, steps, strict=True))
            return value.double().cpu().numpy(), slope.double().cpu().numpy()

        return at


def derivatives(
    function: Callable[[list[Tensor]], Tensor], at: list[Tensor], *, twice: bool = True
) -> OfTerm:
    """Of a function that goes element by element, which is run once for each root."""

    # Reverse mode: forward mode's zero tangents are tensors that not every operation takes.
    def total(*roots: Tensor) -> tuple[Tensor, Tensor]:
        value = function(list(roots))
        return value.sum(), value

    def gradient(*roots: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        everywhere = tuple(range(len(at)))
        first, (_, value) = torch.func.grad_and_value(total, everywhere, has_aux=True)(*roots)
        return first, value

    def one_of(index: int) -> Callable:
        def derivative(*roots: Tensor) -> tuple[Tensor, tuple[tuple[Tensor, ...], Tensor]]:
            first, value = gradient(*roots)
            return first[index].sum(), (first, value)

        return derivative

    if not twice:
        first, value = gradient(*at)
        return OfTerm(value, first, [])
    seconds: list[Tensor] = []
    for index in range(len(at)):
        others = tuple(range(index, len(at)))
        row, (first, value) = torch.func.grad(one_of(index), others, has_aux=True)(*at)
        seconds.extend(row)
    return OfTerm(value, first, seconds)


def _flat(found: OfTerm) -> tuple[Tensor, ...]:
    return (found.value, *found.first, *found.second)
