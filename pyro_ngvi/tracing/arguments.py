"""Signatures, which tell arguments of a model from those of another kind, and what they hold."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves


def signature(tree: Any) -> Any:
    """Return the shapes of arrays, and what else decides how many latents and rows a run has."""
    if isinstance(tree, (list, tuple)):
        return (type(tree), *(signature(item) for item in tree))
    if isinstance(tree, dict):
        return (dict, *((key, signature(item)) for key, item in tree.items()))
    if hasattr(tree, "shape"):
        return tuple(tree.shape)
    if isinstance(tree, (bool, int, str, type(None))):
        return (type(tree), tree)
    if isinstance(tree, float):
        return float  # no number of latents
    return id(tree)


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in lists, tuples and dicts."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
