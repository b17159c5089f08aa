"""The metric of one state, corrected by the curvature of the bound along earlier steps.

If the curvature of the bound equals the metric, half the squared Fisher norm of the natural
gradient is the gain. Pairs of steps and ``y``, the decrease of the natural gradient along them,
correct the direction and the gain: L-BFGS with the Fisher metric in place of the identity
(:mod:`~ngvi.optim.two_loop`).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ngvi.inference.estimate import Direction, Estimate, Pairs, State, Step
from ngvi.inference.options import FLAT_METRIC, METRIC, MetricOptions
from ngvi.optim.two_loop import Pairs as Recursion
from ngvi.optim.two_loop import two_loop

#: Numbers in all pairs, for the memory's sake.
NUMBERS_OF_PAIRS = 20_000_000


class Corrected(NamedTuple):
    """A direction after quasi-Newton correction."""

    direction: Direction  #: Corrected direction; ``gradient`` remains the bound's.
    gain: float  #: Gain of a quadratic bound along the direction, in nats.
    fisher: float  #: The gain that the Fisher metric predicts, in nats.

    @property
    def predicted(self) -> float:
        """The larger of the two, in nats; rounding never takes it below zero."""
        return max(self.gain, self.fisher, 0.0)


class Metric:
    """The metric of the Gaussians of one state; it knows no model.

    A package says what the Fisher information times a direction is, and where a step leads.

    :param size: ``n``, the numbers of a direction.
    :param pairs: changes of the Gaussians, and ``y`` along them, the newest last.
    :param leaves_out_correlations: whether the Gaussians do, so that the bound may be far flatter
        than the metric, and steps long in it where they are short for the bound.
    """

    def __init__(
        self,
        state: State,
        size: int,
        pairs: Pairs,
        leaves_out_correlations: bool = False,
        options: MetricOptions | None = None,
    ) -> None:
        self.state, self.size = state, size
        self.leaves_out_correlations = leaves_out_correlations
        options = options or (FLAT_METRIC if leaves_out_correlations else METRIC)
        self.max_pairs = min(options.max_pairs, NUMBERS_OF_PAIRS // (2 * size))
        self.min_curvature = options.min_curvature
        self._pairs = pairs[-self.max_pairs :] if self.max_pairs else []

    @property
    def flattest(self) -> float:
        """The least curvature of the bound along the pairs, as a fraction of the metric's."""
        return self._memory.flattest if self._pairs else 1.0

    def scaled(self, natural: np.ndarray) -> np.ndarray:
        """Directions as the metric has them, of those that were estimated."""
        return natural

    def gradients(self, naturals: np.ndarray) -> np.ndarray:
        """Return the Fisher information times each row; shape ``(rows, n)``."""
        raise NotImplementedError

    def step(self, direction: Direction, step_size: float, radius: float) -> Step | None:
        """Return a step along a direction, shorter if it would leave the trust region.

        :param radius: the largest ``KL(new || old)``, in nats.
        :return: None if no step leads to a finite Gaussian.
        """
        moved, change, numbers = self._advance(direction.natural, step_size, radius)
        length, backward, step_size = numbers
        with np.errstate(all="ignore"):
            slope = float(direction.gradient @ change)
        if not (np.isfinite(slope) and length <= radius):
            return None
        return Step(moved, change, slope, length, backward, step_size)

    def _advance(
        self, natural: np.ndarray, step_size: float, radius: float
    ) -> tuple[State, np.ndarray, list[float]]:
        """Return the state after a step, the change, its lengths both ways and its size."""
        raise NotImplementedError

    def accepted(self, step: Step, before: Direction, after: Direction, is_short: bool) -> None:
        """Learn from a step that is taken; there is nothing to learn about Gaussians.

        :param before: what was estimated at its beginning.
        :param after: what was estimated at its end.
        :param is_short: whether the metric is nearly the same at both.
        """

    def refused(self) -> None:
        """Learn from a step that is not taken."""

    def squares(self, naturals: np.ndarray) -> np.ndarray:
        """Return the squared Fisher norm of each row."""
        with np.errstate(all="ignore"):
            found = np.einsum("ij,ij->i", naturals, self.gradients(naturals)).astype(float)
            return np.maximum(found, 0.0)

    def corrected(self, direction: Direction) -> Corrected:
        """Return the quasi-Newton direction."""
        natural, gradient, parameters = direction
        natural = self.scaled(natural)
        with np.errstate(all="ignore"):
            fisher = 0.5 * float(gradient @ natural)
            if not self._pairs:
                return Corrected(Direction(natural, gradient, parameters), fisher, fisher)
            natural = self._memory.correct(natural, gradient)
            gain = 0.5 * float(gradient @ natural)
            return Corrected(Direction(natural, gradient, parameters), gain, fisher)

    def noise(self, estimate: Estimate) -> float:
        """Return by how many nats the optimum over other draws would be lower, from the groups."""
        count = len(estimate.values)
        deviations = self.scaled(estimate.natural - estimate.mean.natural)
        found = map(self.corrected, map(Direction, deviations, self.gradients(deviations)))
        total = sum(one.predicted for one in found)
        return float(total) / (count * max(count - 1, 1))

    @functools.cached_property
    def _memory(self) -> Memory:
        vectors = np.stack([one for part in zip(*self._pairs, strict=True) for one in part])
        return Memory(vectors, self.gradients(vectors), self.min_curvature)


