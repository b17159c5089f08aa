"""Sums of squared gradients of single examples, at the cost of a few gradients.

In a network a weight meets activations of which every example has a row, ``Z = X W``. The gradient
of example ``n`` is ``x_n delta_n^T`` with ``delta_n = dl_n / dz_n``, and so

    sum_n s_n g_n^2 = (X^2)^T (s delta^2),                                                (1)

elementwise: one backward pass, in which the cotangent of a weight is (1) in place of its gradient.
The program of the log likelihoods is rewritten so, where weights are cut out of the latent vector,
scaled by constants, multiplied with rows or added to them. Nothing else will do, nor a weight that
is used twice, nor examples that depend on each other, as by batch normalisation: this is found out
with other weights of the examples, in which (1) is linear.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

#: What moves entries about.
MOVES = {"slice", "reshape", "squeeze", "transpose", "rev", "copy", "convert_element_type"}
#: What is a program of its own.
INLINED = {"jit", "pjit", "closed_call", "custom_jvp_call", "remat", "checkpoint"}


class Weight(NamedTuple):
    """Entries of the latent vector."""

    value: jax.Array
    index: np.ndarray  #: which
    is_repeated: bool = False  #: by example, along the first axis


class OtherUseError(Exception):
    """A weight is used in another way."""


def by_rows(function: Callable, latents: Any) -> Callable | None:
    """The sums of squares, if all weights meet rows of examples.

    :param function: from latent vectors by site to log likelihoods, shape ``(N,)``.
    :return: from scales ``s`` of shape ``(N,)`` to (1) by site and whether it holds; or None.
    """
    closed = jax.make_jaxpr(function)(latents)
    leaves, tree = jax.tree.flatten(latents)
    offsets = np.cumsum([0, *(leaf.size for leaf in leaves)])
    count = closed.out_avals[0].shape[0]

    def squared(latents: Any, uses: _Uses) -> jax.Array:
        weights = [
            Weight(leaf, start + np.arange(leaf.size))
            for leaf, start in zip(jax.tree.leaves(latents), offsets, strict=False)
        ]
        (result,) = _run(closed.jaxpr, closed.consts, weights, uses)
        return result

    found = _Uses(count, np.zeros(offsets[-1], int), [], None)
    try:
        jax.eval_shape(lambda latents: squared(latents, found), jax.tree.unflatten(tree, leaves))
    except OtherUseError:
        return None
    if (found.of_each > 1).any():
        return None

    def sums(scale: jax.Array) -> tuple[Any, jax.Array]:
        nothing = [jnp.zeros(result.shape, result.dtype) for result, _ in found.results]
        pull = jax.vjp(
            lambda latents, zeros: squared(latents, found._replace(zeros=iter(zeros))),
            latents,
            nothing,
        )[1]
        # By powers of two rounding is the same, however much cancels.
        factor = 2.0 ** np.random.default_rng(0).integers(-8, 9, count).astype(scale.dtype)
        root = jnp.sqrt(scale)
        whole, deltas = pull(root)
        others = pull(root * factor)[1]
        tolerance = jnp.finfo(scale.dtype).eps ** 0.5
        holds = []
        for one, other, (_, axis) in zip(deltas, others, found.results, strict=True):
            one, other = (jnp.moveaxis(delta, axis, 0).reshape(count, -1) for delta in (one, other))
            one = factor[:, None] * one
            size = jnp.abs(one).max(1, initial=0.0)  # single entries may have cancelled
            error = jnp.abs(one - other).max(1, initial=0.0)
            holds.append((error <= tolerance * size).all() | ~jnp.isfinite(size).all())
        return whole, jnp.stack(holds).all()

    return sums


class _Uses(NamedTuple):
    num_examples: int
    of_each: np.ndarray  #: how often an entry meets rows
    results: list  #: of the meetings: what is like them, and their axis of examples
    zeros: Iterator[jax.Array] | None  #: like them; None while they are being found

    def of(self, index: np.ndarray, result: jax.ShapeDtypeStruct, axis: int) -> jax.Array:
        """Zeros like the result of a meeting, which is noted."""
        if self.zeros is not None:
            return next(self.zeros)
        np.add.at(self.of_each, index.ravel(), 1)
        self.results.append((result, axis))
        return jnp.zeros(result.shape, result.dtype)


def _run(jaxpr: Any, consts: Any, args: list, uses: _Uses) -> list:
    """Evaluate a program some of whose arguments are weights."""
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    for equation in _needed(jaxpr):
        values = [v.val if isinstance(v, Literal) else env[v] for v in equation.invars]
        if not any(isinstance(value, Weight) for value in values):
            bound = equation.primitive.get_bind_params(equation.params)
            functions, params = bound if isinstance(bound, tuple) else ((), bound)  # older JAX
            found = equation.primitive.bind(*functions, *values, **params)
            found = found if equation.primitive.multiple_results else [found]
        elif equation.primitive.name in INLINED:
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            consts = getattr(inner, "consts", ())
            found = _run(getattr(inner, "jaxpr", inner), consts, values, uses)
        else:
            found = [_of_weight(equation, values, uses)]
        env.update(zip(equation.outvars, found, strict=True))
    return [v.val if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]


def _needed(jaxpr: Any) -> list:
    """The operations that the results need; a prior's are not among them."""
    needed, found = {v for v in jaxpr.outvars if not isinstance(v, Literal)}, []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            needed.update(v for v in equation.invars if not isinstance(v, Literal))
            found.append(equation)
    return found[::-1]


