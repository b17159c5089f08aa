"""The operations of a JAX program, as :mod:`ngvi.estimators.additive_terms` wants them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr

from ngvi.estimators.additive_terms import (
    AdditiveTerms,
    Kind,
    Level,
    Node,
    NotAdditiveError,
    Op,
    Reader,
    is_sum,
)
from numpyro_ngvi.tracing.compilation import compiled
from numpyro_ngvi.tracing.of_sites import halved
from numpyro_ngvi.tracing.traced import without_idle

_KINDS = {
    Kind.COPY: "broadcast_in_dim reshape squeeze expand_dims transpose slice rev copy copy_p",
    Kind.LINEAR: "reduce_sum cumsum concatenate",
    Kind.SUM: "add sub neg add_any",
    Kind.PRODUCT: "mul",
    Kind.QUOTIENT: "div",
    Kind.BILINEAR: "dot_general",
    Kind.EACH: (
        "exp exp2 log log1p expm1 tanh logistic sin cos tan asin acos atan atan2 sinh cosh asinh "
        "acosh atanh sqrt rsqrt cbrt pow integer_pow square abs sign max min erf erfc erf_inv "
        "lgamma digamma select_n eq ne lt le gt ge and or xor not is_finite clamp"
    ),
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}
_BY_ELEMENTS = (Kind.EACH, Kind.SUM, Kind.PRODUCT, Kind.QUOTIENT)
#: Which give their argument back, if it has the result's shape and no axes are exchanged.
_SAME = ("broadcast_in_dim", "reshape", "copy", "copy_p")
#: Programs inside an operation, and its derivative's own rule.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2")
_CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
_PROGRAMS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def terms_of(
    function: Callable[..., jax.Array], latents: Sequence[jax.Array], *, is_traced: bool = True
) -> AdditiveTerms:
    """Return the terms of a log density.

    :param function: of the latent vectors.
    :param latents: of their shapes; they are the nodes of the result.
    :param is_traced: whether the call is a part of a program that JAX traces.
    :raises NotAdditiveError: naming an operation, if it is no sum of such terms.
    """
    reader, program, constants, inputs = _read(function, latents, is_traced)
    (result,) = _run(reader, program, [*constants, *inputs])
    return AdditiveTerms.of(result, inputs)


def elementwise_terms_of(
    function: Callable[..., list[jax.Array]], latents: Sequence[jax.Array]
) -> tuple[AdditiveTerms, AdditiveTerms | None]:
    """Return arrays as functions of a few affine functions, and the terms of a number.

    The call must be no part of a program that JAX traces.

    :param function: of the latent vectors to a list of arrays, the last of which is the number.
    :return: the arrays as terms, and the number's, if it is a sum of such.
    :raises NotAdditiveError: naming an operation, if an array is no such function.
    """
    reader, program, constants, inputs = _read(function, latents, is_traced=False)
    given, results = [*constants, *inputs], program.outvars
    own = _run(reader, program.replace(outvars=results[:-1]), given)
    terms = AdditiveTerms.elementwise(own, inputs)
    try:
        (number,) = _run(reader, program.replace(outvars=results[-1:]), given)
        return terms, AdditiveTerms.of(number, inputs)
    except NotAdditiveError:
        return terms, None


def _read(
    function: Callable, latents: Sequence[jax.Array], is_traced: bool
) -> tuple[Reader, Jaxpr, list[Node], list[Node]]:
    """Return a program of constants and latents, after what these do not change, and its nodes.

    What they do not change is computed by one program; operation by operation each would be
    compiled by itself.
    """
    traced = jax.make_jaxpr(function)(*latents)
    early, program = halved(without_idle(traced.jaxpr), [True] * len(latents))

    def known(arrays: list) -> list[jax.Array]:
        return jax.core.eval_jaxpr(early, arrays)

    values = (known if is_traced else compiled(known, runs_once=True))(traced.consts)
    reader = Reader()
    inputs = [reader.latent(np.shape(value)) for value in latents]
    return reader, program, [reader.constant(value, np.shape(value)) for value in values], inputs


#: True if a log density is a sum of terms, of a size that quadrature takes.
is_sum_of_terms = functools.partial(is_sum, terms_of)


def _run(reader: Reader, program: Any, arguments: Sequence[Node]) -> list[Node]:
    constants = [
        reader.constant(value, np.shape(value)) for value in getattr(program, "consts", ())
    ]
    program = getattr(program, "jaxpr", program)
    variables = [*program.constvars, *program.invars]
    known = dict(zip(variables, [*constants, *arguments], strict=True))

    def node(atom: Any) -> Node:
        return reader.constant(atom.val, atom.aval.shape) if hasattr(atom, "val") else known[atom]

    for equation in without_idle(program).eqns:
        inputs = [node(atom) for atom in equation.invars]
        found = _results(reader, program, equation, inputs)
        known.update(zip(equation.outvars, found, strict=True))
    return [node(atom) for atom in program.outvars]


def _results(reader: Reader, program: Any, equation: Any, inputs: list[Node]) -> list[Node]:
    name, shapes = equation.primitive.name, [out.aval.shape for out in equation.outvars]
    if name in _CALLS:
        return _run(reader, _inner(equation), inputs)
    if name in _CUSTOM:
        return _with_rule(reader, program, equation, inputs, shapes)
    run = functools.partial(_bound, equation)
    if all(value.is_constant for value in inputs):
        results = run(*(value.value for value in inputs))
        results = results if equation.primitive.multiple_results else [results]
        pairs = zip(results, shapes, strict=True)
        return [reader.constant(result, shape) for result, shape in pairs]
    if _is_finite_check(equation, inputs):
        return [reader.constant(np.ones(shapes[0], bool), shapes[0])]
    is_in_order = equation.params.get("dimensions") is None
    if name in _SAME and is_in_order and inputs[0].shape == shapes[0]:
        return inputs[:1]
    if name == "split":
        pieces = [
            Op(Kind.COPY, _piece(run, index), f"{name} {index} {equation.params}")
            for index in range(len(shapes))
        ]
        return [reader.apply(op, inputs, shape) for op, shape in zip(pieces, shapes, strict=True)]
    if len(shapes) > 1:
        raise NotAdditiveError(name)
    kind = _kind(equation, inputs)
    if kind is Kind.COPY and name == "reduce_sum":  # of one number, which is to be any constant's
        run = functools.partial(jnp.reshape, shape=shapes[0])
    words = f"{name} {equation.params}"
    if len(inputs) > 1 and kind is Kind.COPY:  # from places that are known
        inputs, places = inputs[:1], inputs[1:]
        words += f" {[id(place.value) for place in places]}"
        run = _from_places(run, places)
    if kind in _BY_ELEMENTS:
        inputs = [reader.filled(value, shapes[0], jnp) for value in inputs]
    return [reader.apply(Op(kind, run, words), inputs, shapes[0])]


def _is_finite_check(equation: Any, inputs: list[Node]) -> bool:
    """Tell whether NumPyro asks if a value is a number; without one the result has none either."""
    name, arguments = equation.primitive.name, equation.invars
    if name == "is_finite" or (name == "eq" and arguments[0] is arguments[1]):
        return True
    is_infinite = [
        node.shape == () and bool(np.isinf(np.asarray(node.value)))
        for node in inputs
        if node.is_constant and not isinstance(node.value, jax.core.Tracer)
    ]
    return name == "ne" and any(is_infinite)


def _from_places(run: Callable[..., Any], places: list[Node]) -> Callable[..., Any]:
    return lambda value: run(value, *(place.value for place in places))


def _piece(run: Callable[..., Any], index: int) -> Callable[..., Any]:
    return lambda value: run(value)[index]


def _kind(equation: Any, inputs: list[Node]) -> Kind:
    name = equation.primitive.name
    (aval,) = (out.aval for out in equation.outvars)
    if name == "convert_element_type":
        return Kind.SUM if jnp.issubdtype(aval.dtype, jnp.inexact) else Kind.EACH
    if name in ("gather", "dynamic_slice") and all(value.is_constant for value in inputs[1:]):
        return Kind.LINEAR if inputs[0].level is Level.SUM else Kind.COPY
    if name == "reduce_sum" and math.prod(inputs[0].shape) == math.prod(aval.shape):
        return Kind.COPY
    if name == "select_n" and inputs[0].is_constant:
        return Kind.SUM
    if name == "pad" and inputs[1].is_constant:
        return Kind.LINEAR
    if name not in _KIND_OF:
        raise NotAdditiveError(name)
    return _KIND_OF[name]


def _with_rule(
    reader: Reader, program: Any, equation: Any, inputs: list[Node], shapes: list[tuple]
) -> list[Node]:
    """Return an operation whose derivative has a rule of its own: whole, if it goes by elements."""
    inner = _inner(equation)
    is_each = len(shapes) == 1 and all(
        value.shape in ((), shapes[0]) and (value.is_constant or value.shape == shapes[0])
        for value in inputs
    )
    if is_each and _goes_by_elements(inner):
        op = Op(Kind.EACH, _single(program, equation), equation.primitive.name)
        return [reader.apply(op, inputs, shapes[0])]
    return _run(reader, inner, inputs)


def _goes_by_elements(program: Any) -> bool:
    program = getattr(program, "jaxpr", program)
    for equation in program.eqns:
        name = equation.primitive.name
        if name in (*_CALLS, *_CUSTOM):
            if not _goes_by_elements(_inner(equation)):
                return False
        elif name == "broadcast_in_dim" and equation.invars[0].aval.shape == ():
            pass  # of a number
        elif name != "convert_element_type" and _KIND_OF.get(name) not in _BY_ELEMENTS:
            return False
    return True


def _inner(equation: Any) -> Any:
    (inner,) = (equation.params[key] for key in _PROGRAMS if key in equation.params)
    return inner


def _bound(equation: Any, *values: Any) -> Any:
    return equation.primitive.bind(*values, **equation.params)


def _single(program: Any, equation: Any) -> Callable[..., Any]:
    """Return an operation with a rule of its own, as a function."""
    given = [atom for atom in equation.invars if not hasattr(atom, "val")]
    single = program.replace(
        constvars=(),
        invars=given,
        outvars=equation.outvars,
        eqns=[equation],
        # Names of other arguments, and without any JAX warns. JAX 0.7 wants names of results.
        debug_info=program.debug_info._replace(arg_names=None, result_paths=("",)),
    )

    def run(*values: Any) -> Any:
        pairs = zip(equation.invars, values, strict=True)
        some = [value for atom, value in pairs if not hasattr(atom, "val")]
        (result,) = jax.core.eval_jaxpr(single, (), *some)
        return result

    # The program of a number does not broadcast to the elements of a term.
    return run if equation.outvars[0].aval.shape else jnp.vectorize(run)
