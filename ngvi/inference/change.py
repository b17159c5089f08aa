"""Rows added to, or removed from, the data of a fitted result."""

from __future__ import annotations

import dataclasses

import numpy as np

from ngvi.errors import DamagedFileError


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

    def kept(self, weights: np.ndarray) -> np.ndarray:
        """Return the weights of observations, which are zero for those that are left out.

        :raises DamagedFileError: for one that is not there, as a file may say.
        """
        if np.any(self.left_out >= len(weights)):
            raise DamagedFileError("The result leaves out observations that are not there.")
        found = weights.copy()
        found[self.left_out] = 0.0
        return found

    def check(self, dim: int) -> None:
        """Refuse what is no change of a posterior over ``dim`` latents.

        :raises ValueError: for other shapes, or a Gaussian without a density.
        """
        is_prior = False
        if self.mean is not None and self.factor is not None:
            has_shapes = (self.mean.shape, self.factor.shape) == ((dim,), (dim, dim))
            is_prior = has_shapes and bool(np.isfinite(np.linalg.slogdet(self.factor)[1]))
        is_right = self.left_out.dtype.kind in "iu" and np.all(self.left_out >= 0)
        if not (is_right and self.left_out.ndim == 1 and (is_prior or self.mean is self.factor)):
            raise ValueError("rows that were added or left out are none of this result's")

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a file holds of it."""
        return {k: v for k, v in vars(self).items() if isinstance(v, np.ndarray)}

    def numbers(self) -> dict[str, float | int]:
        """Return what a file holds of it."""
        return {k: v for k, v in vars(self).items() if k not in ("mean", "factor", "left_out")}
