"""All rows of a subsampled plate, a minibatch at a time: the bound without the minibatches' noise.

A step that has seen every row once takes as long as the plate has minibatches. It is worth it: the
noise of minibatches costs hundreds of steps of averaging to come within a tenth of a nat, a
Newton-like step on the whole bound costs one sweep, and a dozen suffice.

Rows are visited in a random order of each group of draws. Those that do not fill a last minibatch
share several with the rows of one more: windows over these in a circle, each of the model's own
size, which visit every row equally often. Where that takes too many, some visit it once more than
others; their order is random, so that this is noise of a percent, and no bias, of which the
groups' scatter tells. (Leaving out what does not fill a minibatch was 2 nats off for 1000 rows in
minibatches of 64, and a latent of a row that is left out has no slope at all.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ngvi.fit.engine import Around, Direction, Draws, Engine, Measured, Place

#: Minibatches of a sweep, at most.
MAX_MINIBATCHES = 256
#: Windows over the last rows, if the others have no more minibatches than that.
MAX_WINDOWS = 20
#: Draws whose values are wanted are in so many parts, each with a sweep of its own, if rows do
#: not count equally: then the scatter of the values tells of that as well.
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
        """The bound and its natural gradient, over all rows for each group that is not rough."""
        found = []
        for group in draws:
            if group.is_rough:
                found.append(self._inner.measure(place, [group]))
                continue
            batches, shares = sweep(self._rows, group.seed)
            parts = [self._inner.measure(place, [group], rows) for rows in batches]
            found.append(_average(parts, shares))
        values = np.concatenate([one.values for one in found])
        mean = _average(found, [1.0 / len(found)] * len(found)).mean
        return Measured(values, np.concatenate([one.vectors for one in found]), mean)

    def values(self, place: Place, theta: np.ndarray) -> np.ndarray:
        # Other rows count for more in every call's sweep, and in each of its parts.
        found = []
        for some in np.array_split(theta, self._num_parts(len(theta))):
            self.num_sweeps += 1
            batches, shares = sweep(self._rows, self.num_sweeps)
            found.append(_mean([self._inner.values(place, some, rows) for rows in batches], shares))
        return np.concatenate(found)

    def _num_parts(self, count: int) -> int:
        return 1 if _num_windows(self._rows)[1] else min(PARTS, count)

    def values_and_gradients(
        self, place: Place, theta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        batches, shares = sweep(self._rows, 0)
        found = [self._inner.values_and_gradients(place, theta, rows) for rows in batches]
        values, gradients = zip(*found, strict=True)
        return _mean(values, shares), _mean(gradients, shares)


def sweep(rows: Rows, seed: int) -> tuple[Iterator[np.ndarray], list[float]]:
    """Minibatches that have all rows together, in a random order.

    :return: the rows of each, and its share in the mean over them, which is that of all rows.
    """
    _, size, visited = rows
    order = np.random.default_rng(seed).permutation(size)
    num_windows, _ = _num_windows(rows)
    num_last = visited + size % visited if num_windows else 0
    whole, last = order[: size - num_last].reshape(-1, visited), order[size - num_last :]
    starts = (np.arange(num_windows) * num_last) // max(num_windows, 1)
    windows = [np.take(last, start + np.arange(visited), mode="wrap") for start in starts]
    shares = [visited / size] * len(whole) + [num_last / (size * max(num_windows, 1))] * num_windows
    return iter([*whole, *windows]), shares


def _num_windows(rows: Rows) -> tuple[int, bool]:
    """How many windows the last rows have, and whether these visit each of them equally often."""
    _, size, visited = rows
    if size % visited == 0:
        return 0, True
    exact = (visited + size % visited) // math.gcd(size, visited)
    num_windows = min(exact, max(MAX_WINDOWS, size // visited))
    return num_windows, num_windows == exact


def _mean(found: Sequence[np.ndarray], shares: list[float]) -> np.ndarray:
    return np.einsum("m,m...->...", shares, np.stack(found))


def _average(found: list[Measured], shares: list[float]) -> Measured:
    means = [one.mean for one in found]
    ordinary = zip(*(mean.ordinary for mean in means), strict=True)
    return Measured(
        _mean([one.values for one in found], shares),
        _mean([one.vectors for one in found], shares),
        Direction(
            _mean([mean.vector for mean in means], shares),
            _mean([mean.covector for mean in means], shares),
            [_mean([np.asarray(part, float) for part in parts], shares) for parts in ordinary],
        ),
    )
