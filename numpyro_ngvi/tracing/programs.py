"""Programs that are compiled once, however often a model is fitted.

A program of a model is traced anew for each fit, and XLA compiles it only if none is kept that does
the very same: the same operations on arrays of the same shapes. A model that has changed, by its
data's values, by a global or by a closure, has other operations, and so never meets a stale
program. Arrays that a function holds are inputs of its program: data are no part of it, and a kept
program holds neither a model nor its data.

Most of a trace is not the model's: its log density is differentiated, batched and averaged.
A function that says what it reads, the operations of that density for one, is traced only if none
that reads the very same is kept (``of``).
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import hashlib
import os
import types
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
from jax.extend.core import ClosedJaxpr, Jaxpr

#: Parameters of operations that are rules of their derivatives: programs have none left to take.
_RULES = ("jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees")
_WITH_RULES = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
#: Operations that hold functions of the user's.
_WITH_FUNCTIONS = ("custom_vmap_call", "pure_callback", "io_callback")
#: Folders of functions whose rules nobody corrects between two calls.
_LIBRARIES = tuple(
    f"{Path(file).parent}{os.sep}"
    for file in (jax.__file__, numpyro.__file__, Path(__file__).parent)
)
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
#: Where partial functions, methods, and what JAX and ``functools.wraps`` make, keep functions.
_INSIDE = ("f", "f_transformed", "func", "args", "keywords", "__func__", "__wrapped__")
_SETTINGS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_default_prng_impl",
)
#: Numbers of an array up to which a key has them as they are, and not their digest.
_FEW = 64


class Counts(NamedTuple):
    """Numbers of programs that were compiled and reused."""

    compiled: int
    reused: int

    def __sub__(self, other: Counts) -> Counts:  # type: ignore[override]
        return Counts(self.compiled - other.compiled, self.reused - other.reused)


class Programs:
    """Programs by what they compute, those that were used last.

    Threads need no lock: each change of the dictionary is one operation of Python's. At worst two
    of them make the same program.

    :param most: how many are kept.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()
        self._compiled = self._reused = 0

    @property
    def counts(self) -> Counts:
        """Counts of this process so far."""
        return Counts(self._compiled, self._reused)

    def clear(self) -> None:
        """Keep none of them."""
        self._kept.clear()

    def of(self, key: Hashable | None, make: Callable[[], Callable]) -> Callable:
        """Return the program of a key.

        :param key: None for one that cannot be told from others, which is not kept.
        :param make: compiles it, at its first call.
        """

        def counted() -> Callable:
            self._compiled += 1
            return make()

        return self.trace(key, counted, is_program=True)

    def trace(self, key: Hashable | None, make: Callable[[], Any], is_program: bool = False) -> Any:
        """Return what a function was traced to.

        :param key: all that decides on it; None if that is not known.
        :param make: traces it, if none is kept.
        :param is_program: whether it is a program that counts as reused.
        """
        if key is None:
            return make()
        found = self._kept.pop(key, None)
        if found is None:
            found = make()  # which may ask for traces inside of it
        else:
            self._reused += is_program
        self._kept[key] = found
        if len(self._kept) > self.most:
            self._kept.popitem(last=False)
        return found


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Let Python's collector of cycles wait, as it would have none to free.

    A trace makes objects by the hundred thousand. That sets off full collections, each of which
    walks over all that was imported: a fifth of the seconds of a first fit.
    """
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def kept(
    function: Callable, programs: Programs, jit: Callable[..., Callable], of: Hashable | None = None
) -> Callable:
    """Return the function of arrays, traced at its first call for such shapes, and compiled.

    :param programs: among which its program may be.
    :param jit: compiles a function, whose arguments are lists of arrays.
    :param of: all that the function reads besides its arguments, if that is known.
    """
    known: dict[Hashable, Callable] = {}
    name = getattr(function, "__qualname__", "")

    def call(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        key = structure, tuple(map(_shape, leaves)), settings()
        if key not in known:
            trace = None if of is None else (name, jit, of, *key)
            make = functools.partial(_program, function, structure, leaves, programs, jit)
            known[key] = programs.trace(trace, make, is_program=True)
        return known[key](leaves)

    return call


def _program(
    function: Callable, structure: Any, leaves: list, programs: Programs, jit: Callable
) -> Callable[[list], Any]:
    """Return the program of flat arguments, for those of the shapes of ``leaves``."""
    args = jax.tree.unflatten(structure, leaves)
    traced, like = jax.make_jaxpr(function, return_shape=True)(*args)
    constants, (operations, order) = list(traced.consts), _with_results_in_order(traced.jaxpr)

    def make() -> Callable:
        def run(constants: list, leaves: list) -> list:
            return jax.core.eval_jaxpr(operations, constants, *leaves)

        run.__name__ = getattr(function, "__name__", run.__name__)
        return jit(run)

    does = what_it_does(operations)
    program = programs.of(None if does is None else (jit, settings(), does), make)

    def call(leaves: list) -> Any:
        found = dict(zip(order, program(constants, leaves), strict=True))
        ordered = [found[index] for index in range(len(found))]
        return jax.tree.unflatten(jax.tree.structure(like), ordered)

    return call


def _with_results_in_order(program: Jaxpr) -> tuple[Jaxpr, list[int]]:
    """Return the program with its results in the order in which it finds them, and which they are.

    NumPyro's distributions have their arrays in the order of a set, another one in each process:
    the program would be another to JAX's persistent cache.
    """
    equations = [variable for equation in program.eqns for variable in equation.outvars]
    known = (*program.constvars, *program.invars, *equations)
    places = {variable: place for place, variable in enumerate(known)}
    of_results = [
        (-1, repr(atom.val)) if hasattr(atom, "val") else (places[atom], "")
        for atom in program.outvars
    ]
    order = sorted(range(len(of_results)), key=of_results.__getitem__)
    return program.replace(outvars=[program.outvars[index] for index in order]), order


def settings() -> tuple:
    """Return what is set around a call and changes what it traces to."""
    return tuple(getattr(jax.config, name) for name in _SETTINGS)


def _shape(leaf: Any) -> Hashable:
    if isinstance(leaf, jax.Array):
        return leaf.aval
    return type(leaf), np.shape(leaf), getattr(leaf, "dtype", None)


# -- what a program does --------------------------------------------------------------


class _UnseenError(Exception):
    """A program does what cannot be compared: it calls back a function of the user's."""


