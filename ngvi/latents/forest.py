"""Groups of coordinates of a vector that belong together, and their order.

A :class:`Forest` cuts a vector of length ``d`` into *groups* of equal *blocks*. A group of
``n`` blocks of size ``k`` is held as an array ``(k, n)``. The groups form a forest: a block
may have a parent block in another group, whose blocks have equally many children. Blocks
interact only with their ancestors. For the arrow of Tan's eq. (4) the locals are one group
and the globals, their parent, a group with a single block::

    locals (k, n)  ->  globals (g, 1)

A structure is made of numbers only, hashes and compares by value, and is static for JAX.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class BlockGroup:
    """Equal blocks.

    :param size: ``k``, the size of a block.
    :param num: ``n``, the number of blocks.
    :param parent: the group of the parents, or None. Block ``i`` has the parent
        ``i // (num / parent's num)``.
    """

    size: int
    num: int
    parent: int | None = None


@dataclasses.dataclass(frozen=True)
class VectorPiece:
    """A piece of the vector, ``num * width`` coordinates: ``num`` blocks, ``width`` of each.

    :param group: which group it belongs to.
    :param row: the first of its rows within a block.
    :param block: the first of its blocks.
    """

    group: int
    row: int
    block: int
    width: int
    num: int


class Permutation:
    """An order of coordinates that hashes and compares by value."""

    def __init__(self, order: np.ndarray) -> None:
        self.order = np.asarray(order)
        self.inverse = np.argsort(self.order)
        self._hash = hash(self.order.tobytes())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Permutation) and np.array_equal(self.order, other.order)

    def __hash__(self) -> int:
        return self._hash


@dataclasses.dataclass(frozen=True)
class Forest:
    """Groups of blocks, and where their coordinates are in the vector.

    :param groups: children before parents.
    :param runs: the pieces of the vector, in its order (or in that of ``permutation``).
    :param permutation: for coordinates that are not in runs, their order: the pieces are those
        of ``vector[permutation.order]``.
    """

    groups: tuple[BlockGroup, ...]
    runs: tuple[VectorPiece, ...]
    permutation: Permutation | None = None

    @property
    def dim(self) -> int:
        """The length ``d`` of the vector."""
        return sum(group.size * group.num for group in self.groups)

    def ancestors(self, index: int) -> tuple[int, ...]:
        """Return the groups of a block's ancestors, the nearest first."""
        parent = self.groups[index].parent
        return () if parent is None else (parent, *self.ancestors(parent))

    @property
    def num_lower(self) -> int:
        """The free entries of a lower triangular matrix of this structure."""
        pairs = zip(self.groups, self.offsets(), strict=True)
        return sum(g.num * (g.size * (g.size + 1) // 2 + g.size * above) for g, above in pairs)

    def shapes(self) -> tuple[tuple[tuple[int, int, int], ...], ...]:
        """Return the shapes of each group's diagonal blocks, then below them per ancestor."""
        return tuple(
            (
                (group.size, group.size, group.num),
                *((self.groups[a].size, group.size, group.num) for a in self.ancestors(index)),
            )
            for index, group in enumerate(self.groups)
        )

    @property
    def num_packed(self) -> int:
        """The length of a lower triangular matrix as the packages' ``Arrow`` packs it."""
        return sum(math.prod(shape) for shapes in self.shapes() for shape in shapes)

    def packed_diagonal(self) -> np.ndarray:
        """Return the place of each diagonal entry in a packed matrix, shape ``(d,)``."""
        found, start = np.zeros(self.dim, int), 0
        for index, shapes in zip(self.split_indices(), self.shapes(), strict=True):
            size, _, num = shapes[0]
            rows, blocks = np.indices((size, num))
            found[index] = start + rows * (size + 1) * num + blocks
            start += sum(math.prod(shape) for shape in shapes)
        return found

    def offsets(self) -> tuple[int, ...]:
        """Return the summed sizes of a block's ancestors for each group."""
        return tuple(
            sum(self.groups[a].size for a in self.ancestors(index))
            for index in range(len(self.groups))
        )

    def split_indices(self) -> list[np.ndarray]:
        """Return the coordinates of each group's blocks in the vector, integers ``(k, n)``."""
        positions = [np.zeros((group.size, group.num), int) for group in self.groups]
        start = 0
        for run in self.runs:
            stop = start + run.num * run.width
            piece = np.arange(start, stop).reshape(run.num, run.width).T
            rows = slice(run.row, run.row + run.width)
            blocks = slice(run.block, run.block + run.num)
            positions[run.group][rows, blocks] = piece
            start = stop
        if self.permutation is not None:
            positions = [self.permutation.order[piece] for piece in positions]
        return positions

    def colours(self) -> np.ndarray:
        """Return a number for each coordinate, different within a block and from its ancestors'.

        A block and its ancestors have ``k + g`` coordinates, and so many numbers suffice.
        """
        numbers = np.zeros(self.dim, int)
        for index, offset in zip(self.split_indices(), self.offsets(), strict=True):
            numbers[index] = offset + np.arange(len(index))[:, None]
        return numbers

    def describe(self) -> str:
        """Return the structure in words, such as "59 locals of size 2 given 8 globals"."""
        by_depth: dict[int, list[str]] = {}
        for index, group in enumerate(self.groups):
            depth = len(self.ancestors(index))
            plain = group.num == 1 and depth == 0 and any(g.parent is not None for g in self.groups)
            words = f"{group.size} globals" if plain else _count(group)
            by_depth.setdefault(depth, []).append(words)
        if len(self.groups) == 1 and self.groups[0].num == 1:
            return f"{self.groups[0].size} globals"
        return " given ".join(" and ".join(by_depth[depth]) for depth in sorted(by_depth)[::-1])


def _count(group: BlockGroup) -> str:
    return f"{group.num} locals of size {group.size}"


def forest_from_indices(
    blocks: Sequence[np.ndarray], parents: Sequence[int | None] | None = None
) -> Forest:
    """Return the structure with these coordinates.

    :param blocks: for each group the coordinates of its blocks, integers ``(k, n)``; each
        coordinate of the vector exactly once.
    :param parents: for each group that of its parents.
    """
    parents = [None] * len(blocks) if parents is None else parents
    groups = tuple(
        BlockGroup(len(piece), piece.shape[1], parent)
        for piece, parent in zip(blocks, parents, strict=True)
    )
    runs = _runs(blocks)
    if runs is not None:
        return Forest(groups, runs)
    order = np.concatenate([piece.T.reshape(-1) for piece in blocks])
    runs = tuple(VectorPiece(i, 0, 0, group.size, group.num) for i, group in enumerate(groups))
    return Forest(groups, runs, Permutation(order))


def _runs(blocks: Sequence[np.ndarray]) -> tuple[VectorPiece, ...] | None:
    """Return the pieces of the vector if there are few, in its order."""
    dim = sum(piece.size for piece in blocks)
    group, row, block = (np.zeros(dim, int) for _ in range(3))
    for index, piece in enumerate(blocks):
        group[piece] = index
        row[piece], block[piece] = np.indices(piece.shape)
    runs: list[VectorPiece] = []
    start = 0
    while start < dim:
        if len(runs) >= MAX_RUNS:
            return None
        run = _run_at(start, group, row, block)
        runs.append(run)
        start += run.width * run.num
    # Each group must be a grid of pieces for split() to put together.
    for index, piece in enumerate(blocks):
        mine = [run for run in runs if run.group == index]
        for first in {run.block for run in mine}:
            column = sorted((run for run in mine if run.block == first), key=lambda r: r.row)
            rows = sum(run.width for run in column)
            if rows != len(piece) or len({run.num for run in column}) > 1:
                return None
    return tuple(runs)


#: More pieces than this are not worth it: the vector is permuted instead.
MAX_RUNS = 200


def _run_at(start: int, group: np.ndarray, row: np.ndarray, block: np.ndarray) -> VectorPiece:
    """Return the longest piece from ``start`` on."""
    same_group = _prefix(group[start:] == group[start])
    rows, blocks = row[start : start + same_group], block[start : start + same_group]
    width = _prefix((blocks == blocks[0]) & (rows == rows[0] + np.arange(same_group)))
    whole = same_group // width * width
    expected = blocks[0] + np.arange(whole) // width
    cycle = rows[0] + np.arange(whole) % width
    num = _prefix((blocks[:whole] == expected) & (rows[:whole] == cycle)) // width
    return VectorPiece(int(group[start]), int(rows[0]), int(blocks[0]), int(width), int(num))


def _prefix(flags: np.ndarray) -> int:
    """Return how many flags are set before the first that is not."""
    return len(flags) if flags.all() else int(np.argmin(flags))


#: Dense matrices are refused beyond this dimension: 200 MB in float64.
MAX_DENSIFIED_DIM = 5000


def check_dense(family: Any) -> None:
    """Refuse a dense matrix that would not fit.

    :raises ValueError: if the dimension is above ``MAX_DENSIFIED_DIM`` and the family itself is
        not of that size.
    """
    if family.dim > MAX_DENSIFIED_DIM and family.num_parameters < family.dim**2 // 2:
        size = math.ceil(family.dim * family.loc.nbytes / 2**30)
        raise ValueError(
            f"A dense matrix of {family.dim} latents takes {size} GiB. Use .variance, .sample, "
            f".log_prob or .whiten of the {type(family).__name__}."
        )
