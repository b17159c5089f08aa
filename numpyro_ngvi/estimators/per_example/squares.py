"""Gradients of single examples, and sums of their squares, at the cost of a few gradients.

In a network a weight meets activations of which every example has rows, ``Z = X W``. The gradient
of example ``n`` is ``sum_t x_nt^T delta_nt`` with ``delta_nt = dl_n / dz_nt``, and with one row for
each example

    sum_n s_n g_n^2 = (X^2)^T (s delta^2),                                                (1)

elementwise: one backward pass for all ``delta``. Of an example with several rows, of a convolution,
say, the products are summed before they are squared, a few examples at a time.

Where weights meet activations the program of the log likelihoods tells: where they are cut out of
the latent vector, scaled by constants, multiplied with rows, convolved with them or added to them.
Nothing else will do, nor a weight that is used twice. Nor will examples that depend on each other,
as by batch normalisation, nor an axis of other things that is as long and stands before that of
examples: with other weights of the examples ``delta`` must have these as factors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from ngvi.estimators.points import Arrays
from numpyro_ngvi.estimators.per_example.layers import (
    Layer,
    UnknownLayerError,
    Weight,
    addition,
    convolution,
    product,
)
from numpyro_ngvi.estimators.per_example.owners import INLINED, along, is_own, needed
from numpyro_ngvi.estimators.per_example.rows import ExampleRows, Met

#: What moves entries about.
MOVES = {"slice", "reshape", "squeeze", "transpose", "rev", "copy", "convert_element_type"}


def by_rows(
    function: Callable[[Arrays], jax.Array], latents: Arrays, scale: jax.Array
) -> tuple[dict[str, ExampleRows], jax.Array | None] | None:
    """The examples' gradients by site, if all weights meet rows of examples, and whether they are
    right; None for that if the program shows it.

    :param function: from latent vectors by site to log likelihoods, shape ``(N,)``.
    :param scale: ``s``, shape ``(N,)``.
    """
    closed = jax.make_jaxpr(function)(latents)
    (count,) = closed.out_avals[0].shape

    def run(layers: _Layers) -> jax.Array:
        args = [Weight(leaf, site, np.arange(leaf.size)) for site, leaf in sorted(latents.items())]
        (result,) = _run(closed.jaxpr, closed.consts, args, layers)
        if isinstance(result, Weight):
            raise UnknownLayerError("not at all")
        return result

    found = _Layers(count, [], [], None)
    try:
        jax.eval_shape(lambda: run(found))
    except UnknownLayerError:
        return None
    for site, latent in latents.items():
        own = [layer.index.ravel() for layer in found.layers if layer.site == site]
        if own and np.bincount(np.concatenate(own), minlength=latent.size).max() > 1:
            return None

    def shifted(zeros: list[jax.Array]) -> tuple[jax.Array, list]:
        layers = _Layers(count, [], [], iter(zeros))
        return run(layers), layers.rows

    nothing = [jnp.zeros(layer.result.shape, layer.result.dtype) for layer in found.layers]
    _, pull, rows = jax.vjp(shifted, nothing, has_aux=True)
    root = jnp.sqrt(scale)

    def deltas_of(root: jax.Array) -> list[jax.Array]:
        slopes = zip(found.layers, *pull(root), strict=True)
        return [layer.delta(slope) for layer, slope in slopes]

    deltas, are_alone = deltas_of(root), None
    examples = [_examples(layer, count) for layer in found.layers]
    if not is_own(lambda zeros: shifted(zeros)[0], nothing, examples):
        # By powers of two rounding is the same, however much cancels.
        factor = 2.0 ** np.random.default_rng(0).integers(-8, 9, count).astype(scale.dtype)
        are_alone = _are_alone(deltas, deltas_of(root * factor), factor)
    met = [Met(*one) for one in zip(found.layers, rows, deltas, strict=True)]
    by_site = {
        site: ExampleRows([one for one in met if one.layer.site == site], root, latent)
        for site, latent in latents.items()
    }
    return by_site, are_alone


def _examples(layer: Layer, count: int) -> np.ndarray:
    """The numbers of the examples that entries of a layer's result belong to."""
    shape, axis = layer.result.shape, layer.axes[0]
    return along(np.arange(shape[axis]) // (shape[axis] // count), axis, shape)


def _are_alone(deltas: list[jax.Array], others: list[jax.Array], factor: np.ndarray) -> jax.Array:
    """Whether ``delta`` with other weights of the examples has these as factors."""
    tolerance = jnp.finfo(factor.dtype).eps ** 0.5
    holds = [jnp.array(True)]
    for one, other in zip(deltas, others, strict=True):
        one, other = (delta.reshape(len(factor), -1) for delta in (one, other))
        one = factor[:, None] * one
        size = jnp.abs(one).max(1, initial=0.0)  # single entries may have cancelled
        error = jnp.abs(one - other).max(1, initial=0.0)
        holds.append((error <= tolerance * size).all() | ~jnp.isfinite(size).all())
    return jnp.stack(holds).all()


class _Layers(NamedTuple):
    num_examples: int
    layers: list[Layer]
    rows: list[jax.Array | None]  #: of the layers, by examples
    zeros: Iterator[jax.Array] | None  #: like the layers' results; None while they are being found

    def met(self, layer: Layer, rows: jax.Array | None, result: jax.Array) -> jax.Array:
        """The result of a meeting, which is noted."""
        self.layers.append(layer)
        self.rows.append(rows)
        return result if self.zeros is None else result + next(self.zeros)


def _run(jaxpr: Any, consts: Any, args: list, layers: _Layers) -> list:
    """Evaluate a program some of whose arguments are weights."""
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    for equation in needed(jaxpr):
        values = [v.val if isinstance(v, Literal) else env[v] for v in equation.invars]
        if not any(isinstance(value, Weight) for value in values):
            bound = equation.primitive.get_bind_params(equation.params)
            functions, params = bound if isinstance(bound, tuple) else ((), bound)  # older JAX
            found = equation.primitive.bind(*functions, *values, **params)
            found = found if equation.primitive.multiple_results else [found]
        elif equation.primitive.name in INLINED:
            inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            consts = getattr(inner, "consts", ())
            found = _run(getattr(inner, "jaxpr", inner), consts, values, layers)
        else:
            found = _of_weight(equation, values, layers)
        env.update(zip(equation.outvars, found, strict=True))
    return [v.val if isinstance(v, Literal) else env[v] for v in jaxpr.outvars]


def _of_weight(equation: Any, values: list, layers: _Layers) -> list:
    """The results of an operation on a weight."""
    name, count = equation.primitive.name, layers.num_examples

    def bind(*operands: Any) -> jax.Array:
        return equation.primitive.bind(*operands, **equation.params)

    (at, weight), *others = [(i, v) for i, v in enumerate(values) if isinstance(v, Weight)]
    if others:
        raise UnknownLayerError(name)
    if name in MOVES and not weight.is_repeated:
        index = _moved(name, bind, weight.index)
        return [weight._replace(value=bind(weight.value), index=index)]
    if name == "split" and not weight.is_repeated:
        index = _moved(name, bind, weight.index)
        parts = zip(bind(weight.value), index, strict=True)
        return [weight._replace(value=value, index=index) for value, index in parts]
    if name == "broadcast_in_dim":
        return [weight._replace(value=bind(weight.value), index=_spread(equation, weight))]
    if len(values) != 2:
        raise UnknownLayerError(name)
    rows = values[1 - at]
    if name == "mul" and isinstance(equation.invars[1 - at], Literal):
        factor = float(rows)
        return [weight._replace(value=factor * weight.value, factor=factor * weight.factor)]
    result = bind(rows, weight.value) if at else bind(weight.value, rows)
    like = jax.ShapeDtypeStruct(result.shape, result.dtype)
    if name in ("add", "sub"):
        layer = addition(weight, -1.0 if name == "sub" and at else 1.0, like, count)
    elif name == "dot_general":
        layer = product(equation, weight, rows, bool(at), like, count)
    elif name == "conv_general_dilated" and at:
        layer = convolution(equation, weight, rows, like, count)
    else:
        raise UnknownLayerError(name)
    return [layers.met(*layer, result)]


def _spread(equation: Any, weight: Weight) -> np.ndarray:
    shape = [1] * len(equation.params["shape"])
    for axis, size in zip(equation.params["broadcast_dimensions"], weight.index.shape, strict=True):
        shape[axis] = size
    return weight.index.reshape(shape)


def _moved(name: str, bind: Callable, index: np.ndarray) -> Any:
    if name in ("copy", "convert_element_type"):
        return index
    with jax.ensure_compile_time_eval():
        return jax.tree.map(np.asarray, bind(jnp.asarray(index, jnp.int32)))
