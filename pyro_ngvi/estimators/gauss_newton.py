"""Squares of the gradients of single examples; see :class:`ngvi.estimators.kinds.GaussNewton`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi.estimators import kinds as estimators
from ngvi.estimators.kinds import MAX_PROBED_DIAGONAL, Arrays
from pyro_ngvi.estimators.evaluate import Curvature, Parts
from pyro_ngvi.estimators.example_rows import ExampleRows, KeptByRows
from pyro_ngvi.estimators.hessian import (
    BYTES_AT_ONCE,
    MAX_AT_ONCE,
    Hessian,
    batched,
    exact,
    one_by_one,
)
from pyro_ngvi.estimators.moments import finite_draws, map_structure, of_kept
from pyro_ngvi.estimators.squares import Recorder, squares
from pyro_ngvi.estimators.uses import OtherUseError
from pyro_ngvi.families.base import Family
from pyro_ngvi.tracing import Examples, LogDensity, examples


@shared_doc(estimators.GaussNewton, estimators.Hessian)
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
        plain = (split.scale * split.log_likelihood).sum(-1)
        recorders = recorders[-len(plain) :]
        parts = Parts(plain + split.rest, split.rest, (split, recorders))
        if not by_rows:
            return parts
        # What the squares are made of comes with the gradient, in one backward pass.
        count = split.scale.shape[-1]
        results = [use.result for one in recorders for use in one.of_examples(count)]
        return parts._replace(plain=plain, between=results)

    def curvature(self, parts: Parts, products: Callable, theta: Tensor, q: Family) -> Curvature:
        """The rest's Hessians minus the examples' squares."""
        split, recorders = parts.rest
        rest = exact(products, q, is_rest=True)
        if recorders:
            try:
                entries, rows = self._by_rows(split, recorders, theta, q, parts.slopes)
                return KeptByRows(rest, entries, rows) if rows else SquaresByRows(rest, entries)
            except OtherUseError:
                self.known[0] = None
        rows = example_gradients(
            split.log_likelihood, theta, bytes_per_product=self.bytes_per_draw * len(theta)
        )
        return Squares(rest, rows, split.scale, q)

    def _by_rows(
        self,
        split: Examples,
        recorders: list[Recorder],
        theta: Tensor,
        q: Family,
        slopes: tuple[Tensor, Sequence[Tensor]],
    ) -> tuple[Tensor, list[ExampleRows]]:
        """Sums of squares, shape ``(K, d)``, and rows of each draw if the family keeps them."""
        (gradient, deltas), found, rows = slopes, [], []
        for k, recorder in enumerate(recorders):
            scale = split.scale[k]
            uses = recorder.of_examples(len(scale))
            for use in uses if q.keeps_rows() else ():
                use.kept = []
            own = gradient if len(recorders) == 1 else _alone(gradient, k)
            draw = recorder, split.log_likelihood[k], scale, theta, self.known[0]
            found.append(squares(*draw, (own, deltas[: len(uses)])))
            if q.keeps_rows():
                positive = torch.where(scale > 0, scale, 1.0)
                rows.append(ExampleRows(uses, deltas[: len(uses)], positive, theta, k))
            deltas = deltas[len(uses) :]
        return sum(found[1:], found[0]), rows

    def direction(self, family: Family, gradient: Tensor, total: Any, count: int) -> Family:
        if not family.keeps_rows():
            return super().direction(family, gradient, total, count)
        return total.price(family, gradient, count)


def _alone(gradient: Tensor, k: int) -> Tensor:
    """One draw's gradient, and zero for the others."""
    alone = torch.zeros_like(gradient)
    alone[k] = gradient[k]
    return alone


@dataclasses.dataclass
class SquaresByRows:
    """The Gauss-Newton estimate of the Hessian's diagonal at each of ``K`` draws.

    :param rest: the exact one of what is not an example.
    :param entries: sums of squares, shape ``(K, d)``.
    """

    rest: Curvature
    entries: Tensor

    def finite(self) -> Tensor:
        return self.rest.finite() & finite_draws(self.entries)

    def total(self, kept: Tensor | None) -> Any:
        return self.rest.total(kept) - of_kept(self.entries, kept).sum(0)


@dataclasses.dataclass
class Rows:
    """The total for a family that keeps them: scaled, shape ``(N, d)``, beside a diagonal."""

    rest: Tensor
    rows: Tensor

    def plus(self, other: Rows) -> Rows:
        """Of the draws of both."""
        return Rows(self.rest + other.rest, torch.cat([self.rows, other.rows]))

    def price(self, family: Family, gradient: Tensor, count: int) -> Family:
        """The natural gradient from so many draws."""
        return family.natural_gradient_from_rows(
            gradient, self.rows / count**0.5, -self.rest / count
        )


class Squares:
    """The Gauss-Newton estimate of the Hessian at each of ``K`` draws.

    :param rest: exact Hessians of what is not an example.
    :param gradients: of the log likelihood of each example, shape ``(K, N, d)``.
    :param scale: how many examples each stands for, shape ``(K, N)``.
    :param family: what part of the Hessian is needed.
    """

    def __init__(self, rest: Curvature, gradients: Tensor, scale: Tensor, family: Family) -> None:
        self.rest, self.gradients, self.scale, self.family = rest, gradients, scale, family

    def finite(self) -> Tensor:
        return self.rest.finite() & finite_draws(self.gradients, self.scale)

    def total(self, kept: Tensor | None) -> Any:
        rows = of_kept(self.gradients, kept).flatten(0, 1)
        scale = of_kept(self.scale, kept).reshape(-1, 1)
        if self.family.keeps_rows():
            return Rows(self.rest.total(kept), scale.sqrt() * rows)
        curvature = self.family.outer_products(scale * rows, rows)
        return map_structure(torch.sub, self.rest.total(kept), curvature)


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
