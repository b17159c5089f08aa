"""What the Gaussians whose factor is a forest of blocks have in common.

The factor is an :class:`~pyro_ngvi.linalg.arrow.Arrow`, packed into one flat tensor: ``C`` with
``Sigma = C C^T``, or ``T`` with ``Sigma^-1 = T T^T``. Its Fisher information has one block for
every block of columns, and with ``Phi`` applied to the diagonal blocks the natural gradient is
``F Phi(F^T G)`` for either factor ``F``, with ``F^T G`` needed only where ``F`` has entries. Every
operation is linear in the number of blocks, and nothing is densified.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from ngvi.structure.arrow import Vector
from ngvi.structure.forest import Forest, forest_from_indices
from pyro_ngvi.families.base import Family
from pyro_ngvi.linalg import batched
from pyro_ngvi.linalg.arrow import Arrow


class ForestFamily(Family):
    """A Gaussian by the blocks of a triangular factor."""

    #: The coordinate that is the factor.
    factor_name: ClassVar[str]
    #: 1 for a factor of the covariance, -1 for one of the precision.
    power: ClassVar[int]

    structure: Forest | None

    def initial(self, loc: Tensor, scale: float | Tensor) -> Self:
        dim = loc.shape[-1]
        structure = self.structure or forest_from_indices([np.arange(dim)[:, None]])
        if structure.dim != dim:
            raise ValueError(f"The structure has {structure.dim} latents, but loc has {dim}.")
        diagonal = (scale * torch.ones_like(loc)) ** self.power
        packed = loc.new_zeros(structure.num_packed)
        packed[torch.as_tensor(structure.packed_diagonal()).to(loc.device)] = diagonal
        new = {"loc": loc, self.factor_name: packed, "structure": structure}
        return dataclasses.replace(self, **new)

    def couples(self) -> str | Forest:
        return self.structure if self.structure is not None else super().couples()

    @property
    def num_parameters(self) -> int:
        return self.dim + self.structure.num_lower

    def log_det_scale(self) -> Tensor:
        return self.power * sum(d.abs().log().sum() for d in self._factor().diagonals())

    # -- natural gradients ------------------------------------------------------------

    def log_det_displacement(self, change: Self) -> Tensor:
        return 0.5 * self.power * (self._packed() * change._packed()).sum()

    def natural_gradient(self, gradient: Self) -> Self:
        factor = self._factor()
        inner = factor.transpose_matmul(gradient._factor()).map_diagonal(batched.halve_diagonal)
        return self._with(self._covariance_times(factor, gradient.loc), factor.matmul(inner))

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        factor = self._factor()
        inner = factor.solve_matmul(natural_gradient._factor())
        symmetric = inner.map_diagonal(lambda block: block + batched.transpose(block))
        loc = self._precision_times(factor, natural_gradient.loc)
        return self._with(loc, factor.solve_transpose_products(symmetric))

    # -- curvature --------------------------------------------------------------------

    def assemble_hessian(self, products: Tensor) -> Tensor:
        self._bound()
        rows = self._split(products)  # by group (m, k, n)
        offsets = self.structure.offsets()
        blocks = []
        for index in range(len(rows)):
            mine = [_symmetric(self._own_products(index, rows[index]))]
            for ancestor in self.structure.ancestors(index):
                first = offsets[ancestor]
                last = first + self.structure.groups[ancestor].size
                mine.append(rows[index][first:last])
            blocks.append(tuple(mine))
        return Arrow(self.structure, tuple(blocks)).pack()

    def _own_products(self, index: int, rows: Tensor) -> Tensor:
        """A group's diagonal blocks ``(k, k, n)``, from its part ``(m, k, n)`` of the products."""
        raise NotImplementedError

    def outer_products(self, left: Tensor, right: Tensor) -> Tensor:
        self._bound()
        left, right = self._split(left), self._split(right)
        blocks = []
        for index in range(len(left)):
            mine = [_symmetric(torch.einsum("Npn,Nqn->pqn", left[index], right[index]))]
            for ancestor in self.structure.ancestors(index):
                pairs = [(left, right), (right, left)]
                mine.append(0.5 * sum(_outer(a[ancestor], b[index]) for a, b in pairs))
            blocks.append(tuple(mine))
        return Arrow(self.structure, tuple(blocks)).pack()

    def _trace_ratio(self, other: Self) -> Tensor:
        left, right = (other, self) if self.power > 0 else (self, other)
        ratio = left._factor().solve_matmul(right._factor())
        return sum(block.square().sum() for mine in ratio.blocks for block in mine)

    # -- helpers ----------------------------------------------------------------------

    def _packed(self) -> Tensor:
        return getattr(self._bound(), self.factor_name)

    def _factor(self) -> Arrow:
        return Arrow.unpack(self._bound().structure, self._packed())

    def _split(self, vector: Tensor) -> Vector:
        return Arrow.split(self.structure, vector)

    def _join(self, vector: Vector) -> Tensor:
        return Arrow.join(self.structure, vector)

    def _with(self, loc: Tensor, factor: Arrow) -> Self:
        return dataclasses.replace(self, **{"loc": loc, self.factor_name: factor.pack()})

    def _covariance_times(self, factor: Arrow, vector: Tensor) -> Tensor:
        times = _square_times if self.power > 0 else _square_divide
        return self._join(times(factor, self._split(vector)))

    def _precision_times(self, factor: Arrow, vector: Tensor) -> Tensor:
        times = _square_divide if self.power > 0 else _square_times
        return self._join(times(factor, self._split(vector)))


def _square_times(factor: Arrow, vector: Vector) -> Vector:
    """``F F^T x``."""
    return factor.times(factor.transpose_times(vector))


def _square_divide(factor: Arrow, vector: Vector) -> Vector:
    """``(F F^T)^-1 x``."""
    return factor.solve_transpose(factor.solve(vector))


def _symmetric(blocks: Tensor) -> Tensor:
    return 0.5 * (blocks + batched.transpose(blocks))


def _outer(above: Tensor, below: Tensor) -> Tensor:
    """``sum_N above_N below_N^T`` for each block below: ``(k_a, k, n)``."""
    if above.shape[-1] == 1:
        return torch.einsum("Np,Nqn->pqn", above[..., 0], below)
    above = above.repeat_interleave(below.shape[-1] // above.shape[-1], -1)
    return torch.einsum("Npn,Nqn->pqn", above, below)
