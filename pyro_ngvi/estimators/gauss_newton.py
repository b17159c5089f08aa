"""Squares of the gradients of single examples; see :class:`ngvi.estimators.table.GaussNewton`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi.estimators import table
from ngvi.estimators.points import MAX_PROBED_DIAGONAL, Arrays, Examples
from pyro_ngvi.estimators.differentiate import Curvature, Parts
from pyro_ngvi.estimators.hessian import (
    BYTES_AT_ONCE,
    MAX_AT_ONCE,
    Hessian,
    batched,
    exact,
    one_by_one,
)
from pyro_ngvi.estimators.moments import finite_draws, map_structure, of_kept
from pyro_ngvi.estimators.per_example.layers import UnknownLayerError
from pyro_ngvi.estimators.per_example.rows import ExampleRows, KeptRows
from pyro_ngvi.estimators.per_example.squares import Recorder, squares
from pyro_ngvi.families.base import Family
from pyro_ngvi.tracing import LogDensity, examples


@shared_doc(table.GaussNewton, table.Hessian)
@dataclasses.dataclass(frozen=True)
class GaussNewton(Hessian):
    """:param bytes_per_draw: of the intermediate results of one draw."""

    bytes_per_draw: float
    #: Kinds of runs that can be squared by rows of activations; None once one could not.
    known: list[set | None] = dataclasses.field(default_factory=lambda: [set()])

    def parts(self, density: LogDensity, latents: Arrays) -> Parts:
        """The log density by examples; its rest is differentiated twice."""
        recorders: list[Recorder] = []

        def recorded() -> Recorder:
            recorders.append(Recorder())
            return recorders[-1]

        by_rows = self.known[0] is not None and all(
            q.keeps_rows() or (q.reads_diagonal() and q.dim > MAX_PROBED_DIAGONAL)
            for q in density.posteriors.values()
        )
        split = examples(density, latents, recorded if by_rows else None)
        of_examples = (split.scale * split.log_likelihood).sum(-1)
        recorders, count = recorders[-len(of_examples) :], split.scale.shape[-1]
        # What the squares are made of comes with the gradient, in one backward pass.
        results = [layer.result for one in recorders for layer in one.of_examples(count)]
        return Parts(of_examples, split.rest, results, (split, recorders))

    def curvature(
        self, parts: Parts, products: Callable, theta: Tensor, q: Family, slopes: tuple
    ) -> Curvature:
        """The rest's Hessians minus the examples' squares."""
        split, recorders = parts.examples
        rest = exact(products, q, is_rest=True)
        if recorders:
            try:
                return self._by_rows(rest, split, recorders, theta, q, slopes)
            except UnknownLayerError:
                self.known[0] = None
        rows = example_gradients(
            split.log_likelihood, theta, bytes_per_product=self.bytes_per_draw * len(theta)
        )
        return minus_squares(rest, rows, split.scale, q)

    def _by_rows(
        self,
        rest: Curvature,
        split: Examples,
        recorders: list[Recorder],
        theta: Tensor,
        q: Family,
        slopes: tuple[Tensor, Sequence[Tensor]],
    ) -> Curvature:
        """By rows of activations, which a family may keep.

        :raises UnknownLayerError: if weights do not meet them in a known way.
        """
        (gradient, deltas), sums, rows = slopes, [], []
        for k, recorder in enumerate(recorders):
            scale = split.scale[k]
            own = gradient if len(recorders) == 1 else _alone(gradient, k)
            layers = recorder.of_examples(len(scale))
            of_draw, deltas = deltas[: len(layers)], deltas[len(layers) :]
            for layer in layers if q.keeps_rows() else ():
                layer.kept = []
            run = recorder, split.log_likelihood[k], scale, theta, self.known[0]
            sums.append(squares(*run, (own, of_draw)))
            if q.keeps_rows():
                positive = torch.where(scale > 0, scale, 1.0)
                rows.append(ExampleRows(layers, of_draw, positive, theta, k))
        entries = sum(sums[1:], sums[0])

        def total(kept: Tensor | None) -> Any:
            of_rest = rest.total(kept)
            if not rows:
                return of_rest - of_kept(entries, kept).sum(0)
            return KeptRows(of_rest, rows if kept is None else _where(rows, kept))

        return Curvature(lambda: rest.finite() & finite_draws(entries), total)

    def direction(self, family: Family, gradient: Tensor, total: Any, count: int) -> Family:
        if not family.keeps_rows():
            return super().direction(family, gradient, total, count)
        return total.direction(family, gradient, count)


def _alone(gradient: Tensor, k: int) -> Tensor:
    """One draw's gradient, and zero for the others."""
    alone = torch.zeros_like(gradient)
    alone[k] = gradient[k]
    return alone


