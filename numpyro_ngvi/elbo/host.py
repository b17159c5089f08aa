"""A number that a program tells the host of while it runs, without an effect in JAX's sense.

What ``jax.debug.callback`` and ``io_callback`` put into a program is an effect, and programs with
one are dispatched by Python and not by C++: up to some milliseconds more for every step, however
seldom anything is told. A result of ``jax.pure_callback`` lives on one device, for which several
devices have one more exchange. Here the call belongs to what is told *with*, arrays that come out
as they went in: JAX keeps it for as long as anything follows from them, and XLA because it knows of
the side effect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

_tell_p = Primitive("tell_host")
_tell_p.multiple_results = True


def tell_host(function: Callable[[Any], None], number: jax.Array, values: Any) -> Any:
    """The values, and ``function(number)`` is called if ``number`` is positive.

    Who waits for the values waits for the call; ``jax.effects_barrier`` knows nothing of it. Under
    ``vmap`` the numbers are added up.

    :param number: an array of shape ``()``.
    :param values: a pytree of arrays that do not depend on what is differentiated, of which the
        program must use something.
    """
    leaves, tree = jax.tree.flatten(values)
    return jax.tree.unflatten(tree, _tell_p.bind(number, *leaves, function=function))


@_tell_p.def_impl
def _here(number: jax.Array, *values: jax.Array, function: Callable) -> Sequence[jax.Array]:
    if number > 0:
        function(number)
    return values


@_tell_p.def_abstract_eval
def _shapes(_: Any, *values: Any, function: Callable) -> Sequence[Any]:
    return values


def _in_program(number: jax.Array, *values: jax.Array, function: Callable) -> Sequence[jax.Array]:
    # Of which JAX has the way to every device, and to the devices of other processes.
    jax.lax.cond(number > 0, lambda: jax.debug.callback(function, number), lambda: None)
    return values


def _of_batch(arguments: Sequence, axes: Sequence, *, function: Callable) -> tuple:
    (number, *values), (axis, *others) = arguments, axes
    total = number if axis is None else number.sum(axis)
    return _tell_p.bind(total, *values, function=function), others


# TPUs number their calls, for which each must be lowered by itself.
mlir.register_lowering(_tell_p, mlir.lower_fun(_in_program, multiple_results=True), cacheable=False)
batching.primitive_batchers[_tell_p] = _of_batch