def what_it_does(program: Jaxpr) -> Hashable | None:
    """Return a program's operations; None if it is not known when two of them are the same."""
    try:
        found = _operations(program)
        hash(found)
    except (_UnseenError, RecursionError):  # functions may hold themselves
        return None
    return found


def _operations(program: Jaxpr) -> Hashable:
    """Return a program's operations, in order, whatever its variables are called."""
    numbers: dict[Any, int] = {}

    def defined(variables: Sequence[Any]) -> tuple:
        return tuple(
            (numbers.setdefault(variable, len(numbers)), variable.aval) for variable in variables
        )

    def used(atoms: Sequence[Any]) -> tuple:
        return tuple(
            (atom.aval, _frozen(atom.val)) if hasattr(atom, "val") else numbers[atom]
            for atom in atoms
        )

    arguments = defined(program.constvars), defined(program.invars)
    body = []
    for equation in program.eqns:
        context, name = getattr(equation, "ctx", None), equation.primitive.name
        if name in _WITH_FUNCTIONS:
            raise _UnseenError
        rules = _rules(equation.params) if name in _WITH_RULES else ()
        body.append(
            (
                equation.primitive,
                used(equation.invars),
                tuple(
                    (parameter, _frozen(value))
                    for parameter, value in sorted(equation.params.items())
                    if not (parameter in _RULES and name in _WITH_RULES)
                ),
                rules,
                getattr(context, "compute_type", None),
                getattr(context, "threefry_partitionable", None),
                defined(equation.outvars),
            )
        )
    return (*arguments, tuple(body), used(program.outvars))


def _rules(params: dict[str, Any]) -> tuple[Hashable, ...]:
    """Return what rules of derivatives are given, such as the program of a root's slope.

    :raises _UnseenError: if a rule is not JAX's or NumPyro's: a user may correct his own.
    """
    rules = [value for name, value in params.items() if name in _RULES]
    found = list(_parts(rules, set()))
    if not all(part.startswith(_LIBRARIES) for part in found if isinstance(part, str)):
        raise _UnseenError
    return tuple(_frozen(part) for part in found if not isinstance(part, str))


def _parts(value: Any, seen: set[int]) -> Iterator[str | tuple]:
    """Yield the files of all functions in a rule, and of those that they wrap, hold or are given.

    The function that a rule is for may be a library's, and the rule a user's. What a rule is given
    besides the values that it differentiates, as JAX wraps it, comes in a tuple.
    """
    if id(value) in seen:
        return
    seen.add(id(value))
    if "val" in getattr(type(value), "__slots__", ()):
        yield (value.val,)
    if isinstance(value, types.FunctionType):
        yield value.__code__.co_filename
        parts = [cell.cell_contents for cell in value.__closure__ or ()]
    elif isinstance(value, (tuple, list, dict)):
        parts = list(value.values() if isinstance(value, dict) else value)
    else:
        parts = [getattr(value, name) for name in _INSIDE if hasattr(value, name)]
        parts += [type(value).__call__] if callable(value) else []
    for part in parts:
        yield from _parts(part, seen)


def _frozen(value: Any) -> Hashable:
    """Return a parameter of an operation, by its value.

    :raises _UnseenError: if it is not known when two of them are the same.
    """
    if isinstance(value, ClosedJaxpr):
        return _operations(value.jaxpr), tuple(map(_frozen, value.consts))
    if isinstance(value, Jaxpr):
        return _operations(value)
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((name, _frozen(one)) for name, one in sorted(value.items()))
    if isinstance(value, jax.core.Tracer):
        raise _UnseenError
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return str(value.dtype), _frozen(jax.random.key_data(value))
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        array = np.asarray(value)
        numbers = array.tobytes()
        known = numbers if array.size <= _FEW else hashlib.sha256(numbers).digest()
        return array.shape, str(array.dtype), getattr(value, "weak_type", False), known
    if isinstance(
        value, (bool, int, float, complex)
    ):  # zeros differ by their signs, and NaN by none
        return type(value), repr(value)
    if isinstance(value, _FUNCTIONS):
        return _of_library(value)
    if _is_of_jax(type(value)) and isinstance(getattr(value, "params", None), dict):
        return type(value), _frozen(value.params)  # an operation with its own rules
    try:
        hash(value)
    except TypeError:
        raise _UnseenError from None
    return value


def _of_library(function: Any) -> Hashable:
    """Return a function of JAX's own, with what it holds; others may hold anything."""
    if not _is_of_jax(function):
        raise _UnseenError
    if hasattr(own := getattr(function, "__self__", None), "transforms"):  # of a function's wrapper
        return function.__func__, _frozen((own.f, own.transforms))
    if "<locals>" not in function.__qualname__:
        return function
    if not isinstance(function, types.FunctionType) or function.__kwdefaults__:
        raise _UnseenError
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    return function.__code__, _frozen(held), _frozen(function.__defaults__ or ())


def _is_of_jax(made: Any) -> bool:
    return (getattr(made, "__module__", None) or "").split(".")[0] in ("jax", "jaxlib")
