"""Dataclasses as pytrees that JAX tells apart.

``jax.tree_util.register_dataclass`` (JAX 0.10.2) calls the structures of two classes equal if their
numbers of fields and their static fields are, so that now and then ``jax.jit`` runs the program
that was compiled for another class. Those of ``register_pytree_with_keys`` are equal for one only.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable
from typing import Any, TypeVar

import jax
from jax.tree_util import GetAttrKey

Class = TypeVar("Class", bound=type)

#: Classes that Flax does not know.
unknown_to_flax: list[tuple[type, list[str]]] = []


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
    unknown_to_flax.append((cls, names))
    return cls


def register_with_flax() -> None:
    """Let ``flax.serialization.to_bytes`` take families, if Flax has been imported."""
    flax = sys.modules.get("flax.serialization")
    while flax is not None and unknown_to_flax:
        _register(flax, *unknown_to_flax.pop())


def _register(flax: Any, cls: type, names: list[str]) -> None:
    def to_state(tree: Any) -> dict[str, Any]:
        return {name: flax.to_state_dict(getattr(tree, name)) for name in names}

    def from_state(tree: Any, state: dict[str, Any]) -> Any:
        parts = {
            name: flax.from_state_dict(getattr(tree, name), state[name], name) for name in names
        }
        return dataclasses.replace(tree, **parts)

    flax.register_serialization_state(cls, to_state, from_state)
