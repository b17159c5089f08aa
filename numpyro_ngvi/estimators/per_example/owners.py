"""Which entry of its argument each entry of a result depends on, as the program shows it.

What a program shows need not be looked at in every step, where a GPU would wait for the answer:
that the log likelihood of an example depends on its own rows alone, or that a Hessian is diagonal.

Every value has an array of *owners*, one for each of its entries: the one entry of the argument
that it depends on, or ``NOBODY``. Operations move them about, and what mixes several is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

#: The owner of what depends on nothing.
NOBODY = -1

#: What is a program of its own.
INLINED = {"jit", "pjit", "closed_call", "custom_jvp_call", "remat", "checkpoint"}
#: What moves entries about; of ``pad`` also one entry into places that are new.
MOVES = {
    "slice", "reshape", "squeeze", "expand_dims", "transpose", "rev", "copy", "broadcast_in_dim",
    "concatenate", "split", "pad",
}  # fmt: skip
#: What makes one entry of those along some axes.
REDUCTIONS = {
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "argmax",
    "argmin",
}  # fmt: skip
#: What makes an entry of the same entry of each operand.
ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "cbrt", "ceil", "clamp", "convert_element_type", "cos", "cosh", "digamma", "div", "eq", "erf",
    "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite",
    "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or",
    "pow", "reduce_precision", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sinh", "sqrt",
    "square", "stop_gradient", "sub", "tan", "tanh", "xor",
}  # fmt: skip


class MixedError(Exception):
    """An entry depends on several, or it is not known on which."""


def needed(jaxpr: Any) -> list:
    """The operations that the results need; a prior's are not among them."""
    found, wanted = [], {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    for equation in reversed(jaxpr.eqns):
        if wanted.intersection(equation.outvars):
            wanted.update(v for v in equation.invars if not isinstance(v, Literal))
            found.append(equation)
    return found[::-1]


def owners_of(jaxpr: Any, owners: Sequence[np.ndarray | None]) -> list[np.ndarray | None]:
    """The owners of a program's results; None of a result that depends on nothing.

    :param owners: of its arguments, in the same way.
    :raises MixedError: if an entry depends on several.
    """
    known = dict(zip(jaxpr.invars, owners, strict=True))
    for equation in needed(jaxpr):
        own = [None if isinstance(v, Literal) else known.get(v) for v in equation.invars]
        found: list[np.ndarray | None] = [None] * len(equation.outvars)
        if any(one is not None for one in own):
            if equation.primitive.name in INLINED:
                inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
                found = owners_of(getattr(inner, "jaxpr", inner), own)
            else:
                found = _of_operation(equation, own)
        known.update(zip(equation.outvars, found, strict=True))
    return [None if isinstance(v, Literal) else known.get(v) for v in jaxpr.outvars]


def is_own(function: Callable, arguments: Any, owners: Sequence[np.ndarray]) -> bool:
    """Whether the program of a function shows that each entry of its result, a vector, depends on
    nothing but entries of this number.

    :param arguments: a pytree of arrays.
    :param owners: the numbers of their entries.
    """
    try:
        (found,) = owners_of(jax.make_jaxpr(function)(arguments).jaxpr, owners)
    except MixedError:
        return False
    return found is None or bool(((found == np.arange(found.size)) | (found == NOBODY)).all())


def _of_operation(equation: Any, own: list[np.ndarray | None]) -> list[np.ndarray | None]:
    name, params = equation.primitive.name, equation.params
    shapes = [v.aval.shape for v in equation.outvars]
    if name in MOVES:
        return _moved(equation, own)
    if name in REDUCTIONS:
        return [_common(own[0], params["axes"])]
    if name == "dot_general":
        contracted, batch = params["dimension_numbers"]
        return [_of_product(own, contracted, batch, shapes[0])]
    if name == "conv_general_dilated" and own[1] is None:
        if params["batch_group_count"] != 1:
            raise MixedError(name)
        numbers = params["dimension_numbers"]
        examples = _common(own[0], numbers.lhs_spec[1:])
        return [along(examples, numbers.out_spec[0], shapes[0])]
    if name in ("reduce_window_sum", "reduce_window_max"):
        wide = [axis for axis, size in enumerate(params["window_dimensions"]) if size > 1]
        still = set(range(len(shapes[0]))) - set(wide)
        if any(own[0].shape[axis] != shapes[0][axis] for axis in still):
            raise MixedError(name)
        return [np.broadcast_to(np.expand_dims(_common(own[0], wide), tuple(wide)), shapes[0])]
    if name == "gather" and own[1] is None:
        return [_of_gather(own[0], params["dimension_numbers"], shapes[0])]
    if name in ELEMENTWISE:
        return [_together([one for one in own if one is not None], shapes[0])]
    raise MixedError(name)


def _together(parts: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray:
    """Of entries that depend on those of each of some values."""
    total = np.full(shape, NOBODY)
    for part in parts:
        if ((part != total) & (part != NOBODY) & (total != NOBODY)).any():
            raise MixedError
        total = np.maximum(part, total)
    return total


def _common(owners: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Of all entries along some axes, which must be one."""
    one = owners.max(tuple(axes), keepdims=True, initial=NOBODY)
    if ((owners != one) & (owners != NOBODY)).any():
        raise MixedError
    return one.squeeze(tuple(axes))


def along(owners: np.ndarray, axis: int, shape: Sequence[int]) -> np.ndarray:
    """Of a value, from those along one of its axes."""
    sizes = [1] * len(shape)
    sizes[axis] = -1
    return np.broadcast_to(owners.reshape(sizes), shape)


def _of_product(own: list, contracted: Any, batch: Any, shape: Sequence[int]) -> np.ndarray:
    """The result has the axes of batches, then each operand's others."""
    parts = []
    for side, owners in enumerate(own):
        if owners is None:
            continue
        left = _common(owners, contracted[side])
        kept = [axis for axis in range(owners.ndim) if axis not in contracted[side]]
        order = [kept.index(axis) for axis in batch[side]]
        free = [place for place in range(len(kept)) if place not in order]
        sizes = [*(left.shape[place] for place in order)]
        of_free = [left.shape[place] for place in free]
        missing = len(shape) - len(sizes) - len(of_free)
        sizes += [1] * missing + of_free if side else of_free + [1] * missing
        parts.append(np.broadcast_to(left.transpose(*order, *free).reshape(sizes), shape))
    return _together(parts, shape)


def _of_gather(owners: np.ndarray, numbers: Any, shape: Sequence[int]) -> np.ndarray:
    """Of entries that are taken along an axis, by numbers that depend on nothing."""
    batch = numbers.operand_batching_dims
    if not batch or tuple(numbers.start_indices_batching_dims) != tuple(range(len(batch))):
        raise MixedError("gather")
    others = [axis for axis in range(owners.ndim) if axis not in batch]
    left = _common(owners, others)
    places = [axis for axis in range(len(shape)) if axis not in numbers.offset_dims][: len(batch)]
    sizes = [1] * len(shape)
    for place, size in zip(places, left.shape, strict=True):
        sizes[place] = size
    return np.broadcast_to(left.reshape(sizes), shape)


def _moved(equation: Any, own: list[np.ndarray | None]) -> list[np.ndarray | None]:
    operands = [
        np.full(v.aval.shape, NOBODY) if one is None else np.asarray(one)
        for v, one in zip(equation.invars, own, strict=True)
    ]
    with jax.ensure_compile_time_eval():
        moved = equation.primitive.bind(
            *(jnp.asarray(one, jnp.int32) for one in operands), **equation.params
        )
        return [np.asarray(one) for one in jax.tree.leaves(moved)]
