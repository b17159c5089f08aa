"""Gradients, and averages over the draws that are finite."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ngvi.estimators.from_gradients import masked
from ngvi.estimators.points import Arrays, map_tree
from pyro_ngvi.families.base import Family

#: Gradients by the tensors that they are of.
ByLeaf = list[tuple[Tensor, Tensor]]


def finite_draws(*tensors: Tensor) -> Tensor:
    """Tell for each index of the leading axis whether everything is finite."""
    # One sum per draw, not one comparison per entry: NaN and infinities survive addition.
    return torch.isfinite(sum((t.detach() * 0).reshape(len(t), -1).sum(-1) for t in tensors))


def of_kept(values: Tensor, kept: Tensor) -> Tensor:
    """Return rows of draws, with zeros for those that are left out."""
    return masked(values, kept, torch)


def concatenated(parts: list[Tensor]) -> Tensor:
    """Join tensors one after another, without a copy of a single one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def plus(one: Any, other: Any) -> Any:
    """Return the sum of two totals of a ``Curvature``."""
    return one.plus(other) if hasattr(one, "plus") else map_tree(torch.add, one, other)


def sums_by_leaf(pairs: Iterable[tuple[Tensor, Tensor]]) -> ByLeaf:
    """Return the sum of the gradients of each tensor."""
    sums: dict[int, tuple[Tensor, Tensor]] = {}
    for leaf, gradient in pairs:
        if id(leaf) in sums:
            gradient = sums[id(leaf)][1] + gradient
        sums[id(leaf)] = leaf, gradient
    return list(sums.values())


def gradients_of(
    total: Tensor, leaves: list[Tensor], *, create_graph: bool = False, retain_graph: bool = False
) -> tuple[Tensor, ...]:
    """Return the gradients of a scalar, zero where there are none."""
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
    """Return the tensors besides the latents that ``values`` can be differentiated for."""
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


@torch.enable_grad()
def gradient_of(function: Callable[[Family], Tensor], family: Family) -> Family:
    """Differentiate a scalar function of a family by its coordinates."""
    q = family.detach().map(lambda value: value.clone().requires_grad_())
    names, leaves = zip(*q.coordinates().items(), strict=True)
    found = torch.autograd.grad(function(q), leaves, materialize_grads=True)
    return dataclasses.replace(q, **dict(zip(names, found, strict=True)))