def _of_weight(equation: Any, values: list, uses: _Uses) -> Any:
    """One operation on a weight."""
    name = equation.primitive.name

    def bind(*operands: Any) -> jax.Array:
        return equation.primitive.bind(*operands, **equation.params)

    (at, weight), *others = [(i, v) for i, v in enumerate(values) if isinstance(v, Weight)]
    if others:
        raise OtherUseError(name)
    if name in MOVES and not weight.is_repeated:
        return Weight(bind(weight.value), _moved(name, bind, weight.index))
    if name == "broadcast_in_dim" and not weight.is_repeated:
        return _broadcast(equation, bind, weight, uses)
    if len(values) == 2:
        rows = values[1 - at]
        ordered = bind if at else lambda rows, value: bind(value, rows)
        if name in ("add", "sub") and _is_of_rows(weight, rows, uses):
            return _met(ordered, lambda rows: rows, weight, rows, uses, 0)
        if name == "dot_general" and not weight.is_repeated:
            contracted, batch = equation.params["dimension_numbers"]
            free = set(range(rows.ndim)) - set(contracted[1 - at])
            if not any(batch) and [rows.shape[axis] for axis in free] == [uses.num_examples]:
                return _met(ordered, jnp.square, weight, rows, uses, 0 if at else -1)
        if name == "mul" and isinstance(equation.invars[1 - at], Literal):
            return Weight(_scaled(weight.value, float(rows)), weight.index, weight.is_repeated)
    raise OtherUseError(name)


def _is_of_rows(weight: Weight, rows: jax.Array, uses: _Uses) -> bool:
    """Whether the weight is added to every row, by itself or by broadcasting of an axis."""
    shape = (
        weight.value.shape if weight.is_repeated else (uses.num_examples, *weight.value.shape[1:])
    )
    is_one = weight.is_repeated or weight.value.shape[:1] == (1,)
    return is_one and rows.shape == shape


def _met(
    bind: Callable, squared: Callable, weight: Weight, rows: jax.Array, uses: _Uses, axis: int
) -> jax.Array:
    """Rows and a weight, with (1) for the weight's cotangent, and ``delta`` for that of zeros.

    :param squared: the rows as they are in (1).
    :param axis: of examples, in the result.
    """

    @jax.custom_vjp
    def operation(rows: jax.Array, weight: jax.Array, zeros: jax.Array) -> jax.Array:
        return bind(rows, weight)

    def forward(rows: jax.Array, weight: jax.Array, zeros: jax.Array) -> tuple[jax.Array, tuple]:
        return bind(rows, weight), (rows, weight)

    def backward(kept: tuple, delta: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        rows, weight = kept
        of_rows = jax.vjp(lambda rows: bind(rows, weight), rows)[1](delta)[0]
        of_weight = jax.vjp(lambda weight: bind(squared(rows), weight), weight)[1](delta**2)[0]
        return of_rows, jnp.abs(of_weight), delta  # of a difference it is minus (1)

    operation.defvjp(forward, backward)
    result = jax.eval_shape(bind, rows, weight.value)
    return operation(rows, weight.value, uses.of(weight.index, result, axis))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _scaled(weight: jax.Array, factor: float) -> jax.Array:
    """A weight times a number, by whose square (1) is multiplied."""
    return factor * weight


_scaled.defvjp(
    lambda weight, factor: (factor * weight, None),
    lambda factor, _, cotangent: (factor**2 * cotangent,),
)


def _broadcast(equation: Any, bind: Callable, weight: Weight, uses: _Uses) -> Weight:
    shape, axes = equation.params["shape"], equation.params["broadcast_dimensions"]
    grown = list(shape)
    for axis, size in zip(axes, weight.value.shape, strict=True):
        if size == shape[axis]:
            grown[axis] = 1
    if int(np.prod(grown)) == 1:
        return Weight(bind(weight.value), weight.index.reshape(shape))
    if grown[0] == uses.num_examples and int(np.prod(grown)) == grown[0]:
        return Weight(bind(weight.value), weight.index, True)
    raise OtherUseError("broadcast_in_dim")


def _moved(name: str, bind: Callable, index: np.ndarray) -> np.ndarray:
    if name in ("copy", "convert_element_type"):
        return index
    with jax.ensure_compile_time_eval():
        return np.asarray(bind(jnp.asarray(index, jnp.int32)))
