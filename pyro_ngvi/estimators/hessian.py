"""Exact Hessians, as much of them as a family needs.

All draws share the probes, because the log density of one does not depend on another:
differentiating the sum of their gradients gives a product for each.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi.estimators import kinds as estimators
from ngvi.estimators.kinds import MAX_PROBED_DIAGONAL, Arrays, Families, Points, scales
from pyro_ngvi.estimators.evaluate import Curvature, Evaluator, Parts
from pyro_ngvi.estimators.moments import (
    Estimate,
    concatenated,
    finite_draws,
    map_structure,
    nowhere,
    of_kept,
)
from pyro_ngvi.families.base import Family
from pyro_ngvi.host import on_device
from pyro_ngvi.tracing import LogDensity

#: Products computed together: as many as this many bytes of intermediate results allow, to stay
#: in the cache and off the limits of memory.
BYTES_AT_ONCE = 2**23

MAX_AT_ONCE = 256


@shared_doc(estimators.Hessian)
@dataclasses.dataclass(frozen=True)
class Hessian:
    """With the products of :class:`HessianProducts`."""

    num_hessians: int

    def __call__(self, evaluate: Evaluator, here: Families, points: Points) -> Estimate:
        first = evaluate(here, points.some(slice(self.num_hessians)), self)
        found = [first]
        if len(points.weights) > self.num_hessians:
            found.append(evaluate(here, points.some(slice(self.num_hessians, None))))
        num_kept, count = first.num_kept, sum(one.num_kept for one in found)
        directions = {}
        for site, family in here.items():
            if not num_kept:
                directions[site] = nowhere(family)
                continue
            gradients = [of_kept(one.gradients[site], one.some_kept) for one in found]
            gradient = concatenated(gradients).mean(0)
            directions[site] = self.direction(family, gradient, first.hessians[site], num_kept)
        sums: dict[int, tuple[Tensor, Tensor]] = {}
        for one in found:
            for leaf, gradient in one.ordinary:
                before = sums.get(id(leaf), (leaf, 0.0))[1]
                sums[id(leaf)] = leaf, before + gradient / count
        ordinary = list(sums.values())
        dropped = len(points.weights) - count
        return Estimate(directions, first.values, first.kept, lambda: dropped, ordinary)

    def direction(self, family: Family, gradient: Tensor, total: Any, count: int) -> Family:
        """The natural gradient from the sum of the parts of so many Hessians."""
        return family.bonnet_price(gradient, map_structure(lambda h: h / count, total))

    def parts(self, density: LogDensity, latents: Arrays) -> Parts:
        """The log density, all of which is differentiated twice."""
        values = density(latents)
        return Parts(values, values)

    def curvature(self, parts: Parts, products: Callable, theta: Tensor, q: Family) -> Curvature:
        """Exact Hessians."""
        return exact(products, q)


class HessianProducts:
    """Hessian-vector products by the fastest way of automatic differentiation that works.

    Reverse over reverse, with probes in a batch; one by one, for models with an operation that
    cannot be batched; forward over reverse, for those with one that cannot be differentiated
    in reverse twice. The way is found once and kept.

    :ivar way: index of the way in use.
    """

    def __init__(self) -> None:
        self.way = 0
        self._ways = (batched, one_by_one, _forward_over_reverse)

    @property
    def reverse(self) -> bool:
        """Whether the model can be differentiated in reverse twice."""
        return self.way < len(self._ways) - 1

    def __call__(
        self,
        gradient: Tensor,
        theta: Tensor,
        probes: np.ndarray,
        evaluate: Callable[[Tensor], Tensor],
        *,
        bytes_per_product: float = 0.0,
    ) -> Tensor:
        """Products of the Hessian at each draw with each probe.

        :param gradient: at ``K`` draws, with its graph; shape ``(K, d)``.
        :param theta: the draws, shape ``(K, d)``.
        :param probes: from :meth:`~pyro_ngvi.families.Family.hessian_probes`, shape ``(d,)``.
        :param evaluate: the log density at draws, ``(K, d)`` to ``(K,)``, with the same noise
            and data as ``gradient``.
        :param bytes_per_product: of the intermediate results that one product needs.
        :return: shape ``(m, K, d)``.
        :raises RuntimeError: if no way works.
        """
        number, count = on_device(probes, theta, torch.int64), int(probes.max()) + 1
        products = [
            self._with((number == some[:, None]).to(theta), gradient, theta, evaluate)
            for some in _passes(count, theta, bytes_per_product)
        ]
        return torch.cat(products)

    def diagonal(
        self,
        gradient: Tensor,
        theta: Tensor,
        evaluate: Callable[[Tensor], Tensor],
        *,
        bytes_per_product: float = 0.0,
    ) -> Tensor:
        """The diagonal of the Hessian at each draw, shape ``(K, d)``.

        Two products if it is all that there is in the Hessian, else ``d``.
        """
        vectors = _ones_and_scales(theta.shape[-1], theta.dtype, theta.device)
        whole, scaled = self._with(vectors, gradient, theta, evaluate)
        tolerance = torch.finfo(theta.dtype).eps ** 0.5
        excess = torch.addcmul(scaled, vectors[1], whole, value=-1).abs_()
        if not (excess.sub_(whole.abs(), alpha=tolerance) > 0).any():
            return whole
        number = torch.arange(theta.shape[-1], device=theta.device)
        entries = [
            self._with((number == some[:, None]).to(theta), gradient, theta, evaluate)[
                torch.arange(len(some)), :, some
            ]
            for some in _passes(len(number), theta, bytes_per_product)
        ]
        return torch.cat(entries).mT

    def _with(self, vectors: Tensor, gradient: Tensor, theta: Tensor, evaluate: Callable) -> Tensor:
        """Products with some vectors, of shape ``(m, d)``, in the way that works."""
        # Without strides of zero, so that a product with data is one product of matrices.
        vectors = vectors[:, None].expand(-1, *theta.shape).contiguous()
        while True:
            try:
                return self._ways[self.way](gradient, theta, vectors, evaluate)
            except (RuntimeError, NotImplementedError):
                if self.way == len(self._ways) - 1:
                    self.way = 0  # another model, or other arguments, may go the first way
                    raise
                self.way += 1


@functools.lru_cache(maxsize=4)
def _ones_and_scales(dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Vectors that tell whether a Hessian is diagonal, shape ``(2, dim)``."""
    scale = torch.as_tensor(scales(dim)).to(device, dtype)
    return torch.stack([torch.ones_like(scale), scale])


