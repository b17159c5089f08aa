"""Expectations of single terms; see :class:`ngvi.estimators.table.Quadrature`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngvi.estimators.additive_terms import AdditiveTerms, NotAdditiveError, Term, evaluate
from ngvi.estimators.additivity import check_paths, check_smooth
from ngvi.estimators.nodes import (
    NodeSums,
    PredictorCovariance,
    TermMoments,
    halved_nodes,
    max_halvings,
)
from ngvi.estimators.options import DEFAULTS
from ngvi.estimators.points import Families, map_tree
from ngvi.estimators.quadrature import Integrand, Pull, Push, find_terms
from pyro_ngvi.estimators.moments import gradients_of, leaves_of
from pyro_ngvi.tracing import LogDensity
from pyro_ngvi.tracing.additive_terms import terms_of
from pyro_ngvi.tracing.messengers import quiet

#: Numbers of a term at all nodes that are computed together.
NUMBERS_AT_ONCE = 2**18
#: How far an affine function is followed, in units of a direction: so much less is what its value
#: at the start is rounded to than its change.
FAR = 2.0**30


def why_not_additive(density: LogDensity) -> Exception | None:
    """Return why a log density is no sum of smooth terms, or None."""
    here = {site: family.detach() for site, family in density.posteriors.items()}
    latents = {site: family.mean[None].clone().requires_grad_() for site, family in here.items()}
    try:
        with torch.enable_grad():
            if leaves_of(density(latents), latents):
                return NotAdditiveError("the model has parameters of its own")
        terms = find_terms(terms_of, density.of_one, here)
        with quiet():  # at some of the draws a distribution may have no valid parameters
            _check_values(terms, density, here)
        check_paths(terms, list(here.values()), TorchCalculus())
        check_smooth(terms, list(here.values()), TorchCalculus())
    except Exception as error:  # noqa: BLE001  a model may do what this cannot follow
        return error
    return None


def _check_values(terms: AdditiveTerms, density: LogDensity, here: Families) -> None:
    """Refuse terms that are not the density elsewhere: a run shows one way through the model.

    :raises NotAdditiveError: if they differ at one of a few draws.
    """
    rng = np.random.default_rng(0)
    for _ in range(DEFAULTS.num_compared):
        latents = {}
        for site, family in here.items():
            noise = torch.as_tensor(rng.standard_normal((1, family.dim))).to(family.mean)
            latents[site] = family.sample(noise)[0]
        known = dict(zip(map(id, terms.latents), latents.values(), strict=True))
        found, wanted = evaluate([terms.result], known)[0], density.of_one(latents)
        same = DEFAULTS.same
        if not torch.isclose(found, wanted, rtol=same, atol=same, equal_nan=True):
            raise NotAdditiveError("it takes another branch at other latents")


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
            # Torch's way forward compiles decompositions first, for a third of a second. What is
            # affine has the slope of any two points; far apart its size there does not count.
            there = [vector + FAR * row for vector, row in zip(at, rows, strict=True)]
            changed = zip(torch.func.vmap(whole)(*there), values, strict=True)
            slopes = (torch.where(here.isfinite(), (to - here) / FAR, 0.0) for to, here in changed)
            return [slope.movedim(0, -1) for slope in slopes]

        def pull(changes: list[Tensor]) -> list[Tensor]:
            return list(torch.func.vmap(back, in_dims=-1)(tuple(changes)))

        return list(values), push, pull

    def value_and_gradient(
        self, function: Callable[[list[Tensor]], Tensor], at: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        with torch.enable_grad():  # torch.func would import torch's compiler, for a second
            at = [one.detach().requires_grad_() for one in at]
            value = function(at)
            return value.detach(), list(gradients_of(value, at))

    def means(self, integrands: list[Integrand]) -> list[TermMoments]:
        eps = torch.finfo(integrands[0].means[0].dtype).eps
        sums: dict[int, NodeSums] = {}
        sizes = [(math.prod(one.term.node.shape), len(one.means)) for one in integrands]
        waiting, halvings = list(range(len(integrands))), 0
        while waiting:
            for i in waiting:
                sums[i] = _sums(*integrands[i], halvings)
            waiting = [i for i in waiting if halvings < max_halvings(*sizes[i])]
            misses = [sums[i].misses(integrands[i].covariance, eps, torch) for i in waiting]
            # Python waits once for all terms together.
            found = torch.stack(misses).tolist() if misses else []
            waiting = [i for i, is_missed in zip(waiting, found, strict=True) if is_missed]
            halvings += 1
        return [one.mean() for one in sums.values()]

    def compiled(self, function: Callable) -> Callable:
        return function

    def numpy(self, array: Tensor) -> np.ndarray:
        return array.detach().cpu().numpy()

    def line(
        self, terms: Sequence[Term], centres: list[list[Tensor]]
    ) -> Callable[[np.ndarray, list[np.ndarray]], tuple[np.ndarray, np.ndarray]]:
        shapes = [term.node.shape for term in terms]
        sizes = [math.prod(shape) for shape in shapes]

        def by_term(rows: np.ndarray) -> list[Tensor]:
            parts = torch.as_tensor(rows).to(centres[0][0]).split(sizes, -1)
            pairs = zip(parts, shapes, strict=True)
            return [part.reshape((*rows.shape[:-1], *shape)) for part, shape in pairs]

        def at(t: np.ndarray, half: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
            halves = list(zip(*map(by_term, half), strict=True))
            found = list(map(_along, terms, centres, halves, by_term(t)))
            values, slopes = (torch.cat(parts, -1) for parts in zip(*found, strict=True))
            return values.double().cpu().numpy(), slopes.double().cpu().numpy()

        return at


def _along(
    term: Term, centre: list[Tensor], half: tuple[Tensor, ...], t: Tensor
) -> tuple[Tensor, Tensor]:
    """Return a term and its derivative at ``centre + t half``, a row for each of ``t``."""
    places = [one + t * step for one, step in zip(centre, half, strict=True)]
    value, slopes, _ = derivatives(of_shape(term, t.shape), places, twice=False)
    slope = sum(part * step for part, step in zip(slopes, half, strict=True))
    value, slope = (part.expand(t.shape).reshape(len(t), -1) for part in (value, slope))
    return value, slope


def _sums(
    term: Term, means: list[Tensor], covariance: PredictorCovariance, halvings: int
) -> NodeSums:
    shape, dim = term.node.shape, len(means)
    rows = torch.as_tensor(halved_nodes(dim, halvings)).to(means[0])

    def at_some(noise: Tensor) -> NodeSums:
        columns = noise.mT.reshape(dim, -1, *[1] * len(shape))
        value = of_shape(term, (len(noise), *shape))
        found = derivatives(value, covariance.at(means, columns))
        return NodeSums.at(noise, found, means, covariance, torch)

    added = functools.partial(map_tree, torch.add)
    some = rows.split(max(1, NUMBERS_AT_ONCE // max(1, math.prod(shape))))
    return functools.reduce(added, map(at_some, some))


def of_shape(term: Term, shape: tuple[int, ...]) -> Callable[[list[Tensor]], Tensor]:
    """Return a term of predictors of this shape, to which constants are expanded.

    Some operations do not broadcast.
    """

    def expanded(constant: Any) -> Tensor:
        return torch.as_tensor(constant).expand(shape)

    return functools.partial(term.value, constant=expanded)


@torch.enable_grad()
def derivatives(
    function: Callable[[list[Tensor]], Tensor], at: list[Tensor], *, twice: bool = True
) -> TermMoments:
    """Differentiate a function that goes element by element."""
    at = [one.detach().requires_grad_() for one in at]
    value = function(at)
    first = gradients_of(value.sum(), at, create_graph=twice)
    second: list[Tensor] = []
    for index in range(len(at) if twice else 0):
        second += gradients_of(first[index].sum(), at[index:], retain_graph=True)
    # Beside numbers of double precision they may have become wider.
    value, *parts = (part.detach().to(at[0]) for part in (value, *first, *second))
    return TermMoments(value, parts[: len(at)], parts[len(at) :])
