"""Latents inside a subsampled plate; see :mod:`ngvi.guide.subsampled_latents`."""

from __future__ import annotations

import copy
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import biject_to
from torch.distributions.constraints import Constraint

from ngvi.guide import subsampled_latents as shared
from ngvi.guide.subsampled_latents import first_bound
from ngvi.latents.subsampling import SubsampledLatent


def one_support(support: Constraint, axes: list[int], site: str) -> Constraint:
    """See :class:`ngvi.guide.subsampled_latents.Minibatch`."""
    if not axes:
        return support
    narrowed = copy.copy(support)
    for name, value in list(vars(support).items()):
        if isinstance(value, Constraint):
            setattr(narrowed, name, one_support(value, axes, site))
        elif isinstance(value, Tensor):
            setattr(narrowed, name, first_bound(value, axes, site))
    return narrowed


class Minibatch(shared.Minibatch):
    """The elements that a minibatch of Pyro's has."""

    ppl, dist, biject_to, enters_whole_plates = pyro, dist, biject_to, True
    get_mask, one_support = staticmethod(poutine.get_mask), staticmethod(one_support)

    @staticmethod
    def _indices_of(plate: Any) -> Tensor:
        is_plate = isinstance(plate, pyro.plate)
        return torch.as_tensor(plate.indices) if is_plate else torch.arange(int(plate.size))

    @staticmethod
    def _take(value: Tensor, indices: Tensor, axis: int) -> Tensor:
        return value.index_select(axis, indices.to(value.device))

    @staticmethod
    def _counts(size: int, indices: Tensor, each: float, like: Tensor) -> Tensor:
        weights = like.new_full((len(indices),), each)
        return like.new_zeros(size).index_add(0, indices.to(like.device), weights)


def full_shapes(
    shapes: dict[str, torch.Size], trace: poutine.Trace, local: list[SubsampledLatent]
) -> dict[str, torch.Size]:
    """Shapes of all elements.

    :param shapes: of unconstrained values, by site.
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
