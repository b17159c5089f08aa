"""Squares of the gradients of single examples; see :class:`ngvi.estimators.table.GaussNewton`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi.conjugate.guide import check_no_conjugate_sites
from ngvi.estimators import table
from ngvi.estimators.points import MAX_PROBED_DIAGONAL, Arrays, map_tree
from ngvi.families.curvature import keeps_rows, reads_diagonal
from ngvi.networks.examples import FEW_NUMBERS, NOT_BY_ROWS, NUMBERS_ON_GPU, are_same
from pyro_ngvi.estimators import Plan
from pyro_ngvi.estimators.differentiate import Curvature, Parts
from pyro_ngvi.estimators.hessian import (
    BYTES_AT_ONCE,
    MAX_AT_ONCE,
    Hessian,
    batched,
    exact,
    one_by_one,
)
from pyro_ngvi.estimators.moments import finite_draws, of_kept
from pyro_ngvi.families.base import Family
from pyro_ngvi.networks.examples import alone, examples
from pyro_ngvi.tracing import LogDensity

#: Numbers in the gradients of the examples that are computed at once on a CPU.
NUMBERS_AT_ONCE = 2**22


@shared_doc(table.GaussNewton, table.Hessian)
@dataclasses.dataclass(frozen=True)
class GaussNewton(Hessian):
    """Curvature of the examples by their gradients, and of the rest by its Hessian.

    :param bytes_per_draw: of the intermediate results of one draw.
    :param by_rows: whether gradients are those of runs of single examples.
    """

    bytes_per_draw: float
    by_rows: bool = False

    def prepared(self, plan: Plan, density: LogDensity) -> GaussNewton:
        """Return the estimator for a model, after a look at its examples.

        :raises ValueError: if there are none; or if there are many of many latents, and they are
            not those of single rows.
        """
        check_no_conjugate_sites(density.conjugate_sites)
        here = density.posteriors.values()
        latents = {
            site: (q.detach().mean + torch.randn_like(q.mean))[None]
            for site, q in density.posteriors.items()
        }
        with torch.no_grad():
            split = examples(density, latents)
        count, dim = split.scale.shape[-1], sum(q.dim for q in here)
        plan.bytes_of_rows = split.scale.nbytes * max(q.dim for q in here)
        if not all(
            keeps_rows(q) or (reads_diagonal(q) and q.dim > MAX_PROBED_DIAGONAL) for q in here
        ):
            return self
        by_rows = _is_by_rows(density, latents, split.log_likelihood[0])
        if not by_rows and count * dim > FEW_NUMBERS:
            raise ValueError(NOT_BY_ROWS)
        return dataclasses.replace(self, by_rows=by_rows)

    def parts(self, density: LogDensity, latents: Arrays) -> Parts:
        """Return the log density by examples; its rest is differentiated twice."""
        split = examples(density, latents)
        of_examples = (split.scale * split.log_likelihood).sum(-1)
        return Parts(of_examples, split.rest, (split, density, latents))

    def curvature(self, parts: Parts, products: Callable, theta: Tensor, q: Family) -> Curvature:
        """Return the rest's Hessians minus the examples' squares."""
        split, density, latents = parts.examples
        rest = exact(products, q, is_rest=True)
        if not self.by_rows:
            size = self.bytes_per_draw * len(theta)
            rows = example_gradients(split.log_likelihood, theta, bytes_per_product=size)
            return minus_squares(rest, rows, split.scale, q)
        site = next(site for site, value in latents.items() if value is theta)
        draws = [
            _gradients(density, {name: v[k].detach() for name, v in latents.items()}, site, scale)
            for k, scale in enumerate(split.scale)
        ]
        if keeps_rows(q):
            rows = torch.stack([torch.cat([rows for rows, _ in draw]) for draw in draws])
            return minus_squares(rest, rows, split.scale, q)
        squares = [sum(weights @ rows.square() for rows, weights in draw) for draw in draws]
        entries = torch.stack(squares)
        return Curvature(
            lambda: rest.finite() & finite_draws(entries),
            lambda kept: rest.total(kept) - of_kept(entries, kept).sum(0),
        )

    def direction(self, family: Family, gradient: Tensor, total: Any, count: Tensor) -> Family:
        if not keeps_rows(family):
            return super().direction(family, gradient, total, count)
        rows = total.rows / count**0.5
        return family.natural_gradient_from_rows(gradient, rows, -total.rest / count)


@dataclasses.dataclass
class KeptRows:
    """The total for a family that takes gradients of examples as they are, beside a diagonal.

    :param rows: ``sqrt(s_n) g_n`` of all draws, shape ``(N, d)``.
    """

    rest: Tensor
    rows: Tensor

    def plus(self, other: KeptRows) -> KeptRows:
        """Return the total over the draws of both."""
        return KeptRows(self.rest + other.rest, torch.cat([self.rows, other.rows]))


def minus_squares(rest: Curvature, gradients: Tensor, scale: Tensor, family: Family) -> Curvature:
    """Return the Gauss-Newton estimate of the Hessian at each of ``K`` draws.

    :param rest: exact Hessians of what is not an example.
    :param gradients: of the log likelihood of each example, shape ``(K, N, d)``.
    :param scale: how many examples each stands for, shape ``(K, N)``.
    :param family: what part of the Hessian is needed.
    """

    def total(kept: Tensor) -> Any:
        rows = of_kept(gradients, kept).flatten(0, 1)
        weights = of_kept(scale, kept).reshape(-1, 1)
        if keeps_rows(family):
            return KeptRows(rest.total(kept), weights.sqrt() * rows)
        curvature = family.outer_products(weights * rows, rows)
        return map_tree(torch.sub, rest.total(kept), curvature)

    return Curvature(lambda: rest.finite() & finite_draws(gradients, scale), total)


# -- by runs of single examples -----------------------------------------------------------


def _is_by_rows(density: LogDensity, latents: Arrays, expected: Tensor) -> bool:
    """Return whether single examples have the log likelihoods that they have together."""
    at = {site: value[0] for site, value in latents.items()}
    function, rows = alone(density, len(expected))
    try:
        with torch.no_grad():
            found = density.of(
                lambda: torch.vmap(lambda *row: function(at, row), randomness="same")(*rows)
            )
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return are_same(found.numpy(force=True), expected.numpy(force=True))


def _gradients(
    density: LogDensity, latents: Arrays, site: str, scale: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the examples' gradients at one draw for one site, and their scales, in parts."""
    function, rows = alone(density, len(scale))

    def log_likelihood(theta: Tensor, *row: Tensor) -> Tensor:
        return function({**latents, site: theta}, row)

    gradient = torch.func.grad(log_likelihood)
    each = torch.vmap(gradient, (None, *[0] * len(rows)), randomness="same")
    most = NUMBERS_AT_ONCE if scale.device.type == "cpu" else NUMBERS_ON_GPU
    at_once = max(1, most // latents[site].numel())
    parts = zip(scale.split(at_once), *(leaf.split(at_once) for leaf in rows), strict=True)
    for weights, *some in parts:
        yield density.of(lambda some=some: each(latents[site], *some)), weights


# -- by a run of all examples -------------------------------------------------------------


def example_gradients(
    log_likelihood: Tensor, theta: Tensor, *, bytes_per_product: float = 0.0
) -> Tensor:
    """Return the gradient of each entry of ``log_likelihood``.

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
    return _derivatives(log_likelihood, theta, at_once).movedim(0, 1)


def _columns(log_likelihood: Tensor, theta: Tensor, at_once: int) -> Tensor:
    """Return one forward pass for each coordinate, as the transpose of a reverse pass."""
    weights = torch.zeros_like(log_likelihood, requires_grad=True)
    (linear,) = torch.autograd.grad(
        log_likelihood, theta, weights, create_graph=True, materialize_grads=True
    )
    return _derivatives(linear, weights, at_once).movedim(0, -1)


def _derivatives(outputs: Tensor, inputs: Tensor, at_once: int) -> Tensor:
    """Return one reverse pass for each entry of the last axis."""
    found, number = [], torch.arange(outputs.shape[-1], device=outputs.device)
    for some in number.split(at_once):
        vectors = (number == some[:, None]).to(outputs)
        # Without strides of zero, so that a product with data is one product of matrices.
        vectors = vectors[:, None].expand(-1, *outputs.shape).contiguous()
        try:
            found.append(batched(outputs, inputs, vectors))
        except (RuntimeError, NotImplementedError):  # an operation that cannot be batched
            found.append(one_by_one(outputs, inputs, vectors))
    return torch.cat(found)