def _where(rows: list, kept: Tensor) -> list:
    return [one for one, is_kept in zip(rows, kept.tolist(), strict=True) if is_kept]


def minus_squares(rest: Curvature, gradients: Tensor, scale: Tensor, family: Family) -> Curvature:
    """The Gauss-Newton estimate of the Hessian at each of ``K`` draws.

    :param rest: exact Hessians of what is not an example.
    :param gradients: of the log likelihood of each example, shape ``(K, N, d)``.
    :param scale: how many examples each stands for, shape ``(K, N)``.
    :param family: what part of the Hessian is needed.
    """

    def total(kept: Tensor | None) -> Any:
        rows = of_kept(gradients, kept).flatten(0, 1)
        weights = of_kept(scale, kept).reshape(-1, 1)
        if family.keeps_rows():
            return KeptRows(rest.total(kept), [weights.sqrt() * rows])
        curvature = family.outer_products(weights * rows, rows)
        return map_structure(torch.sub, rest.total(kept), curvature)

    return Curvature(lambda: rest.finite() & finite_draws(gradients, scale), total)


def example_gradients(
    log_likelihood: Tensor, theta: Tensor, *, bytes_per_product: float = 0.0
) -> Tensor:
    """The gradient of each entry of ``log_likelihood``.

    :param log_likelihood: of ``N`` examples at ``K`` draws, shape ``(K, N)``.
    :param theta: the draws, shape ``(K, d)``.
    :param bytes_per_product: of the intermediate results that one derivative needs.
    :return: shape ``(K, N, d)``.
    """
    num_examples, dim = log_likelihood.shape[-1], theta.shape[-1]
    at_once = int(min(max(BYTES_AT_ONCE // max(bytes_per_product, 1.0), 1), MAX_AT_ONCE))
    if num_examples > dim:
        try:
            return _columns(log_likelihood, theta, at_once)
        except (RuntimeError, NotImplementedError):
            pass  # an operation whose backward pass cannot be differentiated
    return _rows(log_likelihood, theta, at_once)


def _rows(log_likelihood: Tensor, theta: Tensor, at_once: int) -> Tensor:
    """One reverse pass for each example."""
    rows, number = [], torch.arange(log_likelihood.shape[-1], device=theta.device)
    for some in number.split(at_once):
        vectors = (number == some[:, None]).to(theta)
        rows.append(_derivatives(log_likelihood, theta, vectors))
    return torch.cat(rows).movedim(0, 1)


def _columns(log_likelihood: Tensor, theta: Tensor, at_once: int) -> Tensor:
    """One forward pass for each coordinate, as the transpose of a reverse pass."""
    weights = torch.zeros_like(log_likelihood, requires_grad=True)
    (linear,) = torch.autograd.grad(
        log_likelihood, theta, weights, create_graph=True, materialize_grads=True
    )
    columns, number = [], torch.arange(theta.shape[-1], device=theta.device)
    for some in number.split(at_once):
        vectors = (number == some[:, None]).to(theta)
        columns.append(_derivatives(linear, weights, vectors))
    return torch.cat(columns).movedim(0, -1)


def _derivatives(outputs: Tensor, inputs: Tensor, vectors: Tensor) -> Tensor:
    # Without strides of zero, so that a product with data is one product of matrices.
    vectors = vectors[:, None].expand(-1, *outputs.shape).contiguous()
    try:
        return batched(outputs, inputs, vectors)
    except (RuntimeError, NotImplementedError):  # an operation that cannot be batched
        return one_by_one(outputs, inputs, vectors)
