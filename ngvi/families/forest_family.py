"""Common parts of the Gaussians whose factor is a forest of blocks.

The factor is an :class:`~ngvi.linalg.arrow.Arrow`, packed into one flat array: ``C`` with
``Sigma = C C^T``, or ``T`` with ``Sigma^-1 = T T^T``. Its Fisher information has one block for
every block of columns, and with ``Phi`` applied to the diagonal blocks the natural gradient is
``F Phi(F^T G)`` for either factor ``F``, with ``F^T G`` needed only where ``F`` has entries. Every
operation is linear in the number of blocks, and nothing is densified.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Self

import numpy as np

from ngvi.families import steps
from ngvi.families.base import Array, Family
from ngvi.families.draws import has_free_scales
from ngvi.latents.forest import Forest, forest_from_indices
from ngvi.linalg.arrow import Arrow
from ngvi.linalg.forest_blocks import Vector


class ForestFamily(Family):
    """A Gaussian by the blocks of a triangular factor."""

    #: The coordinate that is the factor.
    factor_name: ClassVar[str]
    #: 1 for a factor of the covariance, -1 for one of the precision.
    power: ClassVar[int]

    #: A package's matrices of a forest.
    _arrow: ClassVar[type[Arrow]]

    structure: Any

    def initial(self, loc: Array, scale: float | Array) -> Self:
        dim = loc.shape[-1]
        structure = self.structure or forest_from_indices([np.arange(dim)[:, None]])
        if structure.dim != dim:
            raise ValueError(f"The structure has {structure.dim} latents, but loc has {dim}.")
        diagonal = (scale * self.xp.ones_like(loc)) ** self.power
        packed = self.ops.scatter(structure.num_packed, structure.packed_diagonal(), diagonal)
        new = {"loc": loc, self.factor_name: packed, "structure": structure}
        return dataclasses.replace(self, **new)  # type: ignore[type-var]

    def couples(self) -> str | Forest:
        return self.structure if self.structure is not None else super().couples()

    @property
    def num_parameters(self) -> int:
        return self.dim + self.structure.num_lower

    def log_det_scale(self) -> Array:
        return self.power * sum(self.xp.log(abs(d)).sum() for d in self._factor().diagonals())

    # -- natural gradients ------------------------------------------------------------

    def log_det_jvp(self, change: Self) -> Array:
        return 0.5 * self.power * (self._packed() * change._packed()).sum()

    def natural_gradient(self, gradient: Self) -> Self:
        factor = self._factor()
        inner = factor.transpose_matmul(gradient._factor()).map_diagonal(
            self._arrow.ops.halve_diagonal
        )
        return self._with(self._covariance_times(factor, gradient.loc), factor.matmul(inner))

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        factor = self._factor()
        inner = factor.solve_matmul(natural_gradient._factor())
        symmetric = inner.map_diagonal(lambda block: block + self._arrow.ops.transpose(block))
        loc = self._precision_times(factor, natural_gradient.loc)
        return self._with(loc, factor.solve_transpose_products(symmetric))

    def _of_columns(self, values: Array) -> Array:
        """Return a value for each block, at every entry of the block's columns, packed."""
        pieces = [
            self.xp.broadcast_to(value[0], shape).reshape(-1)
            for value, shapes in zip(self._split(values), self.structure.shapes(), strict=True)
            for shape in shapes
        ]
        return self.xp.concatenate(pieces)

    # -- curvature --------------------------------------------------------------------

    def assemble_hessian(self, products: Array) -> Array:
        self._bound()
        rows = self._split(products)  # by group (m, k, n)
        offsets = self.structure.offsets()
        blocks = []
        for index in range(len(rows)):
            mine = [self._symmetric(self._own_products(index, rows[index]))]
            for ancestor in self.structure.ancestors(index):
                first = offsets[ancestor]
                last = first + self.structure.groups[ancestor].size
                mine.append(rows[index][first:last])
            blocks.append(tuple(mine))
        return self._arrow(self.structure, tuple(blocks)).pack()

    def _own_products(self, index: int, rows: Array) -> Array:
        """Return a group's diagonal blocks ``(k, k, n)`` from its products ``(m, k, n)``."""
        raise NotImplementedError

    def outer_products(self, left: Array, right: Array) -> Array:
        self._bound()
        left, right = self._split(left), self._split(right)
        blocks = []
        for index in range(len(left)):
            mine = [self._symmetric(self._outer(left[index], right[index]))]
            for ancestor in self.structure.ancestors(index):
                pairs = [(left, right), (right, left)]
                mine.append(0.5 * sum(self._outer(a[ancestor], b[index]) for a, b in pairs))
            blocks.append(tuple(mine))
        return self._arrow(self.structure, tuple(blocks)).pack()

    def _trace_ratio(self, other: Self) -> Array:
        left, right = (other, self) if self.power > 0 else (self, other)
        ratio = left._factor().solve_matmul(right._factor())
        return sum((block**2).sum() for mine in ratio.blocks for block in mine)

    def _symmetric(self, blocks: Array) -> Array:
        return 0.5 * (blocks + self._arrow.ops.transpose(blocks))

    def _outer(self, above: Array, below: Array) -> Array:
        """``sum_N above_N below_N^T`` for each block below: ``(k_a, k, n)``."""
        if above.shape[-1] == 1:
            return self.xp.einsum("Np,Nqn->pqn", above[..., 0], below)
        above = self._arrow.ops.repeat(above, below.shape[-1] // above.shape[-1])
        return self.xp.einsum("Npn,Nqn->pqn", above, below)

    # -- helpers ----------------------------------------------------------------------

    def _packed(self) -> Array:
        return getattr(self._bound(), self.factor_name)

    def _factor(self) -> Arrow:
        return self._arrow.unpack(self._bound().structure, self._packed())

    def _split(self, vector: Array) -> Vector:
        return self._arrow.split(self.structure, vector)

    def _join(self, vector: Vector) -> Array:
        return self._arrow.join(self.structure, vector)

    def _with(self, loc: Array, factor: Arrow) -> Self:
        new = {"loc": loc, self.factor_name: factor.pack()}
        return dataclasses.replace(self, **new)  # type: ignore[type-var]

    def _covariance_times(self, factor: Arrow, vector: Array) -> Array:
        times = _square_times if self.power > 0 else _square_divide
        return self._join(times(factor, self._split(vector)))

    def _precision_times(self, factor: Arrow, vector: Array) -> Array:
        times = _square_divide if self.power > 0 else _square_times
        return self._join(times(factor, self._split(vector)))


has_free_scales.register(ForestFamily, lambda family: True)


steps.has_parts.register(ForestFamily, lambda family: True)


@steps.moved_latents.register(ForestFamily)
def _(family: ForestFamily, direction: ForestFamily) -> Array:
    ones = family._split(family.xp.ones_like(family.loc))
    moved = []
    for mine, one in zip(direction._factor().blocks, ones, strict=True):
        moves = sum(abs(block).sum(0).sum(0) for block in mine) != 0
        moved.append(family.xp.where(moves, one, 0.0 * one))
    return family._join(moved)


@steps.weighted.register(ForestFamily)
def _(
    family: ForestFamily, direction: ForestFamily, of_mean: Array, of_scale: Array
) -> ForestFamily:
    loc = direction.loc
    if family.power > 0:
        loc = of_mean * loc
    else:  # T^T dmu has a part for each latent
        factor = family._factor()
        own = factor.transpose_times(family._split(loc))
        own = [(w - 1.0) * one for w, one in zip(family._split(of_mean), own, strict=True)]
        loc = loc + family._join(factor.solve_transpose(own))
    packed = family._of_columns(of_scale) * direction._packed()
    new = {"loc": loc, family.factor_name: packed}
    return dataclasses.replace(direction, **new)  # type: ignore[type-var]


def _square_times(factor: Arrow, vector: Vector) -> Vector:
    """``F F^T x``."""
    return factor.times(factor.transpose_times(vector))


def _square_divide(factor: Arrow, vector: Vector) -> Vector:
    """``(F F^T)^-1 x``."""
    return factor.solve_transpose(factor.solve(vector))
