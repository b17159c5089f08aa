"""Structures of every kind, and random Gaussians on them."""

from __future__ import annotations

import math

import numpy as np

#: Blocks by group, children before parents, and the group of the parents.
CASES = {
    "three locals of size 2 given 3 globals": (
        [np.arange(6).reshape(3, 2).T, np.arange(6, 9)[:, None]],
        [1, None],
    ),
    "globals first": ([np.arange(3, 11).reshape(4, 2).T, np.arange(3)[:, None]], [1, None]),
    "locals of two sites, the plate in the middle": (
        # x (3,), globals 2, y (3, 2)
        [np.stack([np.arange(3), np.arange(5, 11, 2), np.arange(6, 11, 2)]), np.array([[3], [4]])],
        [1, None],
    ),
    "two plates of different sizes": (
        [np.arange(4)[None], np.arange(4, 8).reshape(2, 2).T, np.arange(8, 11)[:, None]],
        [2, 2, None],
    ),
    "nested plates": (
        # inner (2, 3), outer (2, 2), globals 2
        [np.arange(6)[None], np.arange(6, 10).reshape(2, 2).T, np.arange(10, 12)[:, None]],
        [1, 2, None],
    ),
    "nested plates three deep": (
        [
            np.arange(4)[None],
            np.arange(4, 6)[None],
            np.arange(6, 8)[:, None],
            np.arange(8, 10)[:, None],
        ],
        [1, 2, 3, None],
    ),
    "nested plates without globals": (
        [np.arange(6).reshape(6, 1).T, np.arange(6, 10).reshape(2, 2).T],
        [1, None],
    ),
    "globals only": ([np.arange(4)[:, None]], [None]),
    "locals only": ([np.arange(6).reshape(3, 2).T], [None]),
    "large blocks": ([np.arange(14).reshape(2, 7).T, np.arange(14, 15)[:, None]], [1, None]),
    "shuffled": ([np.array([[5, 0, 7], [2, 8, 3]]), np.array([[1], [4], [6]])], [1, None]),
}


def pattern(blocks, parents) -> np.ndarray:
    """Which entries of the dense ``T`` are free, boolean ``(d, d)``, in the vector's order."""
    dim = sum(b.size for b in blocks)
    free = np.zeros((dim, dim), bool)
    for index, block in enumerate(blocks):
        size, num = block.shape
        for i in range(num):
            for column in range(size):
                free[block[column:, i], block[column, i]] = True
                parent, j, group = parents[index], i, index
                while parent is not None:
                    j = j // (blocks[group].shape[1] // blocks[parent].shape[1])
                    free[blocks[parent][:, j], block[column, i]] = True
                    group, parent = parent, parents[parent]
    return free


def positions(blocks, parents) -> np.ndarray:
    """For each entry of the packed array its (row, column) in the dense matrix, ``(p, 2)``."""
    entries = []
    for index, block in enumerate(blocks):
        size, num = block.shape
        chain, group = [block], index
        repeat = 1
        while parents[group] is not None:
            repeat *= blocks[group].shape[1] // blocks[parents[group]].shape[1]
            group = parents[group]
            chain.append(np.repeat(blocks[group], repeat, 1))
        for rows in chain:
            for row in rows:
                for column in block:
                    entries.append(np.stack([row, column], -1))
    return np.concatenate(entries)


def random_factor(blocks, parents, rng) -> tuple[np.ndarray, np.ndarray]:
    """``(loc, T)``, dense, ``T`` with entries only where free."""
    free = pattern(blocks, parents)
    dim = len(free)
    tril = np.where(free, rng.normal(size=free.shape) / math.sqrt(dim), 0.0)
    np.fill_diagonal(tril, rng.uniform(0.7, 1.6, size=dim))
    return rng.normal(size=dim), tril


def packed(blocks, parents, dense) -> np.ndarray:
    """A dense matrix as the family packs it, zero above the diagonal of each block."""
    rows, columns = positions(blocks, parents).T
    return np.where(pattern(blocks, parents)[rows, columns], np.asarray(dense)[rows, columns], 0.0)


def dense(blocks, parents, values) -> np.ndarray:
    """The inverse of :func:`packed`."""
    free = pattern(blocks, parents)
    rows, columns = positions(blocks, parents).T
    result = np.zeros(free.shape)
    result[rows, columns] = np.asarray(values)
    return np.where(free, result, 0.0)
