"""Gradients of single examples by rows of activations, for families that take them as they are.

What :mod:`~pyro_ngvi.estimators.squares` has found out of a run holds here: an example's gradient
for a weight is known from its activations and ``delta``, and every latent is in one entry of one
weight. Which entry that is, a backward pass of the entries' numbers tells. Where a matrix of
latents is a weight itself, the gradient stays the outer product that it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pyro_ngvi.estimators.per_example.layers import Layer
from pyro_ngvi.estimators.per_example.squares import derivatives

#: Numbers of entries are sent back in two digits, which no precision rounds.
BASE = 2**11


class ExampleRows:
    """``sqrt(s_n) g_n`` of all examples ``n`` at one draw, as parts of a matrix ``(N, d)``.

    :param deltas: slopes of the log likelihoods times ``scale`` for their results.
    :param scale: positive, shape ``(N,)``.
    :param theta: the latent vectors that the draw is from, shape ``(K, d)``.
    :param k: which of them it is.
    """

    def __init__(
        self, layers: list[Layer], deltas: Sequence[Tensor], scale: Tensor, theta: Tensor, k: int
    ) -> None:
        self._uses, self._known = layers, dict[int, Tensor]()
        self._root = root = scale.sqrt()
        self._deltas = []
        for delta in deltas:
            of_rows = root.repeat_interleave(len(delta) // len(root))
            self._deltas.append(delta.detach() / of_rows.reshape(-1, *[1] * (delta.dim() - 1)))
        self._count = len(scale)
        sizes = [layer.weight.numel() for layer in layers]
        self._starts = [sum(sizes[:i]) for i in range(len(layers) + 1)]
        number = torch.arange(sum(sizes), device=theta.device)

        def pulled(values: Tensor) -> Tensor:
            parts = zip(values.to(theta).split(sizes), layers, strict=True)
            vectors = [part.reshape(layer.weight.shape) for part, layer in parts]
            return derivatives([layer.weight for layer in layers], [theta], vectors)[0][k].detach()

        self._factor = pulled(torch.ones_like(number))
        safe = torch.where(self._factor == 0, 1.0, self._factor)
        high, low = (
            (pulled(digit) / safe).round().long() for digit in (number // BASE, number % BASE)
        )
        self._place = BASE * high + low

    def entries(self, start: int, stop: int) -> Tensor:
        """Of the latents from ``start`` on, shape ``(N, stop - start)``."""
        place, factor = self._place[start:stop], self._factor[start:stop]
        if not len(place):
            return self._factor.new_zeros(self._count, 0)
        first, last = int(place.min()), int(place.max())
        met = [
            i
            for i, begin in enumerate(self._starts[:-1])
            if begin <= last and first < self._starts[i + 1]
        ]
        flat = [self._flat(i) for i in met]
        found = flat[0] if len(flat) == 1 else torch.cat(flat, 1)
        place = place - self._starts[met[0]]
        if not torch.equal(place, torch.arange(found.shape[1], device=place.device)):
            found = found[:, place]
        return found if (factor == 1).all() else found * factor

    def outer(self, start: int, rows: int, columns: int) -> tuple[Tensor, Tensor] | None:
        """``x_n`` and ``y_n``, if latents that are a matrix have ``x_n y_n^T``; else None.

        :return: shapes ``(N, rows)`` and ``(N, columns)``.
        """
        place = self._place[start : start + rows * columns]
        if int(place[0]) not in self._starts or not (self._factor[start:][: len(place)] == 1).all():
            return None
        index = self._starts.index(int(place[0]))
        layer, delta = self._uses[index], self._deltas[index]
        if not layer.is_outer(delta, self._count):
            return None
        sides = layer.sides(layer.rows, delta)
        numbers = torch.arange(rows * columns, device=place.device) + self._starts[index]
        if layer.weight.shape == (rows, columns) and torch.equal(place, numbers):
            return sides
        turned = numbers.reshape(columns, rows).mT.reshape(-1)
        if layer.weight.shape == (columns, rows) and torch.equal(place, turned):
            return sides[::-1]
        return None

    def _flat(self, index: int) -> Tensor:
        """Of all entries of a weight, shape ``(N, numel)``."""
        if index not in self._known:
            layer = self._uses[index]
            if layer.kept:  # of scaled log likelihoods
                rows = torch.cat(layer.kept).flatten(1) / self._root[:, None]
            else:
                rows = layer.of_examples(self._deltas[index], self._count).flatten(1)
            self._known[index] = rows
        return self._known[index]


@dataclasses.dataclass
class KeptRows:
    """The total for a family that takes gradients of examples as they are, beside a diagonal.

    :param draws: of each draw ``sqrt(s_n) g_n``, by layers or as a matrix ``(N, d)``.
    """

    rest: Tensor
    draws: list[ExampleRows | Tensor]

    def plus(self, other: KeptRows) -> KeptRows:
        """Of the draws of both."""
        return KeptRows(self.rest + other.rest, self.draws + other.draws)

    @torch.no_grad()  # activations have graphs
    def direction(self, family: Any, gradient: Tensor, count: int) -> Any:
        """The natural gradient from so many draws."""
        diagonal, is_by_layer = -self.rest / count, isinstance(self.draws[0], ExampleRows)
        if is_by_layer and hasattr(family, "squares_of_examples"):
            found = [family.squares_of_examples(draw) for draw in self.draws]
            total = tuple(1 / count * sum(same) for same in zip(*found, strict=True))
            return family.natural_gradient_from_squares(gradient, total, diagonal)
        rows = [draw.entries(0, family.dim) if is_by_layer else draw for draw in self.draws]
        return family.natural_gradient_from_rows(gradient, torch.cat(rows) / count**0.5, diagonal)
