"""A program that is traced in single precision, and runs with double in its place.

What a model does in double precision can be seen by tracing it again, but not of every model. From
0.10 on JAX keeps a numpy array that a model has captured in the precision of its first use, for as
long as a program of that time is there, and then meets factors of two precisions, or indices of two
lengths. Or a loop may start from a number that is single. Here the operations are those of single
precision, and only their real numbers are wider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from numpyro_ngvi.tracing.compilation import in_single_precision

#: Operations that are no more than the program in them, and its names there.
_CALLS = {
    "pjit",
    "jit",
    "closed_call",
    "core_call",
    "checkpoint",
    "remat",
    "remat2",
    "custom_jvp_call",
    "custom_vjp_call",
    "custom_vjp_call_jaxpr",
}
_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_WIDER = {np.dtype(np.float32): np.dtype(np.float64), np.dtype(np.complex64): np.dtype(complex)}


def widened(function: Callable) -> Callable[..., Any]:
    """The function as it is in single precision, to be called in double.

    What is not real stays as it is in single precision: integers have 32 bits. Operations that run
    a program of their own, and are no loop, stay in single precision too.

    :raises Exception: from the function itself, or where an operation is bound to its precision.
    """

    def run(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        with in_single_precision():
            narrow = [
                jax.ShapeDtypeStruct(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
                for leaf in leaves
            ]
            trace = jax.make_jaxpr(function, return_shape=True)
            program, shapes = trace(*jax.tree.unflatten(structure, narrow))
        results = _run(program, leaves)
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return run


def _run(program: Any, arguments: Sequence[Any]) -> list[Any]:
    """:param program: a ``Jaxpr``, or a ``ClosedJaxpr``."""
    constants = getattr(program, "consts", ())
    program = getattr(program, "jaxpr", program)
    inputs = [*program.constvars, *program.invars]
    known = {
        variable: _cast(value, _wider(variable.aval.dtype))
        for variable, value in zip(inputs, [*constants, *arguments], strict=True)
    }

    def value(atom: Any) -> Any:
        if hasattr(atom, "val"):  # a literal
            return np.asarray(atom.val, _wider(atom.aval.dtype))
        return known[atom]

    for equation in program.eqns:
        found = _results(equation, [value(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, found, strict=True))
    return [value(atom) for atom in program.outvars]


def _results(equation: Any, values: list[Any]) -> Sequence[Any]:
    primitive, parameters = equation.primitive, equation.params
    match primitive.name:
        case name if name in _CALLS:
            (inner,) = (parameters[key] for key in _PROGRAMS if key in parameters)
            return _run(inner, values)
        case "scan":
            return _scan(parameters, values)
        case "while":
            return _while(parameters, values)
        case "cond":
            branches = [_branch(program) for program in parameters["branches"]]
            return lax.switch(values[0], branches, *values[1:])
    if primitive.name == "bitcast_convert_type" or any(map(_has_program, parameters.values())):
        kinds = [atom.aval.dtype for atom in equation.invars]
        values = [_cast(value, kind) for value, kind in zip(values, kinds, strict=True)]
    else:
        parameters = {key: _wider(parameter) for key, parameter in parameters.items()}
    found = primitive.bind(*values, **parameters)
    found = found if primitive.multiple_results else [found]
    return [_cast(result, _wider(result.dtype)) for result in found]


def _branch(program: Any) -> Callable[..., list[Any]]:
    return lambda *arguments: _run(program, arguments)


def _scan(parameters: dict[str, Any], values: list[Any]) -> Sequence[Any]:
    ends = np.cumsum(_num_of_constants_and_carried(parameters))
    constants, start, rows = values[: ends[0]], values[ends[0] : ends[1]], values[ends[1] :]

    def step(carried: list, some: list) -> tuple[list, list]:
        found = _run(parameters["jaxpr"], [*constants, *carried, *some])
        return found[: len(start)], found[len(start) :]

    length, is_reversed = parameters["length"], parameters["reverse"]
    carried, stacked = lax.scan(step, start, rows, length=length, reverse=is_reversed)
    return [*carried, *stacked]


def _num_of_constants_and_carried(parameters: dict[str, Any]) -> list[int]:
    if "num_carry" in parameters:
        return [parameters["num_consts"], parameters["num_carry"]]
    # From JAX 0.12 on a scan keeps the arguments of its step as a tree.
    constants, carried, _ = parameters["ft_in"].unpack()
    return [len(constants), len(carried)]


def _while(parameters: dict[str, Any], values: list[Any]) -> Sequence[Any]:
    ends = np.cumsum([parameters["cond_nconsts"], parameters["body_nconsts"]])
    of_condition, of_body, start = values[: ends[0]], values[ends[0] : ends[1]], values[ends[1] :]
    return lax.while_loop(
        lambda state: _run(parameters["cond_jaxpr"], [*of_condition, *state])[0],
        lambda state: _run(parameters["body_jaxpr"], [*of_body, *state]),
        start,
    )


def _has_program(parameter: Any) -> bool:
    parts = parameter if isinstance(parameter, (tuple, list)) else (parameter,)
    return any(hasattr(getattr(part, "jaxpr", part), "eqns") for part in parts)


def _wider(kind: Any) -> Any:
    """Double in the place of single precision; anything else as it is."""
    is_kind = isinstance(kind, (np.dtype, type))
    return next((wide for narrow, wide in _WIDER.items() if is_kind and kind == narrow), kind)


def _cast(value: Any, dtype: Any) -> Any:
    return value if value.dtype == dtype else jnp.asarray(value, dtype)
