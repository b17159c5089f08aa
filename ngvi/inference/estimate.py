"""Draws, and what they say of a bound at one state: its value, its natural gradient, a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ngvi.families.points import Points

#: The parameters of model and guide.
State = Any
#: Changes of the Gaussians, and ``y``: by what the natural gradient fell along them.
Pairs = list[tuple[np.ndarray, np.ndarray]]


class Group(NamedTuple):
    """Group of draws: points, and the seed of everything else that is random."""

    points: Points
    seed: int


Sample = list[Group]


class Direction(NamedTuple):
    """A natural gradient of the bound, or a correction of it."""

    natural: np.ndarray  #: Shape ``(n,)``.
    gradient: np.ndarray  #: The Fisher information of the state times the gradient of the bound's.
    parameters: Sequence[np.ndarray] = ()  #: Gradients of the model's own parameters.


class Estimate(NamedTuple):
    """The bound and its natural gradient over groups of draws, at one state."""

    values: np.ndarray  #: The bound of each group, in nats, shape ``(groups,)``.
    natural: np.ndarray  #: The natural gradient of each, shape ``(groups, n)``.
    mean: Direction  #: The average over all groups.

    @property
    def value(self) -> float:
        """The average bound in nats."""
        return float(self.values.mean())

    @property
    def error(self) -> float:
        """Standard error of the bound in nats, by the scatter of the groups."""
        with np.errstate(invalid="ignore"):  # of a draw without a density
            return float(self.values.std()) / max(len(self.values) - 1, 1) ** 0.5

    @property
    def is_finite(self) -> bool:
        """Return whether the bound is, in every group."""
        return bool(np.isfinite(self.values).all())

    def repeated(self, count: int) -> Estimate:
        """Return what so many groups find where there is no noise."""
        return Estimate(np.tile(self.values, count), np.tile(self.natural, (count, 1)), self.mean)

    def joined(self, other: Estimate) -> Estimate:
        """Join with further groups at the same state."""
        share = len(self.values) / (len(self.values) + len(other.values))
        return Estimate(
            np.concatenate([self.values, other.values]),
            np.concatenate([self.natural, other.natural]),
            _mean([self.mean, other.mean], [share, 1.0 - share]),
        )


def average(estimates: Sequence[Estimate], shares: Sequence[float]) -> Estimate:
    """Sum estimates of as many groups by weights.

    :param shares: a weight for each.
    """
    values, naturals, means = zip(*estimates, strict=True)
    return Estimate(_mixed(values, shares), _mixed(naturals, shares), _mean(means, shares))


def _mean(directions: Sequence[Direction], shares: Sequence[float]) -> Direction:
    parts = ([one.natural, one.gradient, *one.parameters] for one in directions)
    natural, gradient, *parameters = (_mixed(own, shares) for own in zip(*parts, strict=True))
    return Direction(natural, gradient, parameters)


def _mixed(parts: Sequence[np.ndarray], shares: Sequence[float]) -> np.ndarray:
    products = (share * np.asarray(part) for share, part in zip(shares, parts, strict=True))
    return sum(products, start=np.zeros((), np.asarray(parts[0]).dtype))


class Step(NamedTuple):
    """End of a step."""

    state: State
    change: np.ndarray  #: Change from the old Gaussians to the new ones.
    slope: float  #: Slope of the bound along the change, at its beginning, in nats.
    length: float  #: ``KL(new || old)`` in nats.
    backward: float  #: ``KL(old || new)`` in nats.
    step_size: float
