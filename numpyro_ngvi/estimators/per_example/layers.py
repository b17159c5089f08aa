"""The ways in which a weight meets rows of examples, and the examples' gradients for it.

All are a product by positions, ``z_nt = x_nt W`` with ``x_nt`` of ``K`` and ``z_nt`` of ``M``
numbers. Of a dense layer an example has one position or more, of a convolution its patches are
these, and of what is added every ``x_nt`` is one. So the gradient of example ``n`` is

    g_n = sum_t x_nt^T delta_nt,        delta_nt = dl_n / dz_nt.                              (1)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

#: Numbers in gradients of single examples, and in their patches, that are there at once.
NUMBERS_AT_ONCE = 2**20


class Weight(NamedTuple):
    """Entries of a latent vector, times a number."""

    value: jax.Array
    site: str
    index: np.ndarray  #: which entries; of size one along axes on which they are repeated
    factor: float = 1.0

    @property
    def is_repeated(self) -> bool:
        return self.index.shape != self.value.shape


class UnknownLayerError(Exception):
    """A weight is used in another way."""


@dataclasses.dataclass(frozen=True, eq=False)
class Layer:
    """A weight meets rows of ``N`` examples.

    :param index: the entries of the latent vector that are ``W``, shape ``(K, M)``.
    :param factor: what they are multiplied by.
    :param result: what the result is like.
    :param axes: of the result: examples, positions, outputs.
    :param patches: from the rows of ``n`` examples to ``x``, shape ``(n, T, K)``; None if they are.
    """

    site: str
    index: np.ndarray
    factor: float
    count: int
    result: jax.ShapeDtypeStruct
    axes: tuple[int, ...]
    patches: Callable[[jax.Array], jax.Array] | None = None
    precision: Any = None

    def delta(self, slope: jax.Array) -> jax.Array:
        """From a slope for the result, shape ``(N, T, M)``."""
        ordered = self.factor * slope.transpose(self.axes)
        return ordered.reshape(self.count, -1, self.index.shape[1])

    def is_outer(self, rows: jax.Array | None, delta: jax.Array) -> bool:
        """Whether the gradient of each example is an outer product."""
        return rows is not None and self.patches is None and delta.shape[1] == 1

    def of_examples(self, rows: jax.Array | None, delta: jax.Array) -> jax.Array:
        """(1) of ``n`` examples, shape ``(n, K, M)``.

        :param rows: None of what is added.
        """
        if rows is None:
            return delta.sum(1, keepdims=True)
        x = rows if self.patches is None else self.patches(rows)
        return jnp.einsum("ntk,ntm->nkm", x, delta, precision=self.precision)

    def all_examples(self, rows: jax.Array | None, delta: jax.Array) -> jax.Array:
        """As :meth:`of_examples`, with the patches of a few examples at a time."""
        if self.patches is None:
            return self.of_examples(rows, delta)
        found = jax.lax.map(lambda some: self.of_examples(*some), self._chunks(rows, delta))
        return found.reshape(-1, *self.index.shape)[: len(delta)]

    def gradient(
        self, rows: jax.Array | None, delta: jax.Array, weights: jax.Array
    ) -> jax.Array | None:
        """``sum_n w_n g_n`` if that takes one product, else None."""
        if not self.is_outer(rows, delta):
            return None
        return self._product(rows[:, 0], weights[:, None] * delta[:, 0])

    def sums(
        self, rows: jax.Array | None, delta: jax.Array, weights: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """``sum_n w_n g_n`` and ``sum_n g_n^2``, shape ``(K, M)``."""
        gradient = self.gradient(rows, delta, weights)
        if gradient is not None:
            return gradient, self._product(rows[:, 0] ** 2, delta[:, 0] ** 2)

        def add(total: tuple, some: tuple) -> tuple[tuple, None]:
            each = self.of_examples(*some[:2])
            new = jnp.tensordot(some[2], each, 1), (each**2).sum(0)
            return jax.tree.map(jnp.add, total, new), None

        nothing = jnp.zeros(self.index.shape, delta.dtype)
        return jax.lax.scan(add, (nothing, nothing), self._chunks(rows, delta, weights))[0]

    def _product(self, left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.matmul(left.mT, right, precision=self.precision)

    def _chunks(self, *arrays: jax.Array | None) -> tuple:
        """A few examples each, shapes ``(chunks, n, ...)``; zeros fill the last ones up."""
        (inputs, outputs), (count, positions, _) = self.index.shape, arrays[1].shape
        numbers = inputs * outputs + (inputs * positions if self.patches else 0)
        num = max(1, min(count, -(-count * numbers // NUMBERS_AT_ONCE)))
        size = -(-count // num)

        def cut(array: jax.Array) -> jax.Array:
            missing = [(0, -count % size), *[(0, 0)] * (array.ndim - 1)]
            return jnp.pad(array, missing).reshape(-1, size, *array.shape[1:])

        return jax.tree.map(cut, arrays)


# -- the ways to meet -------------------------------------------------------------------------


def product(
    equation: Any, weight: Weight, rows: jax.Array, is_left: bool, result: Any, count: int
) -> tuple[Layer, jax.Array]:
    """A dense layer.

    :param is_left: whether the rows are the left operand.
    :return: the layer, and its rows by examples, shape ``(N, T, K)``.
    """
    contracted, batch = equation.params["dimension_numbers"]
    if weight.is_repeated or any(batch):
        raise UnknownLayerError("dot_general")
    of_rows, of_weight = contracted if is_left else contracted[::-1]
    free = [axis for axis in range(rows.ndim) if axis not in of_rows]
    outputs = [axis for axis in range(weight.value.ndim) if axis not in of_weight]
    example = examples_axis([rows.shape[axis] for axis in free], count)
    ordered = [free[example], *free[:example], *free[example + 1 :]]
    start = 0 if is_left else len(outputs)  # of the rows' axes in the result
    shift = len(free) if is_left else 0
    axes = [*(start + free.index(axis) for axis in ordered), *range(shift, shift + len(outputs))]
    size = int(np.prod([rows.shape[axis] for axis in of_rows]))
    index = weight.index.transpose(*of_weight, *outputs).reshape(size, -1)
    own = weight.site, index, weight.factor, count, result, tuple(axes)
    layer = Layer(*own, precision=equation.params["precision"])
    return layer, rows.transpose(*ordered, *of_rows).reshape(count, -1, size)


def addition(weight: Weight, sign: float, result: Any, count: int) -> tuple[Layer, None]:
    """What is added to all rows, as a bias.

    :param sign: minus one if it is subtracted.
    """
    sizes = weight.index.shape or (1,) * len(result.shape)
    if len(sizes) != len(result.shape) or any(
        size not in (1, whole) for size, whole in zip(sizes, result.shape, strict=True)
    ):
        raise UnknownLayerError("add")
    spread = [axis for axis, size in enumerate(sizes) if size == 1]
    example = examples_axis([result.shape[axis] for axis in spread], count)
    outputs = [axis for axis, size in enumerate(sizes) if size != 1]
    axes = spread[example], *spread[:example], *spread[example + 1 :], *outputs
    index = weight.index.reshape(1, -1)
    return Layer(weight.site, index, sign * weight.factor, count, result, axes), None


def convolution(
    equation: Any, weight: Weight, rows: jax.Array, result: Any, count: int
) -> tuple[Layer, jax.Array]:
    """A convolution whose kernel is the weight.

    :return: the layer, and its rows by examples, shape ``(N, T, ..., channels)``.
    """
    given = equation.params
    groups = given["feature_group_count"], given["batch_group_count"]
    names = given["dimension_numbers"]
    of_rows, of_kernel, of_result = names.lhs_spec, names.rhs_spec, names.out_spec
    is_first = examples_axis([rows.shape[of_rows[0]]], count) == 0
    if weight.is_repeated or groups != (1, 1) or not is_first:
        raise UnknownLayerError("conv_general_dilated")
    outputs, channels, *window = of_kernel
    is_last = channels > min(window, default=-1)  # in the kernel's own order (1) need not be turned
    inputs = (*window, channels) if is_last else (channels, *window)
    size = weight.value.size // weight.value.shape[outputs]
    index = weight.index.transpose(*inputs, outputs).reshape(size, -1)
    sizes = [weight.value.shape[axis] for axis in window]
    positions = [result.shape[axis] for axis in of_result[2:]]

    def patches(rows: jax.Array) -> jax.Array:
        """Slices, axis by axis, of rows that are spread and padded; shape ``(n, T, K)``."""
        flat = rows.reshape(-1, *rows.shape[2:])
        gaps = zip(given["padding"], given["lhs_dilation"], strict=True)
        edges = [(low, high, step - 1) for (low, high), step in gaps]
        found = jax.lax.pad(flat, jnp.zeros((), flat.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
        to = 1 + len(window) + (0 if is_last else 1)
        for axis in reversed(range(len(window))):
            stride, step = given["window_strides"][axis], given["rhs_dilation"][axis]
            length = (positions[axis] - 1) * stride + 1
            starts = [step * offset for offset in range(sizes[axis])]
            parts = [
                jax.lax.slice_in_dim(found, start, start + length, stride, axis + 1)
                for start in starts
            ]
            found = jnp.stack(parts, to)
        return found.reshape(len(rows), -1, size)

    axes = (of_result[0], *of_result[2:], of_result[1])
    own = weight.site, index, weight.factor, count, result, axes
    layer = Layer(*own, patches, given["precision"])
    ordered = rows.transpose(of_rows[0], *of_rows[2:], of_rows[1])
    return layer, ordered.reshape(count, -1, *ordered.shape[1:])


def examples_axis(sizes: list[int], count: int) -> int:
    """Which of the rows' axes is that of examples, or has some rows of each, one after another.

    That it is the right one is found out by the weights of the examples.

    :raises UnknownLayerError: if there is none.
    """
    if count in sizes:
        return sizes.index(count)
    if sizes and sizes[0] and sizes[0] % count == 0:
        return 0
    raise UnknownLayerError("of no examples")
