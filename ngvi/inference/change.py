"""Rows added to, or removed from, the data of a fitted result."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Change:
    """Change of the data of a result that ``update`` or ``without`` has made.

    :ivar mean: of the Gaussian that stands for the prior and all earlier rows, shape ``(d,)``; None
        where the model's own prior does.
    :ivar factor: ``C`` of its covariance ``C C^T``, shape ``(d, d)``.
    :ivar left_out: observations of the arguments that do not count, numbered one after another.
    :ivar bound: on the log evidence of the earlier rows, in nats.
    :ivar bound_error: its standard error at later Gaussians, as an estimate of the true bound.
    :ivar drift: what the earlier rows' log likelihoods being Gaussians has cost so far, in nats;
        see ``update`` of a result.
    :ivar num_updates: how many have led here.
    """

    mean: np.ndarray | None = None
    factor: np.ndarray | None = None
    left_out: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0, int))
    bound: float = 0.0
    bound_error: float = 0.0
    drift: float = 0.0
    num_updates: int = 0

    @property
    def left_open(self) -> float:
        """Nats to the optimum of all rows that earlier rows leave open: twice the drift."""
        return 2.0 * self.drift

    def in_words(self) -> str:
        """Say what earlier rows cost."""
        return (
            f"earlier rows count as Gaussians (drift {self.drift:.2g} nats), and the optimum of "
            f"all rows may be {self.left_open:.2g} nats higher"
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a file holds of it."""
        found = {"left_out": self.left_out, "mean": self.mean, "factor": self.factor}
        return {name: array for name, array in found.items() if array is not None}

    def numbers(self) -> dict[str, float | int]:
        """Return what a file holds of it."""
        numbers = {"bound": self.bound, "bound_error": self.bound_error, "drift": self.drift}
        return {**{k: float(v) for k, v in numbers.items()}, "num_updates": self.num_updates}
