"""Expectations of single terms; see :class:`ngvi.estimators.Quadrature`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ngvi import estimators
from ngvi.estimators import Families, Points, log_q
from ngvi.page import page
from ngvi.quadrature import (
    DISTANCE,
    MISSED,
    OfNodes,
    OfTerm,
    check_smooth,
    expectations,
    max_halvings,
    nodes,
    pairs,
)
from ngvi.terms import NotASumError, Sum, Term, evaluate
from pyro_ngvi.curvature.evaluate import Evaluator, ordinary_leaves
from pyro_ngvi.curvature.moments import Estimate, nowhere
from pyro_ngvi.tracing import LogDensity
from pyro_ngvi.tracing.terms import terms_of

#: Draws at which the sum of the terms is compared with the density, and up to which part of it or
#: nats they are the same: rounding is less.
NUM_CHECKED, SAME = 3, 1e-2
#: Numbers of a term at all nodes that are computed together.
NUMBERS_AT_ONCE = 2**18


@page(estimators.Quadrature)
@dataclasses.dataclass(frozen=True)
class Quadrature:
    """The terms are found by one run of the model at every call."""

    @torch.no_grad()
    def __call__(self, evaluate: Evaluator, here: Families, points: Points) -> Estimate:
        terms = find_terms(evaluate.density, here)
        value, gradient, hessian = expectations(terms, list(here.values()), TorchCalculus())
        is_finite = bool(torch.isfinite(value + gradient.sum() + hessian.sum()))
        parts = estimators.split_hessian(here, gradient, hessian)
        directions = {
            site: family.bonnet_price(*part) if is_finite else nowhere(family)
            for (site, family), part in zip(here.items(), parts, strict=True)
        }
        entropy = sum(family.entropy() for family in here.values())
        # Values at draws without their noise: minus log q they are the bound, each of them.
        values = value + entropy + log_q(here, points.noise)
        kept = torch.full(values.shape, is_finite, device=values.device)
        num_dropped = 0 if is_finite else len(values)
        return Estimate(directions, values, kept, num_dropped, [])


def find_terms(density: LogDensity, here: Families) -> Sum:
    """Those of a log density.

    :raises NotASumError: naming an operation, if it is no sum of such terms.
    """

    def of_vectors(*vectors: Tensor) -> Tensor:
        return density.of_one(dict(zip(here, vectors, strict=True)))

    found = terms_of(of_vectors, [family.mean for family in here.values()])
    found.check_size(sum(family.dim for family in here.values()))
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
        _check_values(terms, density, here)
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
    """See :class:`ngvi.quadrature.Calculus`."""

    xp = torch

    def jacobians(
        self, function: Callable[..., list[Tensor]], at: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        at = [vector.detach() for vector in at]
        sizes = [len(vector) for vector in at]
        identity = torch.eye(sum(sizes), dtype=at[0].dtype, device=at[0].device)

        def along(vector: Tensor) -> tuple[Tensor, ...]:
            def whole(*vectors: Tensor) -> tuple[Tensor, ...]:
                return tuple(function(*vectors))

            return torch.func.jvp(whole, tuple(at), tuple(vector.split(sizes)))[1]

        slopes = torch.func.vmap(along, out_dims=-1)(identity)
        return function(*at), list(slopes)

    def value_and_gradient(
        self, function: Callable[[list[Tensor]], Tensor], at: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        gradient, value = torch.func.grad_and_value(function)(at)
        return value, gradient

    def mean(self, term: Term, means: list[Tensor], factor: list[list[Tensor]]) -> OfTerm:
        points, weights = (torch.as_tensor(part).to(means[0]) for part in nodes(len(means)))

        def at(noise: Tensor) -> OfTerm:
            roots = [
                mean + sum(part * noise[k] for k, part in enumerate(row))
                for mean, row in zip(means, factor, strict=True)
            ]
            return derivatives(term.value, roots)

        if len(means) == 1:
            return self._mean_of_one(at, points, means[0], factor[0][0])

        def weighted(noise: Tensor, weight: Tensor) -> list[Tensor]:
            found = _flat(at(noise))
            is_finite = torch.isfinite(sum(found))
            return [torch.where(is_finite, weight * part, 0.0) for part in (*found, 1.0)]

        *sums, kept = self._sums(weighted, points, weights, size=math.prod(term.node.shape))
        sums = [total / kept for total in sums]
        count = len(means)
        return OfTerm(sums[0], sums[1 : 1 + count], sums[1 + count :])

    def _mean_of_one(
        self, at: Callable[[Tensor], OfTerm], points: Tensor, mean: Tensor, stddev: Tensor
    ) -> OfTerm:
        eps, size = torch.finfo(mean.dtype).eps, mean.numel()

        def summands(noise: Tensor) -> OfNodes:
            return OfNodes.at(noise[0], at(noise), mean, stddev, torch)

        for halvings in range(max_halvings(size) + 1):
            count = 2**halvings
            shifts = ((torch.arange(count).to(points) + 0.5) / count - 0.5) * DISTANCE
            spread = (points + shifts).reshape(-1, 1)
            sums = OfNodes(*self._sums(summands, spread, size=size))
            if not sums.missed(stddev, eps, torch) > MISSED:
                break
        return sums.mean()

    def _sums(
        self, function: Callable[..., Sequence[Tensor]], *rows: Tensor, size: int
    ) -> list[Tensor]:
        """Of a function of rows, of which some are computed together."""
        at_once, sums = max(1, NUMBERS_AT_ONCE // max(1, size)), None
        for some in zip(*(part.split(at_once) for part in rows), strict=True):
            # Beside numbers of double precision vmap may have widened them.
            found = torch.func.vmap(lambda *row: tuple(function(*row)))(*some)
            parts = [part.sum(0).to(rows[0]) for part in found]
            sums = parts if sums is None else [a + b for a, b in zip(sums, parts, strict=True)]
        return sums or []

    def line(
        self, term: Term, centre: list[Tensor], half: list[Tensor]
    ) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
        def at(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            steps = torch.as_tensor(t).to(centre[0])
            roots = [one + steps * step for one, step in zip(centre, half, strict=True)]
            value, *slopes = _flat(derivatives(term.value, roots, twice=False))
            slope = sum(part * step for part, step in zip(slopes, half, strict=True))
            return value.double().cpu().numpy(), slope.double().cpu().numpy()

        return at


def derivatives(
    function: Callable[[list[Tensor]], Tensor], at: list[Tensor], *, twice: bool = True
) -> OfTerm:
    """Of a function that goes element by element."""

    def along(one: Callable, index: int) -> Callable:
        # Reverse mode: forward mode's zero tangents are tensors that not every operation takes.
        return torch.func.grad(lambda *roots: one(*roots).sum(), argnums=index)

    def value(*roots: Tensor) -> Tensor:
        return function(roots)

    firsts = [along(value, index) for index in range(len(at))]
    seconds = [along(firsts[one], two) for one, two in pairs(len(at)) if twice]
    return OfTerm(value(*at), [each(*at) for each in firsts], [each(*at) for each in seconds])


def _flat(found: OfTerm) -> tuple[Tensor, ...]:
    return (found.value, *found.first, *found.second)
