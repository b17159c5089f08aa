"""Arguments of a model as arguments of a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Arguments:
    """Arguments of a model, whose arrays are arguments of the compiled function if they can be.

    Of constants XLA would evaluate the model as it compiles, slowly. But a model may do with an
    array what cannot be traced.
    """

    def __init__(self, args: tuple, kwargs: dict) -> None:
        self.leaves, self._structure = jax.tree.flatten((args, kwargs))
        self._dynamic = [
            index
            for index, leaf in enumerate(self.leaves)
            if isinstance(leaf, (jax.Array, np.ndarray))
        ]
        self.arrays = [self.leaves[index] for index in self._dynamic]

    @property
    def data_size(self) -> int:
        """Numbers in the largest array."""
        return max((np.size(array) for array in self.arrays), default=1)

    def hold_constant(self) -> None:
        """Let the arrays be constants."""
        self._dynamic, self.arrays = [], []

    def call(self, program: Callable, *inputs: Any) -> Any:
        """``program(*inputs, arrays)``; arrays that cannot be traced become constants.

        Constants are JAX's arrays, which a traced index can enter, or else numpy's, of which a
        model can take plain numbers.
        """
        given = self.leaves
        for constants in (as_jax, list):
            try:
                return program(*inputs, self.arrays)
            except (TypeError, ValueError, IndexError):
                self.hold_constant()
                self.leaves = constants(given)
        return program(*inputs, self.arrays)

    def take(self, args: tuple, kwargs: dict) -> None:
        """Other arguments, whose arrays may differ.

        :raises ValueError: if anything else does, or the arrays are constants of compiled programs.
        """
        other = Arguments(args, kwargs)
        same = (other._structure, other._dynamic) == (self._structure, self._dynamic)
        constants = [
            (left, right)
            for index, (left, right) in enumerate(zip(self.leaves, other.leaves, strict=False))
            if index not in self._dynamic
        ]
        if not same or any(left is not right and left != right for left, right in constants):
            raise ValueError(
                "The batches' arguments differ in more than their arrays: every batch must have "
                "the same structure, numbers and texts, and be used by jax.numpy only."
            )
        self.leaves, self.arrays = other.leaves, other.arrays

    def rebuilt(self, arrays: list) -> tuple[tuple, dict]:
        """Return the arguments with these arrays."""
        leaves = list(self.leaves)
        for index, array in zip(self._dynamic, arrays, strict=True):
            leaves[index] = array
        return jax.tree.unflatten(self._structure, leaves)


def as_jax(tree: Any) -> Any:
    """Arguments with JAX's arrays in place of numpy's, which a traced index cannot enter."""

    def converted(leaf: Any) -> Any:
        is_numeric = isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf"
        return jax.device_put(leaf) if is_numeric else leaf  # which compiles nothing

    return jax.tree.map(converted, tree)


def is_traced(tree: Any) -> bool:
    """Tell whether an array of a tree is one that JAX traces."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


def typed_key(key: jax.Array) -> jax.Array:
    """``jax.random.PRNGKey(0)``, the legacy array of two integers, as ``jax.random.key(0)``.

    Both give the same random numbers, but only the second is one element of an array of keys.
    """
    is_typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return key if is_typed else jax.random.wrap_key_data(jnp.asarray(key))
