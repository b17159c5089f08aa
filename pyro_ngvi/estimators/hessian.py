"""Exact Hessians, as much of them as a family needs.

All draws share the probes, because the log density of one does not depend on another:
differentiating the sum of their gradients gives a product for each.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ngvi._docs import shared_doc
from ngvi.estimators import table
from ngvi.estimators.from_gradients import Averages
from ngvi.estimators.points import (
    MAX_PROBED_DIAGONAL,
    Arrays,
    Families,
    PointsBySite,
    map_tree,
    scales,
)
from ngvi.families.curvature import keeps_rows, reads_diagonal
from pyro_ngvi.estimators.differentiate import Curvature, Differentiator, Parts, Slope
from pyro_ngvi.estimators.moments import concatenated, finite_draws, of_kept, sums_by_leaf
from pyro_ngvi.families.base import Family
from pyro_ngvi.host import label, on_device
from pyro_ngvi.tracing import LogDensity

#: Products computed together: as many as this many bytes of intermediate results allow, to stay
#: in the cache and off the limits of memory.
BYTES_AT_ONCE = 2**23

MAX_AT_ONCE = 256


@shared_doc(table.Hessian)
@dataclasses.dataclass(frozen=True)
class Hessian:
    """Hessians by the products of :class:`HessianProducts`."""

    num_hessians: int

    def __call__(self, evaluate: Differentiator, here: Families, points: PointsBySite) -> Averages:
        first, hessians = evaluate.twice(here, points.some(slice(self.num_hessians)), self)
        found = [first]
        if len(points.weights) > self.num_hessians:
            found.append(evaluate(here, points.some(slice(self.num_hessians, None))))
        kept = concatenated([one.kept for one in found])
        count, total = first.kept.sum(), of_kept(points.weights, kept).sum()
        nothing = torch.where(count > 0, 0.0, torch.nan)
        directions = {}
        for site, family in here.items():
            gradient = sum(of_kept(one.by_site[site], one.kept).sum(0) for one in found) / total
            direction = self.direction(family, gradient, hessians[site], count.clamp(min=1))
            directions[site] = direction.map(lambda value: value + nothing)
        params = sums_by_leaf(pair for one in found for pair in one.params)
        return Averages(directions, first.values, kept, params)

    @label("direction")
    def direction(self, family: Family, gradient: Tensor, total: Any, count: Tensor) -> Family:
        """Return the natural gradient from the sum of the parts of this many Hessians."""
        return family.bonnet_price(gradient, map_tree(lambda h: h / count, total))

    def parts(self, density: LogDensity, latents: Arrays) -> Parts:
        """Return the log density at some draws, all of which is differentiated twice."""
        return Parts(None, density(latents))

    def curvature(self, parts: Parts, products: Callable, theta: Tensor, q: Family) -> Curvature:
        """Return a site's curvature at the same draws: exact Hessians.

        :param products: gives the products of the Hessian of ``parts.twice`` with a family's
            probes, or its ``diagonal``.
        """
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
        """Tell whether the model can be differentiated in reverse twice."""
        return self.way < len(self._ways) - 1

    def __call__(self, probes: np.ndarray, of: Slope) -> Tensor:
        """Products of the Hessian at each draw with each probe.

        :param probes: from :meth:`~pyro_ngvi.families.Family.hessian_probes`, shape ``(d,)``.
        :return: shape ``(m, K, d)``.
        :raises RuntimeError: if no way works.
        """
        number, count = on_device(probes, of.theta, torch.int64), int(probes.max()) + 1
        return torch.cat([found for _, found in self._all(number, count, of)])

    def diagonal(self, of: Slope) -> Tensor:
        """Return the diagonal of the Hessian at each draw, shape ``(K, d)``.

        Two products if it is all that there is in the Hessian, else ``d``.
        """
        theta = of.theta
        vectors = _ones_and_scales(theta.shape[-1], theta.dtype, theta.device)
        whole, scaled = self._with(vectors, of)
        tolerance = torch.finfo(theta.dtype).eps ** 0.5
        excess = torch.addcmul(scaled, vectors[1], whole, value=-1).abs_()
        if not (excess.sub_(whole.abs(), alpha=tolerance) > 0).any():
            return whole
        dim, number = theta.shape[-1], torch.arange(theta.shape[-1], device=theta.device)
        parts = self._all(number, dim, of)
        return torch.cat([found[torch.arange(len(some)), :, some] for some, found in parts]).mT

    def _all(self, number: Tensor, count: int, of: Slope) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield products with the indicators of this many numbers, as many together as fit."""
        theta = of.theta
        of_one = max(of.bytes_per_product, theta.nbytes, 1.0)
        at_once = int(min(max(BYTES_AT_ONCE // of_one, 1), MAX_AT_ONCE))
        for some in torch.arange(count, device=theta.device).split(at_once):
            yield some, self._with((number == some[:, None]).to(theta), of)

    def _with(self, vectors: Tensor, of: Slope) -> Tensor:
        """Products with some vectors, of shape ``(m, d)``, in the way that works."""
        # Without strides of zero, so that a product with data is one product of matrices.
        vectors = vectors[:, None].expand(-1, *of.theta.shape).contiguous()
        while True:
            try:
                return self._ways[self.way](of.gradient, of.theta, vectors, of.evaluate)
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


def batched(outputs: Tensor, inputs: Tensor, vectors: Tensor, evaluate: Any = None) -> Tensor:
    """Transposed derivatives of ``outputs``, times vectors of their shape, in one pass."""
    products = None
    if outputs.requires_grad:
        (products,) = torch.autograd.grad(
            outputs, inputs, vectors, is_grads_batched=True, retain_graph=True, allow_unused=True
        )
    return inputs.new_zeros(len(vectors), *inputs.shape) if products is None else products


def one_by_one(outputs: Tensor, inputs: Tensor, vectors: Tensor, evaluate: Any = None) -> Tensor:
    """Return what :func:`batched` does, in as many passes as there are vectors."""
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


def exact(products: Callable, family: Family, *, is_rest: bool = False) -> Curvature:
    """Return the Hessian at each of ``K`` draws, as far as a family needs it.

    :param products: those of :class:`HessianProducts` with the family's probes, shape
        ``(m, K, d)``, or a diagonal, shape ``(K, d)``.
    :param is_rest: whether they are of what examples leave, of which a family that keeps their
        gradients as they are gets the diagonal.
    """
    is_diagonal = reads_diagonal(family) and family.dim > MAX_PROBED_DIAGONAL
    if is_diagonal or (is_rest and keeps_rows(family)):
        of_draws, assembled = products(family, diagonal=True), lambda entries: entries
    else:
        of_draws, assembled = products(family).movedim(1, 0), family.assemble_hessian
    return Curvature(
        lambda: finite_draws(of_draws), lambda kept: assembled(of_kept(of_draws, kept).sum(0))
    )
