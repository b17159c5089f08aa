"""A function whose operations are found once, however many programs are made of it.

A model's handlers take most of the time that its programs are traced for: each has the log density,
its gradient or its Hessian in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_ngvi.tracing.programs import Programs, settings, what_it_does, without_collections


class Operations:
    """The operations of a function on arrays of certain shapes, whatever arrays it holds.

    Two are equal that do the same, so that a program of one is a program of the other.

    :param program: the function, traced for its leaves.
    """

    def __init__(self, program: Any, structure: Any, shapes: tuple, of_results: Any) -> None:
        self.program, self._shapes, self._of_results = program, shapes, of_results
        does = what_it_does(program)
        #: True if it is known which others do the same.
        self.is_known = does is not None
        self._key = structure, of_results, does if self.is_known else object()
        self._hash = hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Operations) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __call__(self, constants: list, *args: Any) -> Any:
        """Return the function's results.

        :param constants: the arrays that the function holds.
        """
        leaves = [
            leaf if jnp.result_type(leaf) == shape.dtype else jnp.asarray(leaf, shape.dtype)
            for leaf, shape in zip(jax.tree.leaves(args), self._shapes, strict=True)
        ]
        found = jax.core.eval_jaxpr(self.program, constants, *leaves)
        return jax.tree.unflatten(self._of_results, found)


class Traced:
    """The function of arrays, traced at its first call for such shapes.

    :param function: a pure function of pytrees, which holds no traced value.
    """

    def __init__(self, function: Callable) -> None:
        self._function = function
        self._known: dict[Any, tuple[Operations, list]] = {}

    def at(self, *like: Any) -> tuple[Operations, list]:
        """Return what it does with arguments like these, and the arrays that it holds."""
        leaves, structure = jax.tree.flatten(like)
        shapes = tuple(map(_shape, leaves))
        key = structure, shapes, settings()
        if key not in self._known:
            with without_collections():
                self._known[key] = self._traced(structure, shapes)
        return self._known[key]

    def replace(self, old: jax.Array, new: jax.Array) -> None:
        """Hold an array in the place of another one of the same shape."""
        for _, held in self._known.values():
            held[:] = [new if array is old else array for array in held]

    def _traced(self, structure: Any, shapes: tuple) -> tuple[Operations, list]:
        args = jax.tree.unflatten(structure, shapes)
        closed, like = jax.make_jaxpr(self._function, return_shape=True)(*args)
        program, of_results = without_idle(closed.jaxpr), jax.tree.structure(like)
        return Operations(program, structure, shapes, of_results), list(closed.consts)


def inlined(function: Callable, programs: Programs, of: Hashable) -> Callable:
    """Return the function as a part of another program.

    :param of: all that it reads besides its arguments: it is traced only if none is kept.
    """

    def call(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        shapes = tuple(map(_shape, leaves))
        key = function.__qualname__, of, structure, shapes, settings()
        operations, held = programs.trace(key, lambda: Traced(function).at(*args))
        return operations(held, *args)

    return call


@functools.cache
def key_like(kind: str) -> jax.ShapeDtypeStruct:
    """Return what stands for a key.

    :param kind: JAX's ``jax_default_prng_impl``, of now.
    """
    return jax.ShapeDtypeStruct((), jax.eval_shape(lambda: jax.random.key(0, impl=kind)).dtype)


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    known = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(known.shape, known.dtype, weak_type=known.weak_type)


def without_idle(program: Any) -> Any:
    """Return a program without operations that its results do not depend on, such as checks."""
    used = {atom for atom in program.outvars if not hasattr(atom, "val")}
    found = []
    for equation in reversed(program.eqns):
        if equation.effects or used.intersection(equation.outvars):
            found.append(equation)
            used.update(atom for atom in equation.invars if not hasattr(atom, "val"))
    return program.replace(eqns=found[::-1])
