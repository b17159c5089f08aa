"""A function whose operations are found once, however many programs are made of it.

A model's handlers take most of the time that its programs are traced for: each has the log density,
its gradient or its Hessian in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from numpyro_ngvi.tracing.programs import settings


class Traced:
    """The function of arrays, traced at its first call for such shapes.

    :param function: a pure function of pytrees, which holds no traced value.
    """

    def __init__(self, function: Callable) -> None:
        self._function = function
        self._known: dict[Any, tuple] = {}

    def __call__(self, *args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        shapes = tuple(map(jax.typeof, leaves))
        key = structure, shapes, settings()
        if key not in self._known:
            self._known[key] = self._traced(structure, shapes)
        program, constants, of_results = self._known[key]
        found = jax.core.eval_jaxpr(program, constants, *leaves)
        return jax.tree.unflatten(of_results, found)

    def _traced(self, structure: Any, shapes: tuple) -> tuple:
        results: list[Any] = []

        def flat(*leaves: Any) -> list:
            found = self._function(*jax.tree.unflatten(structure, leaves))
            leaves, results_structure = jax.tree.flatten(found)
            results[:] = [results_structure]
            return leaves

        like = [
            jax.ShapeDtypeStruct(shape.shape, shape.dtype, weak_type=shape.weak_type)
            for shape in shapes
        ]
        closed = jax.make_jaxpr(flat)(*like)
        return without_idle(closed.jaxpr), closed.consts, results[0]


def without_idle(program: Any) -> Any:
    """A program without the operations that its results do not depend on, as checks of values."""
    used = {atom for atom in program.outvars if not hasattr(atom, "val")}
    found = []
    for equation in reversed(program.eqns):
        if equation.effects or used.intersection(equation.outvars):
            found.append(equation)
            used.update(atom for atom in equation.invars if not hasattr(atom, "val"))
    return program.replace(eqns=found[::-1])
