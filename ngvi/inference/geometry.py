"""The metric of one place, and what earlier steps tell of the bound's own curvature there.

Half the squared Fisher norm of the natural gradient is the gain that a bound would have whose
curvature is the metric. Where pairs of steps and falls of the natural gradient know better, they
correct the direction, and with it the gain.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from ngvi.inference.engine import Direction, Draws, Measured, Place, Step
from ngvi.inference.memory import MIN_CURVATURE, Memory

#: Pairs of the quasi-Newton memory, fewer if they have more than so many numbers.
MAX_PAIRS = 6
MAX_NUMBERS = 20_000_000
#: Of a family that leaves out correlations the pairs are more, as all that is known of these is in
#: them, and flatter ones count: an intercept and the effects of its groups are as flat together,
#: beside what the data say of each, as the prior.
MAX_RESTRICTED_PAIRS, MIN_RESTRICTED_CURVATURE = 50, 1e-8


class Corrected(NamedTuple):
    """A direction after quasi-Newton correction."""

    direction: Direction  #: its covector is still the gradient, whose slopes a step has
    gain: float  #: that a quadratic bound would have along it, in nats
    fisher: float  #: the gain that the Fisher metric predicts, in nats


class Geometry:
    """The metric of the Gaussians of one place; it knows no model.

    A package says what ``F`` times a vector is, and where a step along a direction leads.

    :param place: the parameters.
    :param size: ``n``, the numbers of a vector.
    :param pairs: changes of the Gaussians, and the falls of the natural gradient along them, the
        newest last.
    :param max_pairs: how many of them count.
    :param is_restricted: whether the Gaussians leave out correlations, so that the bound may be far
        flatter than the metric, and steps long in it, where they are short for the bound.
    """

    min_curvature: float = MIN_CURVATURE  #: of pairs that count

    def __init__(
        self,
        place: Place,
        size: int,
        pairs: list[tuple[np.ndarray, np.ndarray]],
        max_pairs: int = MAX_PAIRS,
        is_restricted: bool = False,
    ) -> None:
        self.place, self.size, self.is_restricted = place, size, is_restricted
        if is_restricted:
            max_pairs = max(max_pairs, MAX_RESTRICTED_PAIRS)
            self.min_curvature = min(self.min_curvature, MIN_RESTRICTED_CURVATURE)
        self.max_pairs = min(max_pairs, MAX_NUMBERS // (2 * size))
        self._pairs = pairs[-self.max_pairs :] if self.max_pairs else []

    @property
    def flattest(self) -> float:
        """The least curvature of the bound along the pairs, as a fraction of the metric's."""
        return self._memory.flattest if self._pairs else 1.0

    def scaled(self, vectors: np.ndarray) -> np.ndarray:
        """Vectors as the metric has them, of those that were measured; they are the same."""
        return vectors

    def accepted(self, step: Step, before: Direction, after: Direction, is_short: bool) -> None:
        """Learn from a step that is taken; there is nothing to learn about Gaussians.

        :param before: what was measured at its beginning.
        :param after: what was measured at its end.
        :param is_short: whether the metric is nearly the same at both.
        """

    def refused(self) -> None:
        """Learn from a step that is not taken."""

    def allow(self, direction: Direction) -> None:
        """Let the next step be as long as this direction, which probes have found."""

    def probes(
        self, measured: Measured, draws: list[Draws], widely: bool = False
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Pairs along directions of which the metric knows nothing; of Gaussians there are none.

        :param measured: at this place.
        :param draws: over which.
        :param widely: not by less than where a search begins.
        """
        return []

    def covectors(self, vectors: np.ndarray) -> np.ndarray:
        """``F`` times each row; shape ``(rows, n)``."""
        raise NotImplementedError

    def step(self, direction: Direction, rho: float, radius: float) -> Step | None:
        """The step ``rho`` along a direction, shorter if it would leave the trust region.

        :param radius: the largest ``KL(new || old)``, in nats.
        :return: None if no step leads to a finite Gaussian.
        """
        raise NotImplementedError

    def squares(self, vectors: np.ndarray) -> np.ndarray:
        """The squared Fisher norm of each row."""
        with np.errstate(all="ignore"):
            return np.einsum("ij,ij->i", vectors, self.covectors(vectors)).astype(float)

    def corrected(self, direction: Direction) -> Corrected:
        """The quasi-Newton direction."""
        vector, of_vector, ordinary = direction
        vector = self.scaled(vector)
        with np.errstate(all="ignore"):
            fisher = 0.5 * float(of_vector @ vector)
            if not self._pairs:
                return Corrected(Direction(vector, of_vector, ordinary), fisher, fisher)
            vector = self._memory.correct(vector, of_vector)
            gain = 0.5 * float(of_vector @ vector)
            return Corrected(Direction(vector, of_vector, ordinary), gain, fisher)

    def gains(self, vectors: np.ndarray) -> np.ndarray:
        """The gain that each row promises, the larger of the two estimates, in nats."""
        covectors = self.covectors(self.scaled(vectors))
        found = map(self.corrected, map(Direction, vectors, covectors))
        return np.array([max(gain, fisher) for _, gain, fisher in found])

    @functools.cached_property
    def _memory(self) -> Memory:
        steps, falls = (np.stack(vectors) for vectors in zip(*self._pairs, strict=True))
        of_steps, of_falls = np.split(self.covectors(np.concatenate([steps, falls])), 2)
        return Memory(steps, falls, of_steps, of_falls, self.min_curvature)
