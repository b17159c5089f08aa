"""Gradients of single examples by rows of activations, for families to take as they are.

What :mod:`~numpyro_ngvi.estimators.squares` has found out of a program holds here: an example's
gradient for a weight is known from its activations and ``delta``, and every latent is in one entry
of one weight. Where a matrix of latents is a weight itself, the gradient stays the outer product
that it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_ngvi.estimators.per_example.layers import Layer


class Met(NamedTuple):
    """A layer at one draw."""

    layer: Layer
    rows: jax.Array | None  #: by examples; None of what is added
    delta: jax.Array  #: slopes of the log likelihoods times ``sqrt(s_n)``, shape ``(N, T, M)``


class Piece(NamedTuple):
    """Latents that one layer has, or that none has."""

    numbers: np.ndarray  #: which, ascending
    layer: int | None


class ExampleRows:
    """``sqrt(s_n) g_n`` of all examples ``n`` at one draw, as parts of a matrix ``(N, d)``.

    :param met: where the latents of this site are weights.
    :param root: ``sqrt(s_n)``, shape ``(N,)``.
    :param latent: the latent vector.
    """

    def __init__(self, met: Sequence[Met], root: jax.Array, latent: jax.Array) -> None:
        self._met, self._root, self._latent = met, root, latent
        self._known = dict[int, jax.Array]()
        self._pieces = _pieces([one.layer for one in met], latent.size)

    def entries(self, start: int, stop: int) -> jax.Array:
        """Of the latents from ``start`` on, shape ``(N, stop - start)``."""
        return self._joined(self._of_layer, start, stop, len(self._root))

    def outer(self, start: int, rows: int, columns: int) -> tuple[jax.Array, jax.Array] | None:
        """``x_n`` and ``y_n``, if latents that are a matrix have ``x_n y_n^T``; else None.

        :return: shapes ``(N, rows)`` and ``(N, columns)``.
        """
        wanted = np.arange(start, start + rows * columns).reshape(rows, columns)
        for layer, x, delta in self._met:
            if layer.is_outer(x, delta):
                if np.array_equal(layer.index, wanted):
                    return x[:, 0], delta[:, 0]
                if np.array_equal(layer.index.T, wanted):
                    return delta[:, 0], x[:, 0]
        return None

    def gradient(self) -> jax.Array:
        """``sum_n s_n g_n``, shape ``(d,)``."""

        def of_layer(number: int) -> jax.Array:
            gradient = self._met[number].layer.gradient(*self._met[number][1:], self._root)
            if gradient is None:
                return jnp.tensordot(self._root, self._of_layer(number), 1)
            return gradient

        return self._joined(of_layer, 0, self._latent.size)

    def sums(self) -> tuple[jax.Array, jax.Array]:
        """``sum_n s_n g_n`` and ``sum_n s_n g_n^2``, shape ``(d,)``, without rows of all."""
        found = [one.layer.sums(*one[1:], self._root) for one in self._met]
        gradient, squares = (
            self._joined(lambda number, which=which: found[number][which], 0, self._latent.size)
            for which in (0, 1)
        )
        return gradient, squares

    def _of_layer(self, number: int) -> jax.Array:
        """Of all entries of a weight, shape ``(N, K, M)``."""
        if number not in self._known:
            layer, *own = self._met[number]
            self._known[number] = layer.all_examples(*own)
        return self._known[number]

    def _joined(
        self, of_layer: Callable[[int], jax.Array], start: int, stop: int, *lead: int
    ) -> jax.Array:
        """Of the latents from ``start`` on, from arrays ``(..., K, M)`` by layer."""
        met = [one for one in self._pieces if one.numbers[0] < stop and start <= one.numbers[-1]]
        if start == stop or not met:
            return jnp.zeros((*lead, 0), self._latent.dtype)
        parts = [
            jnp.zeros((*lead, one.numbers.size))
            if one.layer is None
            else _in_order(of_layer(one.layer), self._met[one.layer].layer.index)
            for one in met
        ]
        found = jnp.concatenate([part.astype(self._latent.dtype) for part in parts], -1)
        numbers = np.concatenate([one.numbers for one in met])
        first = numbers[0]
        if np.array_equal(numbers, np.arange(first, first + len(numbers))):
            return found[..., start - first : stop - first]
        order = np.argsort(numbers)
        return found[..., order[np.searchsorted(numbers[order], np.arange(start, stop))]]


def _pieces(layers: Sequence[Layer], size: int) -> list[Piece]:
    """All latents, in as few pieces as there are, by their first ones."""
    pieces = [Piece(np.sort(layer.index, None), number) for number, layer in enumerate(layers)]
    missing = np.ones(size, bool)
    for piece in pieces:
        missing[piece.numbers] = False
    (rest,) = np.nonzero(missing)
    runs = np.split(rest, np.nonzero(np.diff(rest) > 1)[0] + 1)
    pieces += [Piece(run, None) for run in runs if run.size]
    return sorted((one for one in pieces if one.numbers.size), key=lambda one: one.numbers[0])


def _in_order(values: jax.Array, index: np.ndarray) -> jax.Array:
    """Entries of a weight, shape ``(..., K, M)``, as they are in the latent vector."""
    for turned, own in ((values, index), (values.swapaxes(-1, -2), index.T)):
        if (np.diff(own.reshape(-1)) > 0).all():
            return turned.reshape(*values.shape[:-2], -1)
    flat = values.reshape(*values.shape[:-2], -1)
    return flat[..., np.argsort(index, None)]
