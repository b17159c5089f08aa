"""Arguments of a model as arguments of a compiled function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

#: Of XLA on a CPU, where compiling at full optimisation takes twice as long.
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


class Arguments:
    """Arguments of a model, whose arrays are arguments of the compiled function if they can be.

    Of constants XLA would evaluate the model as it compiles, slowly. But a model may do with an
    array what cannot be traced.
    """

    def __init__(self, args: tuple, kwargs: dict) -> None:
        self._leaves, self._structure = jax.tree.flatten((args, kwargs))
        self._dynamic = [
            index
            for index, leaf in enumerate(self._leaves)
            if isinstance(leaf, (jax.Array, np.ndarray))
        ]
        self.arrays = [self._leaves[index] for index in self._dynamic]

    def hold_constant(self) -> None:
        """Let the arrays be constants."""
        self._dynamic, self.arrays = [], []

    def rebuilt(self, arrays: list) -> tuple[tuple, dict]:
        """The arguments with these arrays."""
        leaves = list(self._leaves)
        for index, array in zip(self._dynamic, arrays, strict=True):
            leaves[index] = array
        return jax.tree.unflatten(self._structure, leaves)


def compiled_quickly(function: Callable) -> Callable[..., Any]:
    """``jax.jit`` for programs that run a few times only, or whose work is that of routines.

    They are ready in half the time. What they do themselves is slow; factorisations, products and
    solves are those of libraries, and as fast as ever.
    """

    @functools.cache
    def jitted() -> Callable[..., Any]:  # on the first call: an import starts no backend
        options = _QUICKLY if jax.default_backend() == "cpu" else None
        return jax.jit(function, compiler_options=options)

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return jitted()(*args)

    return run
