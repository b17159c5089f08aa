"""Changes of each marginal by importance weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ngvi.latents.layout import Site, name_of


class Marginal(NamedTuple):
    """A coordinate of the unconstrained latent vector, as the weights see it."""

    name: str  #: Site and index into its unconstrained value, as ``"beta[2]"``.
    shift: float  #: Weighted mean minus mean of ``q``, in its standard deviations.
    scale_ratio: float  #: Weighted standard deviation over that of ``q``.
    shift_error: float = 0.0  #: Standard errors of both, if weights can be trusted.
    ratio_error: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Marginals(Sequence):
    """A sequence of :class:`Marginal`, one per coordinate, held as arrays.

    Means and standard deviations of ``q`` are those of the same draws, so that for an exact
    ``q`` nothing is left of their noise.

    :param shift: shape ``(d,)``.
    :param scale_ratio: shape ``(d,)``.
    :param sites: that the coordinates belong to, in order.
    """

    shift: np.ndarray
    scale_ratio: np.ndarray
    sites: tuple[Site, ...] = ()
    shift_error: np.ndarray | None = None
    ratio_error: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.shift)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        pair = self.shift_error, self.ratio_error
        errors = (0.0 if e is None else float(e[index]) for e in pair)
        return Marginal(
            name_of(index, self.sites),
            float(self.shift[index]),
            float(self.scale_ratio[index]),
            *errors,
        )


def weighted_marginals(
    means: np.ndarray, squares: np.ndarray, sites: tuple[Site, ...], effective: float
) -> Marginals:
    """Return the marginals of weighted draws.

    :param means: shape ``(3, d)``: under weights, under equal ones, and under the weights' squares.
    :param squares: mean squares likewise.
    :param sites: that the coordinates belong to.
    :param effective: the number of effective draws.
    """
    stddevs = np.sqrt(np.maximum(squares[:2] - means[:2] ** 2, 0.0))
    spread = squares[2] - 2.0 * means[0] * means[2] + means[0] ** 2 / effective
    with np.errstate(divide="ignore", invalid="ignore"):
        shift, ratio = (means[0] - means[1]) / stddevs[1], stddevs[0] / stddevs[1]
        # Of the same draws: for an exact q nothing is left of the noise.
        noise = np.sqrt(np.maximum(spread, 0.0)) / stddevs[1]
        return Marginals(shift, ratio, sites, noise, ratio * math.sqrt(0.5 / effective))


def largest_changes(marginals: Marginals) -> tuple[float, float]:
    """Return the largest changes of means, in standard deviations, and of log deviations."""
    with np.errstate(divide="ignore"):
        changes = np.abs(marginals.shift), np.abs(np.log(marginals.scale_ratio))
    shift, ratio = (float(np.nan_to_num(part).max(initial=0.0)) for part in changes)
    return shift, ratio


def discrepancies(shift: np.ndarray, scale_ratio: np.ndarray) -> np.ndarray:
    """``KL(N(shift, scale_ratio^2) || N(0, 1))`` in nats; infinite if that is not defined."""
    with np.errstate(divide="ignore"):
        value = 0.5 * (scale_ratio**2 + shift**2 - 1.0) - np.log(scale_ratio)
    return np.where(np.isnan(value), np.inf, np.maximum(value, 0.0))
