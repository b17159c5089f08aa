"""What importance weights say of a Gaussian, in one word.

One function sees k-hat with its error, the effective draws, the gap between the bound and the
importance-weighted bound, and what the weights change: so that no two lines of a report contradict
each other. The tail of nearly equal weights may have any shape, and carries nothing; a k-hat whose
error reaches across the threshold decides nothing, until there are more draws.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: The last words where weights of ``q`` do not do; others take their place where heavier tails do.
WAY_ON = "result.nuts() goes on"
#: Up to this ``k`` smoothed weights can be trusted (Vehtari et al., 2024).
USABLE = 0.7


class VerdictOptions(NamedTuple):
    """Where one word ends and the next begins."""

    alike: float = 0.98  #: effective draws per draw: then nothing changes by 0.14 sd (chi-square)
    hardly: float = 0.5  #: effective draws per draw, below which q is far from the posterior
    far: float = 1.0  #: a k-hat of weights that have no mean
    shift: float = 0.1  #: of a mean in sd, within which a marginal is right
    ratio: float = 0.1  #: of a standard deviation, likewise


OPTIONS = VerdictOptions()


class Weights(NamedTuple):
    """What is known of weights."""

    pareto_k: float
    error: float  #: standard error of k-hat
    share: float  #: effective draws per draw
    gap: float  #: of the bound to the importance-weighted bound, in nats
    num_weights: int
    #: The largest changes of a marginal: of the mean, in standard deviations, and of these.
    shift: float = 0.0
    ratio: float = 0.0

    @property
    def are_trusted(self) -> bool | None:
        """Whether averages under them are those of the posterior; None if that is not decided."""
        if self.share >= OPTIONS.alike or self.pareto_k + self.error < USABLE:
            return True
        return False if self.pareto_k - self.error > USABLE else None

    @property
    def verdict(self) -> str:
        """A word, and what it means."""
        if self.are_trusted:
            noise = 3.0 * math.sqrt(max(1.0 / self.share - 1.0, 0.0) / self.num_weights)
            if self.shift < OPTIONS.shift + noise and self.ratio < OPTIONS.ratio + noise:
                return "good: q covers the posterior"
            return "usable: importance weights mend what q misses of the posterior"
        missed = f"q misses a part of the posterior, {self.gap:.2g} nats at least"
        if self.are_trusted is None:
            return (
                f"undecided: {missed}; the error of k-hat reaches {USABLE}, up to which weights "
                f"mend that: {WAY_ON}"
            )
        if self.pareto_k - self.error < OPTIONS.far or self.share > OPTIONS.hardly:
            return (
                f"poor: {missed}, and weights tell too little of it; distrust its spread and its "
                f"tails: {WAY_ON}"
            )
        return (
            "bad: q is far from the posterior, and importance weights cannot tell how far: "
            f"{WAY_ON}"
        )


def error_of_k(pareto_k: float, num_tail: int, num_prior: float) -> float:
    """The standard error of a k-hat that is drawn to its prior.

    That of maximum likelihood is ``(1 + k) / sqrt(m)`` (Smith, 1987).

    :param num_tail: ``m``, weights in the tail.
    :param num_prior: observations that the prior is worth.
    """
    if not math.isfinite(pareto_k):
        return 0.0
    return max(1.0 + pareto_k, 0.0) * math.sqrt(num_tail) / (num_tail + num_prior)
