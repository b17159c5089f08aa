"""All rows of a subsampled plate, a minibatch at a time: the bound without the minibatches' noise.

A step that has seen every row once takes as long as the plate has minibatches. It is worth it: the
noise of minibatches costs hundreds of steps of averaging to come within a tenth of a nat, a
Newton-like step on the whole bound costs one sweep, and a dozen suffice.

Rows are visited in a random order of each group of draws. Those that do not fill a last minibatch
are left out of that group's sweep, so that the groups' scatter tells of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ngvi.fit.engine import Around, Direction, Draws, Engine, Measured, Place

#: Minibatches of a sweep, at most.
MAX_MINIBATCHES = 256
#: Draws whose values are wanted are in so many parts, each with a sweep of its own, if rows are
#: left out: then the scatter of the values tells of that as well.
PARTS = 8


class Rows(NamedTuple):
    """The plate of which a model sees a part."""

    plate: str
    size: int  #: of the plate
    visited: int  #: rows of a minibatch


def sweeping(engine: Engine) -> Engine:
    """An engine that sees all rows where the model sees minibatches, if they are few enough."""
    rows = engine.evaluator.rows
    if rows is None or rows.size > MAX_MINIBATCHES * rows.visited:
        return engine
    return engine._replace(evaluator=_Evaluator(engine.evaluator, rows))


class _Evaluator(Around):
    """An evaluator that averages over the minibatches of a sweep."""

    is_subsampled = False

    def __init__(self, inner: Any, rows: Rows) -> None:
        super().__init__(inner)
        self._rows = rows
        self.num_sweeps = 0  #: of values

    def measure(self, place: Place, draws: list[Draws]) -> Measured:
        """The bound and its natural gradient, over all rows for each group."""
        found = [
            _average(
                [self._inner.measure(place, [group], rows) for rows in self._sweep(group.seed)]
            )
            for group in draws
        ]
        mean = _average(found).mean
        values = np.concatenate([one.values for one in found])
        return Measured(values, np.concatenate([one.vectors for one in found]), mean)

    def values(self, place: Place, theta: np.ndarray) -> np.ndarray:
        """The log density at vectors of all latents."""
        # Other rows are left out of every call's sweep, and of each of its parts.
        parts = []
        for some in np.array_split(theta, self._num_parts(len(theta))):
            self.num_sweeps += 1
            sweep = self._sweep(self.num_sweeps)
            parts.append(np.mean([self._inner.values(place, some, rows) for rows in sweep], 0))
        return np.concatenate(parts)

    def _num_parts(self, count: int) -> int:
        return min(PARTS, count) if self._rows.size % self._rows.visited else 1

    def values_and_gradients(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The log density and its gradient at vectors of all latents."""
        found = [self._inner.values_and_gradients(theta, rows) for rows in self._sweep(0)]
        values, gradients = zip(*found, strict=True)
        return np.mean(values, 0), np.mean(gradients, 0)

    def _sweep(self, seed: int) -> Iterator[np.ndarray]:
        _, size, visited = self._rows
        order = np.random.default_rng(seed).permutation(size)
        return iter(order[: size - size % visited].reshape(-1, visited))


def _average(found: list[Measured]) -> Measured:
    means = [one.mean for one in found]
    ordinary = zip(*(mean.ordinary for mean in means), strict=True)
    return Measured(
        np.mean([one.values for one in found], 0),
        np.mean([one.vectors for one in found], 0),
        Direction(
            np.mean([mean.vector for mean in means], 0),
            np.mean([mean.covector for mean in means], 0),
            [np.mean(parts, 0) for parts in ordinary],
        ),
    )