class Memory:
    """Pairs of steps and ``y``, seen from one state.

    All that the recursion needs of its vectors is their inner products. Those of the pairs are
    computed once for all directions of a state, and it runs on the coefficients of a sum of
    vectors.

    :param vectors: changes of the Gaussians, the newest last, then by what the natural gradient
        fell along them, ``y``; shape ``(2 pairs, n)``.
    :param gradients: the Fisher information times each, shape ``(2 pairs, n)``.
    :param min_curvature: pairs count that have this fraction of the metric's curvature.
    """

    def __init__(self, vectors: np.ndarray, gradients: np.ndarray, min_curvature: float) -> None:
        self._vectors, count = vectors, len(vectors) // 2
        self._products = self._along(gradients.T)
        squares, y_squares = np.split(self._products.diagonal(), 2)
        curvature = self._products[:count, count:].diagonal()
        eps = float(np.finfo(vectors.dtype).eps) ** 0.5
        used = (curvature > min_curvature * squares) & (
            curvature > eps * np.sqrt(np.abs(squares * y_squares))
        )
        used &= (squares > 0) & (y_squares > 0)  # and did not overflow
        #: The least curvature that counts, as a fraction of the metric's; one without pairs.
        self.flattest = float(np.min(curvature[used] / squares[used], initial=1.0))
        self._weights = np.where(used, 1.0 / np.where(used, curvature, 1.0), 0.0)

    def correct(self, natural: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return the quasi-Newton direction.

        :param natural: a natural gradient, shape ``(n,)``.
        :param gradient: the Fisher information times it, shape ``(n,)``.
        """
        # A vector is its coefficients of the direction, the steps and ``y``.
        along = self._along(gradient)
        unit = np.eye(1 + len(along))
        steps, ys = np.split(unit[1:], 2)
        of_steps, of_ys = np.split(np.column_stack([along, self._products]), 2)
        # Gradients are natural ones already: what the metric makes of a gradient is itself.
        pairs = Recursion(steps, ys, of_steps, of_ys, self._weights)
        amounts = two_loop(pairs, unit[0], lambda rest: rest)[1:].astype(natural.dtype)
        return natural + amounts @ self._vectors

    def _along(self, gradients: np.ndarray) -> np.ndarray:
        """Products of the pairs with gradients.

        Those of a step over a cliff overflow in single precision. Such a pair does not count, and
        what a weight of zero multiplies must be finite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            products = (self._vectors @ gradients).astype(float)
        return np.where(np.isfinite(products), products, 0.0)