def _passes(count: int, theta: Tensor, bytes_per_product: float) -> tuple[Tensor, ...]:
    """Indices of the products that are computed together."""
    of_one = max(bytes_per_product, theta.nbytes, 1.0)
    at_once = int(min(max(BYTES_AT_ONCE // of_one, 1), MAX_AT_ONCE))
    return torch.arange(count, device=theta.device).split(at_once)


def batched(outputs: Tensor, inputs: Tensor, vectors: Tensor, evaluate: Any = None) -> Tensor:
    """Transposed derivatives of ``outputs``, times vectors of their shape, in one pass."""
    products = None
    if outputs.requires_grad:
        (products,) = torch.autograd.grad(
            outputs, inputs, vectors, is_grads_batched=True, retain_graph=True, allow_unused=True
        )
    return inputs.new_zeros(len(vectors), *inputs.shape) if products is None else products


def one_by_one(outputs: Tensor, inputs: Tensor, vectors: Tensor, evaluate: Any = None) -> Tensor:
    """As :func:`batched`, in as many passes as there are vectors."""
    if not outputs.requires_grad:
        return inputs.new_zeros(len(vectors), *inputs.shape)
    products = [
        torch.autograd.grad(outputs, inputs, v, retain_graph=True, materialize_grads=True)[0]
        for v in vectors
    ]
    return torch.stack(products)


def _forward_over_reverse(
    gradient: Tensor, theta: Tensor, vectors: Tensor, evaluate: Callable
) -> Tensor:
    with torch.no_grad():
        of_density = torch.func.grad(lambda x: evaluate(x).sum())
        here = theta.detach()
        return torch.stack([torch.func.jvp(of_density, (here,), (v,))[1] for v in vectors])


class Hessians:
    """The Hessian at each of ``K`` draws, as far as a family needs it.

    :param products: from :class:`HessianProducts`, shape ``(m, K, d)``.
    :param family: whose part of the Hessian it is.
    """

    def __init__(self, products: Tensor, family: Family) -> None:
        self.products, self.family = products, family

    def finite(self) -> Tensor:
        return finite_draws(self.products.movedim(1, 0))

    def total(self, kept: Tensor | None) -> Any:
        products = self.products if kept is None else self.products[:, kept]
        return self.family.assemble_hessian(products.sum(1))


class Diagonals:
    """The diagonal of the Hessian at each of ``K`` draws, for a family that needs no more.

    :param entries: shape ``(K, d)``.
    """

    def __init__(self, entries: Tensor) -> None:
        self.entries = entries

    def finite(self) -> Tensor:
        return finite_draws(self.entries)

    def total(self, kept: Tensor | None) -> Tensor:
        return of_kept(self.entries, kept).sum(0)


def exact(products: Callable, family: Family, *, is_rest: bool = False) -> Hessians | Diagonals:
    """The Hessians, as far as a family needs them.

    :param is_rest: whether they are of what examples leave, of which a family that keeps their
        gradients as they are gets the diagonal.
    """
    is_diagonal = family.reads_diagonal() and family.dim > MAX_PROBED_DIAGONAL
    if is_diagonal or (is_rest and family.keeps_rows()):
        return Diagonals(products(family, diagonal=True))
    return Hessians(products(family), family)
