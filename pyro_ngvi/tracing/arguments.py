"""Signatures, which tell arguments of a model from those of another kind, and what they hold."""

from __future__ import annotations

from typing import Any

from torch import Tensor


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
    if isinstance(tree, Tensor):
        return [tree]
    parts = list(tree.values()) if isinstance(tree, dict) else tree
    if not isinstance(parts, (list, tuple)):
        return []
    return [tensor for part in parts for tensor in tensors_in(part)]
