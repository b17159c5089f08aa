"""Latents inside a subsampled plate; see :mod:`ngvi.guide.visits`."""

from __future__ import annotations

import copy
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.util import sum_rightmost
from pyro.ops.provenance import extract_provenance
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.constraints import Constraint

from ngvi.guide import visits
from ngvi.guide.visits import log_q, refuse_bounds
from ngvi.structure.subsampling import SubsampledLatent
from pyro_ngvi.families.base import Family
from pyro_ngvi.guide.posterior import NaturalNormal


def one_support(support: Constraint, axes: list[int], site: str) -> Constraint:
    """See :meth:`ngvi.guide.visits.Visits.one_support`."""

    def narrow(bound: Tensor) -> Tensor:
        for axis in axes:
            if bound.dim() < -axis or bound.shape[axis] == 1:
                continue
            first = bound.detach().narrow(axis, 0, 1)
            if (bound != first).any():
                refuse_bounds(site)
            bound = first
        return bound

    if not axes:
        return support
    narrowed = copy.copy(support)
    for name, value in list(vars(support).items()):
        if isinstance(value, Constraint):
            setattr(narrowed, name, one_support(value, axes, site))
        elif isinstance(value, Tensor):
            setattr(narrowed, name, narrow(value))
    return narrowed


class Visits(visits.Visits):
    """Of Pyro."""

    xp, ppl, delta = torch, pyro, dist.Delta
    biject_to, sum_rightmost = staticmethod(biject_to), staticmethod(sum_rightmost)
    enters_whole_plates = True

    def _take(self, value: Tensor, indices: Tensor, axis: int) -> Tensor:
        return value.index_select(axis, indices.to(value.device))

    def _counts(self, size: int, visited: Tensor, each: float, like: Tensor) -> Tensor:
        weights = like.new_full((len(visited),), each)
        return like.new_zeros(size).index_add(0, visited.to(like.device), weights)

    def _is_masked(self) -> bool:
        return poutine.get_mask() is False

    one_support = staticmethod(one_support)


class VisitedNormal(NaturalNormal):
    """``N(mu, Sigma)`` with the estimate (1) as its ``log_prob``.

    :param family: the Gaussian, as :func:`ngvi.guide.visits.of_visits` returns it.
    :param weights: ``w`` of (1), shape ``(d,)``.
    :param whole: the Gaussian with its own coordinates.
    """

    def __init__(
        self,
        family: Family,
        weights: Tensor,
        sticking_the_landing: bool = False,
        batch_shape: tuple[int, ...] = (),
        whole: Family | None = None,
    ) -> None:
        self.weights, self.whole = weights, whole or family
        super().__init__(family, sticking_the_landing, batch_shape)

    def expand(self, batch_shape: tuple[int, ...], _instance: Any = None) -> VisitedNormal:
        landing = self.sticking_the_landing
        return VisitedNormal(self.family, self.weights, landing, batch_shape, self.whole)

    def log_prob(self, value: Tensor) -> Tensor:
        value, _ = extract_provenance(value)  # TraceGraph_ELBO wraps values
        if self._last_draw is None or value is not self._last_draw[0]:
            family = self.family.precondition()
            return log_q(torch, family, family.whiten(value), self.weights)
        _, noise, displaced = self._last_draw
        if self.sticking_the_landing:
            return log_q(torch, self.family.detach(), displaced, self.weights)
        return log_q(torch, self.family.precondition(), noise, self.weights)


def full_shapes(
    shapes: dict[str, torch.Size], trace: poutine.Trace, local: list[SubsampledLatent]
) -> dict[str, torch.Size]:
    """Shapes of all elements.

    :param shapes: of unconstrained values, by site.
    :param trace: of the model.
    :param local: the sites in subsampled plates.
    """
    full = {name: list(shape) for name, shape in shapes.items()}
    for site, _, axis, _, full_size in local:
        # Constraints change the event dimensions only, which are on the right.
        axis = axis + trace.nodes[site]["value"].dim() - len(shapes[site])
        full[site][axis] = full_size
    return {name: torch.Size(shape) for name, shape in full.items()}


def periodic_repeat(value: Tensor, shape: torch.Size) -> Tensor:
    """Elements of all plates: those of the first minibatch, again and again."""
    for axis, size in enumerate(shape):
        if value.shape[axis] != size:
            value = value.index_select(axis, torch.arange(size) % value.shape[axis])
    return value
