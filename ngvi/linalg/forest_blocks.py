"""The blocks of a matrix with the zeros of a forest, and of vectors beside it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar, Self

from ngvi.latents.forest import Forest
from ngvi.linalg.batched import Batched
from ngvi.linalg.matrices import Array

Vector = list[Array]


@dataclasses.dataclass(frozen=True)
class ForestBlocks:
    """Stored blocks of an :class:`~ngvi.linalg.arrow.Arrow`.

    :param structure: which blocks there are.
    :param blocks: for each group its diagonal blocks ``(k, k, n)``, then those below it
        ``(k_a, k, n)``, by ancestor, the nearest first.
    """

    structure: Forest = dataclasses.field(metadata={"static": True})
    blocks: tuple[tuple[Array, ...], ...]

    #: What computes with blocks, and with tensors of them.
    ops: ClassVar[Batched]

    # -- vectors ----------------------------------------------------------------------

    @classmethod
    def split(cls, structure: Forest, vector: Array) -> Vector:
        """Return a vector ``(..., d)`` by groups."""
        if structure.permutation is not None:
            vector = vector[..., structure.permutation.order]
        pieces: list[dict[int, dict[int, Array]]] = [{} for _ in structure.groups]
        segments = cls.ops.matrices.split(vector, [run.num * run.width for run in structure.runs])
        for run, segment in zip(structure.runs, segments, strict=True):
            piece = segment.reshape(*vector.shape[:-1], run.num, run.width).mT
            pieces[run.group].setdefault(run.block, {})[run.row] = piece
        return [
            cls.ops.concatenate(
                [
                    cls.ops.concatenate([rows[row] for row in sorted(rows)], -2)
                    for _, rows in sorted(b.items())
                ],
                -1,
            )
            for b in pieces
        ]

    @classmethod
    def join(cls, structure: Forest, vector: Vector) -> Array:
        """Return the inverse of :meth:`split`."""
        pieces = []
        for run in structure.runs:
            rows = slice(run.row, run.row + run.width)
            blocks = slice(run.block, run.block + run.num)
            piece = vector[run.group][..., rows, blocks].mT
            pieces.append(piece.reshape(*piece.shape[:-2], run.num * run.width))
        joined = cls.ops.concatenate(pieces, -1)
        if structure.permutation is None:
            return joined
        return joined[..., structure.permutation.inverse]

    # -- packing ----------------------------------------------------------------------

    @classmethod
    def unpack(cls, structure: Forest, packed: Array) -> Self:
        """Unpack one flat array of all blocks."""
        shapes = structure.shapes()
        # The derivative of one split is one concatenation; that of slices is a sum of zeros.
        sizes = [math.prod(shape) for mine in shapes for shape in mine]
        pieces = iter(cls.ops.matrices.split(packed, sizes))
        blocks = tuple(tuple(next(pieces).reshape(shape) for shape in mine) for mine in shapes)
        return cls(structure, blocks)

    def pack(self) -> Array:
        """All blocks as one flat array."""
        return self.ops.concatenate(
            [block.reshape(-1) for mine in self.blocks for block in mine], -1
        )

    @classmethod
    def identity(cls, structure: Forest, like: Array) -> Self:
        """Return the identity, with the dtype of ``like``."""
        blocks = []
        for first, *rest in structure.shapes():
            diagonal = cls.ops.identity(first[0], first[2], like)
            blocks.append((diagonal, *(cls.ops.zeros(shape, like) for shape in rest)))
        return cls(structure, tuple(blocks))

    def map_diagonal(self, function: Callable[[Array], Array]) -> Self:
        """Return ``function`` of the diagonal blocks, the rest as it is."""
        blocks = tuple((function(diagonal), *below) for diagonal, *below in self.blocks)
        return type(self)(self.structure, blocks)

    def combine(self, function: Callable[..., Array], *others: Self) -> Self:
        """Return ``function`` of corresponding blocks."""
        blocks = tuple(
            tuple(function(*same) for same in zip(*mine, strict=True))
            for mine in zip(self.blocks, *(other.blocks for other in others), strict=True)
        )
        return type(self)(self.structure, blocks)

    def kept_off_zero(self, old: Self) -> Self:
        """Return it with the diagonal that ``Matrices.keep_off_zero`` gives it after an old one."""
        ops = self.ops

        def kept(old: Array, new: Array) -> Array:
            on_diagonal = ops.identity(len(new), new.shape[-1], new) > 0
            return ops.xp.where(on_diagonal, ops.matrices.keep_off_zero(old, new), new)

        pairs = zip(old.blocks, self.blocks, strict=True)
        blocks = tuple((kept(before[0], now), *below) for before, (now, *below) in pairs)
        return type(self)(self.structure, blocks)

    def diagonals(self) -> Vector:
        """Return the diagonal as a vector."""
        return [self.ops.diagonal(mine[0]) for mine in self.blocks]

    # -- blocks of ancestors ------------------------------------------------------------

    def _block(self, row: int, column: int) -> Array:
        """Return the blocks in the rows of group ``row`` and the columns of group ``column``."""
        if row == column:
            return self.blocks[column][0]
        return self.blocks[column][1 + self.structure.ancestors(column).index(row)]

    def _block_at(self, index: int, row: int, column: int) -> Array:
        return self.at(index, self._block(row, column))

    def at(self, index: int, value: Array, expand: bool = False) -> Array:
        """Return the ancestors' entries, once for each block of group ``index``."""
        num = value.shape[-1]
        repeats = self.structure.groups[index].num // num
        if repeats == 1 or (num == 1 and not expand):
            return value
        return self.ops.repeat(value, repeats)

    def _gather_up(self, ancestor: int, block: Array, vector: Array) -> Array:
        """``block`` times ``vector``, summed over the blocks below each ancestor."""
        num = self.structure.groups[ancestor].num
        if num == 1:
            return self.ops.contract(vector, block)[..., None]
        product = self.ops.times(block, vector)
        return product.reshape(*product.shape[:-1], num, -1).sum(-1)

    def _gather_product(self, lower: int, left: Array, right: Array) -> Array:
        """``left`` times ``right^T``, summed over the blocks below each one of ``lower``."""
        num = self.structure.groups[lower].num
        if num == 1:
            return self.ops.contract(left, right)[..., None]
        product = self.ops.matmul(left, self.ops.transpose(right))
        return product.reshape(*product.shape[:-1], num, -1).sum(-1)
