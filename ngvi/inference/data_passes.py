"""Evaluations over all rows of the data, one part at a time.

A part is a minibatch of a subsampled plate, a batch of arguments that do not fit in memory
together, or the rows of another process. Each part's plate gives the total number of rows, so each
part estimates the bound of all rows, with the prior counted once. Everything that an objective
returns is linear in the log density. The weighted sum over the parts is therefore the value for all
rows, and the fit equals that of a model that sees all rows at once.

A pass costs one evaluation per minibatch. Averaging noisy steps would take hundreds of them to come
within a tenth of a nat, whereas a Newton-like step on the whole bound takes one pass. If the last
minibatch is not full, its rows are repeated ``k`` times, and the first few once more. A minibatch
of these few alone then subtracts the surplus, and so on: the sum over all rows is exact.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ngvi.inference.batches import Batches
from ngvi.inference.estimate import Direction, Estimate, Sample, State, average
from ngvi.inference.problem import Forwarding, Problem, Rows

#: Most minibatches of a pass over all rows; above this, noise costs less.
MAX_MINIBATCHES = 256


def over_minibatches(problem: Problem) -> Problem:
    """Let a model that sees minibatches see all rows at once, if these are few enough."""
    rows = problem.objective.rows
    if rows is None or rows.size > MAX_MINIBATCHES * rows.visited:
        return problem
    return problem.replace(objective=_Minibatches(problem.objective, rows))


class _Minibatches(Forwarding):
    """An objective that adds up the minibatches of a pass, in another order for each group."""

    def __init__(self, inner: Any, rows: Rows) -> None:
        super().__init__(inner)
        self._rows, self.is_subsampled = rows, False

    def bound(self, state: State, sample: Sample) -> Estimate:
        """Return the bound over all rows, for each group in an order of its own."""
        found = []
        for group in sample:
            parts, shares = minibatches(self._rows, group.seed)
            found.append(average([self.inner.bound(state, [group], r) for r in parts], shares))
        return functools.reduce(Estimate.joined, found)

    def log_density(self, state: State, theta: np.ndarray) -> np.ndarray:
        self.cost.passes += 1
        parts, shares = minibatches(self._rows, self.cost.passes)
        return _sum([self.inner.log_density(state, theta, rows) for rows in parts], shares)

    def gradient(self, state: State, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        parts, shares = minibatches(self._rows, 0)
        found = [self.inner.gradient(state, theta, rows) for rows in parts]
        values, gradients = zip(*found, strict=True)
        return _sum(values, shares), _sum(gradients, shares)


def minibatches(rows: Rows, seed: int) -> tuple[Iterator[np.ndarray], list[float]]:
    """Minibatches that have all rows together, in a random order.

    :return: the rows of each, and its share in the mean over them, which is that of all rows.
    """
    _, size, visited = rows
    order = np.random.default_rng(seed).permutation(size)
    rest = order[size - size % visited :]
    found = list(order[: size - len(rest)].reshape(-1, visited))
    share = visited / size
    shares = [share] * len(found)
    while len(rest):
        # A sum over the rest is the k-th part of one over k times the rest and the first few more,
        # less what these few have added.
        count, more = divmod(visited, len(rest))
        share /= count
        found.append(np.resize(rest, visited))
        shares.append(share)
        rest, share = rest[:more], -share
    return iter(found), shares


class OverBatches(Forwarding):
    """An objective that adds up all of the user's batches at each evaluation."""

    fault = ""

    def __init__(self, inner: Any, batches: Batches) -> None:
        super().__init__(inner)
        self._batches, self.is_subsampled, self.rows = batches, False, None

    def bound(self, state: State, sample: Sample) -> Estimate:
        return self._sum(lambda: self.inner.bound(state, sample))

    def gradient(self, state: State, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = self._sum(lambda: self.inner.gradient(state, theta))
        return values, gradients

    def log_density(self, state: State, theta: np.ndarray) -> np.ndarray:
        return self._sum(lambda: self.inner.log_density(state, theta))[0]

    def in_double(self, state: State, theta: np.ndarray) -> None:
        """Not of all batches."""

    def _sum(self, evaluate: Callable[[], Any]) -> Any:
        covered, total, answer = 0.0, None, None
        self.fault = ""
        before, of_first = dataclasses.replace(self.cost), None
        for index, (args, kwargs) in enumerate(self._batches):
            try:
                share = self.inner.see(args, kwargs)
                answer = evaluate()
            except Exception as error:
                error.add_note(f"It is batch {index} of batches=, counted from zero.")
                raise
            of_first = of_first or dataclasses.replace(self.cost)
            found = [share * np.asarray(part, float) for part in parts_of(answer)]
            total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
            if not self.fault and not np.isfinite(found[0]).all():
                self.fault = f"batch {index}, counted from zero, has log densities that are not"
            covered += share
        self.cost.become(of_first or before)  # a pass over all rows is one evaluation
        if not math.isclose(covered, 1.0, rel_tol=1e-6):
            raise ValueError(
                f"batches= cover {100 * covered:.6g}% of the rows that the plate's size gives: "
                "each pass must have every row once (a DataLoader without drop_last=)."
            )
        assert total is not None
        return of_parts(answer, total)


def parts_of(answer: Any) -> list[Any]:
    """Return the arrays of an objective's answer, each linear in the log density."""
    if isinstance(answer, Estimate):
        mean = answer.mean
        return [answer.values, answer.natural, mean.natural, mean.gradient, *mean.parameters]
    return list(answer) if isinstance(answer, tuple) else [answer]


def of_parts(answer: Any, parts: list[np.ndarray]) -> Any:
    """Return the answer of the kind of another one, of which :func:`parts_of` gives these."""
    if isinstance(answer, Estimate):
        values, naturals, natural, gradient, *parameters = parts
        return Estimate(values, naturals, Direction(natural, gradient, parameters))
    return parts


def _sum(parts: Sequence[np.ndarray], shares: list[float]) -> np.ndarray:
    return np.einsum("m,m...->...", shares, np.stack(parts))
