"""Lower triangular matrices with the arrow of Tan's eq. (4), and trees of them.

The matrix of a :class:`~ngvi.latents.forest.Forest` has, below the diagonal
block ``T_i`` of a block ``i``, one block ``T_ai`` for each ancestor ``a`` of ``i`` and zeros
elsewhere. Children come before parents. Then nothing fills in: products, inverses and
Cholesky factors of such matrices have the same zeros, because the ancestors of a block are
ancestors of one another. Every operation costs ``n k (k + a)`` or ``n k a^2`` for ``n`` blocks of
size ``k`` with ``a`` coordinates in their ancestors: linear in ``n``.

Vectors are lists with one tensor ``(..., k, n)`` a group (``split`` and ``join`` of
:class:`~ngvi.linalg.forest_blocks.ForestBlocks`). Which blocks meet, and in which order, is decided
here; what a product or a factor of blocks is, :class:`~ngvi.linalg.batched.Batched` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from ngvi.linalg.forest_blocks import ForestBlocks, Vector
from ngvi.linalg.matrices import Array


class Arrow(ForestBlocks):
    """A matrix of a structure, or the lower half of a symmetric one."""

    # -- with vectors -----------------------------------------------------------------

    def times(self, vector: Vector) -> Vector:
        """``T x``."""
        result = [self.ops.times(mine[0], x) for mine, x in zip(self.blocks, vector, strict=True)]
        for index, (_, *below) in enumerate(self.blocks):
            for ancestor, block in zip(self.structure.ancestors(index), below, strict=True):
                up = self._gather_up(ancestor, block, vector[index])
                result[ancestor] = result[ancestor] + up
        return result

    def transpose_times(self, vector: Vector) -> Vector:
        """``T^T x``."""
        result = []
        for index, (diagonal, *below) in enumerate(self.blocks):
            total = self.ops.transpose_times(diagonal, vector[index])
            for ancestor, block in zip(self.structure.ancestors(index), below, strict=True):
                above = self.at(index, vector[ancestor])
                total = total + self.ops.transpose_times(block, above)
            result.append(total)
        return result

    def solve(self, vector: Vector) -> Vector:
        """``T^-1 x``, from the leaves up."""
        rest, result = list(vector), []
        for index, (diagonal, *below) in enumerate(self.blocks):
            result.append(self.ops.solve(diagonal, rest[index]))
            for ancestor, block in zip(self.structure.ancestors(index), below, strict=True):
                up = self._gather_up(ancestor, block, result[index])
                rest[ancestor] = rest[ancestor] - up
        return result

    def solve_transpose(self, vector: Vector) -> Vector:
        """``T^-T x``, from the roots down."""
        result: dict[int, Array] = {}
        for index in reversed(range(len(self.blocks))):
            diagonal, *below = self.blocks[index]
            rest = vector[index]
            for ancestor, block in zip(self.structure.ancestors(index), below, strict=True):
                above = self.at(index, result[ancestor])
                rest = rest - self.ops.transpose_times(block, above)
            result[index] = self.ops.solve(diagonal, rest, trans=True)
        return [result[index] for index in range(len(self.blocks))]

    def solve_linear(self, vector: Vector) -> Vector:
        """:meth:`solve`, in a form that is cheap to differentiate in the vector."""
        return self.solve(vector)

    def solve_transpose_linear(self, vector: Vector) -> Vector:
        """:meth:`solve_transpose`, in a form that is cheap to differentiate in the vector."""
        return self.solve_transpose(vector)

    def above(self, vector: Vector) -> list[list[Array]]:
        """Sum ``(T_aa' x_a')`` over the ancestors ``a'``, for each group and ancestor ``a``.

        The ancestors' own part of the matrix times their part of the vector.
        """
        result = []
        for index in range(len(self.blocks)):
            chain = self.structure.ancestors(index)
            mine = []
            for place, ancestor in enumerate(chain):
                total = self.ops.times(self.blocks[ancestor][0], vector[ancestor])
                for lower in reversed(chain[:place]):  # fewer blocks first
                    part = self.ops.times(self._block(ancestor, lower), vector[lower])
                    total = self.at(lower, total, expand=True) + part
                mine.append(total)
            result.append(mine)
        return result

    # -- with matrices ----------------------------------------------------------------

    def matmul(self, other: Self) -> Self:
        """``T M``."""

        def column(index: int, diagonal: Array, below: list[Array]) -> list[Array]:
            chain = self.structure.ancestors(index)
            result = []
            for place, ancestor in enumerate(chain):
                total = self.ops.matmul(self.blocks[index][1 + place], diagonal)
                for lower in range(place + 1):
                    block = self._block_at(index, ancestor, chain[lower])
                    total = total + self.ops.matmul(block, below[lower])
                result.append(total)
            return [self.ops.matmul(self.blocks[index][0], diagonal), *result]

        return self._by_column(column, other)

    def transpose_matmul(self, other: Self) -> Self:
        """``T^T G`` where the structure has entries."""

        def column(index: int, diagonal: Array, below: list[Array]) -> list[Array]:
            own, *mine = self.blocks[index]
            first = self.ops.matmul(self.ops.transpose(own), diagonal)
            for block, entry in zip(mine, below, strict=True):
                first = first + self.ops.matmul(self.ops.transpose(block), entry)
            return [first, *self._chain_transpose_times(index, below)]

        return self._by_column(column, other)

    def solve_matmul(self, other: Self) -> Self:
        """``T^-1 M``."""

        def column(index: int, diagonal: Array, below: list[Array]) -> list[Array]:
            own, *mine = self.blocks[index]
            first = self.ops.solve_matrix(own, diagonal)
            rest = [
                entry - self.ops.matmul(block, first)
                for block, entry in zip(mine, below, strict=True)
            ]
            return [first, *self._chain_solve(index, rest)]

        return self._by_column(column, other)

    def solve_transpose_products(self, other: Self) -> Self:
        """Return the ``G`` whose :meth:`transpose_matmul` has the lower triangle of ``other``."""

        def column(index: int, diagonal: Array, below: list[Array]) -> list[Array]:
            own, *mine = self.blocks[index]
            solved = self._chain_solve_transpose(index, below)
            for block, entry in zip(mine, solved, strict=True):
                diagonal = diagonal - self.ops.matmul(self.ops.transpose(block), entry)
            return [self.ops.tril(self.ops.solve_matrix(own, diagonal, trans=True)), *solved]

        return self._by_column(column, other)

    def congruence(self, symmetric: Self) -> Self:
        """Return the lower half of ``T^-1 S T^-T`` for symmetric ``S``."""
        rest = [list(mine) for mine in symmetric.blocks]
        for index, (own, *mine) in enumerate(self.blocks):
            chain = self.structure.ancestors(index)
            left = self.ops.solve_matrix(own, rest[index][0])
            first = self.ops.transpose(self.ops.solve_matrix(own, self.ops.transpose(left)))
            below = [
                self.ops.transpose(self.ops.solve_matrix(own, self.ops.transpose(entry)))
                - self.ops.matmul(block, first)
                for block, entry in zip(mine, rest[index][1:], strict=True)
            ]
            for row in range(len(chain)):
                for column in range(row + 1):
                    lower, place = chain[column], row - column
                    half = below[row] + self.ops.matmul(mine[row], first)
                    change = self._gather_product(lower, half, mine[column])
                    change = change + self._gather_product(lower, mine[row], below[column])
                    rest[lower][place] = rest[lower][place] - change
            rest[index] = [first, *self._chain_solve(index, below)]
        return type(self)(self.structure, tuple(tuple(mine) for mine in rest))

    def cholesky(self, root: Callable[..., tuple] | None = None) -> Self:
        """Return the factor ``T`` of a symmetric matrix; NaN if it is not positive definite.

        :param root: the factors of what elimination leaves of a group's diagonal blocks, and the
            blocks below them; by default these as they are.
        """
        ops = self.ops
        rest = [list(mine) for mine in self.blocks]
        result: list[tuple[Array, ...]] = []
        for index in range(len(rest)):
            diagonal, *below = rest[index]
            own, below = root(diagonal, below) if root else (ops.cholesky(diagonal), below)
            mine = [ops.transpose(ops.solve_matrix(own, ops.transpose(b))) for b in below]
            result.append((own, *mine))
            chain = self.structure.ancestors(index)
            for row in range(len(chain)):
                for column in range(row + 1):
                    lower, place = chain[column], row - column
                    product = self._gather_product(lower, mine[row], mine[column])
                    rest[lower][place] = rest[lower][place] - product
        return type(self)(self.structure, tuple(result))

    # -- along the chain of a block's ancestors ---------------------------------------

    def _by_column(self, function: Callable, other: Self) -> Self:
        blocks = (
            tuple(function(index, diagonal, list(below)))
            for index, (diagonal, *below) in enumerate(other.blocks)
        )
        return type(self)(self.structure, tuple(blocks))

    def _chain_transpose_times(self, index: int, entries: list[Array]) -> list[Array]:
        chain = self.structure.ancestors(index)
        result = []
        for place, ancestor in enumerate(chain):
            total = 0.0
            for upper in range(place, len(chain)):
                block = self._block_at(index, chain[upper], ancestor)
                total = total + self.ops.matmul(self.ops.transpose(block), entries[upper])
            result.append(total)
        return result

    def _chain_solve(self, index: int, entries: list[Array]) -> list[Array]:
        chain = self.structure.ancestors(index)
        result: list[Array] = []
        for place, ancestor in enumerate(chain):
            rest = entries[place]
            for lower in range(place):
                block = self._block_at(index, ancestor, chain[lower])
                rest = rest - self.ops.matmul(block, result[lower])
            own = self._block_at(index, ancestor, ancestor)
            result.append(self.ops.solve_matrix(own, rest))
        return result

    def _chain_solve_transpose(self, index: int, entries: list[Array]) -> list[Array]:
        chain = self.structure.ancestors(index)
        result: dict[int, Array] = {}
        for place in reversed(range(len(chain))):
            rest = entries[place]
            for upper in range(place + 1, len(chain)):
                block = self._block_at(index, chain[upper], chain[place])
                rest = rest - self.ops.matmul(self.ops.transpose(block), result[upper])
            own = self._block_at(index, chain[place], chain[place])
            result[place] = self.ops.solve_matrix(own, rest, trans=True)
        return [result[place] for place in range(len(chain))]
