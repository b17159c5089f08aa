"""Latents inside a subsampled plate; see :mod:`ngvi.guide.visits`."""

from __future__ import annotations

import copy
from contextvars import ContextVar
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions.util import sum_rightmost
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.constraints import Constraint

from ngvi.families.base import Family
from ngvi.guide import visits
from ngvi.guide.visits import VisitedFamily, refuse_bounds
from ngvi.latents.subsampling import SubsampledLatent

#: Whether several workers visit all elements between them, and gradients are summed over workers.
SHARED_OUT: ContextVar[bool] = ContextVar("SHARED_OUT", default=False)


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

    ppl, delta = pyro, dist.Delta
    biject_to, sum_rightmost = staticmethod(biject_to), staticmethod(sum_rightmost)
    enters_whole_plates = True

    def _take(self, value: Tensor, indices: Tensor, axis: int) -> Tensor:
        return value.index_select(axis, indices.to(value.device))

    def _counts(self, size: int, visited: Tensor, each: float, like: Tensor) -> Tensor:
        weights = like.new_full((len(visited),), each)
        return like.new_zeros(size).index_add(0, visited.to(like.device), weights)

    def of(self, family: Family) -> Any:
        if SHARED_OUT.get():  # an element's own term comes in the sum once: nothing to divide
            return VisitedFamily(family, self.weights(family), family)
        return super().of(family)

    def _is_masked(self) -> bool:
        return poutine.get_mask() is False

    one_support = staticmethod(one_support)


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
