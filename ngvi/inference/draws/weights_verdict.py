"""Verdicts of importance weights on a Gaussian, in one word.

One function sees k-hat with its error, the effective draws, the gap between the bound and the
importance-weighted bound, and what the weights change: so that no two lines of a report contradict
each other, nor does ``sample``. K-hat itself does not tell whether averages can be trusted: the
tail of nearly equal weights may have any shape, and carries little, and that of small weights may
carry a variance. What counts is what the tail that is fitted to the weights, and to the weights
times squared deviations, still holds beyond the largest draw. Where that hangs on the error of
k-hat nothing is decided, until there are more draws.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ngvi.inference.draws.pareto import smoothed
from ngvi.inference.options import LEVELS

#: The last words where weights of ``q`` do not do; others take their place where heavier tails do.
WAY_ON = "result.nuts() goes on"
#: Up to this ``k`` smoothed weights can be trusted (Vehtari et al., 2024), if no more is known.
USABLE = 0.7


#: Effective draws per draw above which nothing changes by more than 0.14 sd (chi-square).
ALIKE = 0.98
#: Effective draws per draw below which ``q`` is far from the posterior.
HARDLY = 0.5
#: Most latents of which draws are corrected unasked, and moments judged, for the memory's sake.
MAX_LATENTS = 2000


class Errors(NamedTuple):
    """Errors of averages under smoothed weights.

    The first axes are those of :attr:`~ngvi.inference.draws.pareto.Tail.missing`.
    """

    mass: np.ndarray  #: Part of the mass beyond the largest weight.
    squares: np.ndarray  #: Part of each variance likewise, shape ``(3, d)``.
    noise: np.ndarray  #: Standard errors of means [sd] and deviations, ``(2, d)``.

    def faults(self, level: int) -> np.ndarray:
        """Tell whether mass, means, standard deviations are too far off, shape ``(3, d)``.

        Mass ``m`` with a second moment ``s`` shifts a mean by ``sqrt(m s)`` at most
        (Cauchy-Schwarz).

        :param level: index of the first axes. At the first one noise, which more draws mend, is
            none.
        """
        mass, squares = self.mass[level], self.squares[level]
        with np.errstate(invalid="ignore"):
            shifts = np.nan_to_num(np.sqrt(mass * squares), nan=np.inf, posinf=np.inf)
        limit = LEVELS.negligible  # of a mean, in standard deviations, and of one of these
        noisy = 0.5 * limit if level else np.inf
        pairs = zip((shifts, _narrow(squares)), self.noise, strict=True)
        found = [(off > limit) | (noise > noisy) for off, noise in pairs]
        return np.stack([np.full(squares.shape, _narrow(mass) > limit), *found])


def errors_of(log_weights: np.ndarray, mass: np.ndarray, latents: np.ndarray) -> Errors | None:
    """Return the errors of weighted draws; None of too many latents.

    :param log_weights: smoothed and normalised, shape ``(n,)``.
    :param mass: what their own tail has missed.
    :param latents: shape ``(n, d)``.
    """
    if latents.shape[1] > MAX_LATENTS:
        return None
    weights = np.exp(log_weights)
    squares, noise = [], []
    for values, mean in zip(latents.T, weights @ latents, strict=True):
        square = np.square(values - mean)
        variance = float(weights @ square)
        if not variance > 0:
            squares.append(np.zeros(len(mass)))
            noise.append((0.0, 0.0))
            continue
        with np.errstate(divide="ignore"):
            squares.append(smoothed(log_weights + np.log(square)).missing)
        around = np.stack([square * variance, 0.25 * np.square(square - variance)])
        noise.append(np.sqrt(around @ np.square(weights)) / variance)
    return Errors(mass, np.array(squares).T, np.array(noise).T)


def _narrow(missing: np.ndarray) -> np.ndarray:
    """Return how much too small a standard deviation is whose variance misses this part."""
    return 1.0 - 1.0 / np.sqrt(1.0 + missing)


class Weights(NamedTuple):
    """Evidence on importance weights."""

    pareto_k: float
    error: float  #: Standard error of k-hat.
    share: float  #: Effective draws per draw.
    gap: float  #: Importance-weighted bound less the bound, in nats.
    num_weights: int
    #: The largest changes of a marginal: of the mean, in standard deviations, and of these.
    shift: float
    ratio: float
    errors: Errors | None = None  #: Errors of averages; None without a look at the draws.

    def are_right(self, level: int) -> bool:
        """Return whether averages under them are those of the posterior.

        :param level: standard errors by which k-hat may be larger than it seems.
        """
        if self.share >= ALIKE:
            return True
        if self.errors is None:
            return self.pareto_k + (2 * level - 1) * self.error < USABLE
        return not self.errors.faults(level).any()

    @property
    def are_trusted(self) -> bool | None:
        """True if averages under them are those of the posterior; None if that is not decided."""
        return True if self.are_right(1) else None if self.are_right(0) else False

    @property
    def verdict(self) -> str:
        """A word on the weights, and what it means."""
        if self.are_trusted:
            noise = 3.0 * math.sqrt(max(1.0 / self.share - 1.0, 0.0) / self.num_weights)
            if max(self.shift, self.ratio) < LEVELS.negligible + noise:
                return "good: q covers the posterior"
            return "usable: importance weights mend what q misses of the posterior"
        missed = f"q misses a part of the posterior, {self.gap:.2g} nats at least"
        if self.are_trusted is None:
            return (
                f"undecided: {missed}; weights mend that, unless their tail is heavier than it "
                f"seems: {WAY_ON}"
            )
        if self.pareto_k - self.error < 1.0 or self.share > HARDLY:  # or there is no mean
            return (
                f"poor: {missed}, and weights tell too little of it; distrust its spread and its "
                f"tails: {WAY_ON}"
            )
        return (
            "bad: q is far from the posterior, and importance weights cannot tell how far: "
            f"{WAY_ON}"
        )
