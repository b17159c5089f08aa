"""Dataclasses as pytrees that JAX tells apart.

``jax.tree_util.register_dataclass`` (JAX 0.10.2) calls the structures of two classes equal if their
numbers of fields and their static fields are: only their hashes differ. ``jax.jit`` finds a
program by a table of seven bits of the hash and by equality, so that one call in a hundred or so
ran the program that had been compiled for another class. Structures of
``register_pytree_with_keys`` are equal for one class only.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from typing import Any, TypeVar

import jax
from jax.tree_util import GetAttrKey

Class = TypeVar("Class", bound=type)

#: Classes that Flax has not been told of.
_unknown_to_flax: list[tuple[type, list[str]]] = []


def register(cls: Class) -> Class:
    """Make a dataclass a pytree. A class decorator, to be applied after ``dataclass``.

    Fields whose metadata has ``static=True`` are part of the structure: they must hash and compare
    by value. The others are its children.
    """
    fields = [field for field in dataclasses.fields(cls) if field.init]
    static = [field.name for field in fields if field.metadata.get("static")]
    names = [field.name for field in fields if field.name not in static]
    keys = [GetAttrKey(name) for name in names]

    def flatten(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(tree, name) for name in names], tuple(getattr(tree, n) for n in static)

    def flatten_with_keys(tree: Any) -> tuple[list[tuple[Any, Any]], tuple[Any, ...]]:
        children, values = flatten(tree)
        return list(zip(keys, children, strict=True)), values

    def unflatten(values: tuple[Any, ...], children: Iterable[Any]) -> Any:
        return cls(
            **dict(zip(names, children, strict=True)), **dict(zip(static, values, strict=True))
        )

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    _unknown_to_flax.append((cls, names))
    return cls


def tell_flax() -> None:
    """Let ``flax.serialization.to_bytes`` take families, if Flax has been imported."""
    flax = sys.modules.get("flax.serialization")
    while flax is not None and _unknown_to_flax:
        _tell(flax, *_unknown_to_flax.pop())


def _tell(flax: Any, cls: type, names: list[str]) -> None:
    def to_state(tree: Any) -> dict[str, Any]:
        return {name: flax.to_state_dict(getattr(tree, name)) for name in names}

    def from_state(tree: Any, state: dict[str, Any]) -> Any:
        parts = {
            name: flax.from_state_dict(getattr(tree, name), state[name], name) for name in names
        }
        return dataclasses.replace(tree, **parts)

    flax.register_serialization_state(cls, to_state, from_state)
