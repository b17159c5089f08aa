"""Did it work? Importance weights ``w = p(y, theta) / q(theta)`` of draws from ``q`` tell.

Pareto smoothed importance sampling estimates the shape ``k`` of the weights' tail: they have
moments up to the order ``1 / k``. Below 0.7, averages under the smoothed weights can be trusted,
and ``q`` is close enough to the posterior to be corrected by them (Yao, Vehtari, Simpson and
Gelman, 2018, *Yes, but did it work?*; Vehtari et al., 2024, *Pareto smoothed importance
sampling*). It is a statement about all latents together: with many of them ``k`` may exceed 0.7
though each of the marginals is fine.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np

from ngvi.inference.pareto import smoothed_weights
from ngvi.latents.layout import Site

#: Draws by default: enough to tell 0.5 from 0.7.
NUM_DRAWS = 4000

#: Up to these ``k`` the weights have a variance, and smoothed weights can be trusted.
GOOD, USABLE = 0.5, 0.7
#: Log weights that vary by less, in nats, are as good as equal.
EQUAL = 0.05

#: Fewer weights have no tail to speak of.
MIN_DRAWS = 25

#: Log weights that differ by less, in units of their rounding error, are equal.
ROUNDINGS = 20.0

#: Rounding errors of the log density, in nats, that a reader of ``k`` should know of.
NOTABLE_ROUNDING = 0.05


class Marginal(NamedTuple):
    """One coordinate of the unconstrained latent vector, as the weights see it."""

    name: str  #: the site and the index into its unconstrained value, such as ``"beta[2]"``
    shift: float  #: weighted mean minus mean of ``q``, in standard deviations of ``q``
    scale_ratio: float  #: weighted standard deviation over that of ``q``

    @property
    def discrepancy(self) -> float:
        """``KL(N(shift, scale_ratio^2) || N(0, 1))`` in nats."""
        return float(_discrepancy(np.asarray(self.shift), np.asarray(self.scale_ratio)))


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

    def __len__(self) -> int:
        return len(self.shift)

    @overload
    def __getitem__(self, index: int) -> Marginal: ...

    @overload
    def __getitem__(self, index: slice) -> list[Marginal]: ...

    def __getitem__(self, index: int | slice) -> Marginal | list[Marginal]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return Marginal(self._name(index), float(self.shift[index]), float(self.scale_ratio[index]))

    def __iter__(self) -> Iterator[Marginal]:
        return (self[index] for index in range(len(self)))

    def worst(self, n: int = 5) -> list[Marginal]:
        """Those with the largest discrepancy, the largest first."""
        order = np.argsort(-_discrepancy(self.shift, self.scale_ratio), kind="stable")
        return [self[int(index)] for index in order[:n]]

    def _name(self, index: int) -> str:
        starts = [site.start for site in self.sites]
        site = self.sites[bisect.bisect_right(starts, index) - 1]
        if not site.shape:
            return site.name
        within = np.unravel_index(index - site.start, site.shape)
        return f"{site.name}[{','.join(str(int(i)) for i in within)}]"


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnostics:
    """What importance weights say of a posterior. Everything that is not defined is None."""

    #: How many draws of ``q`` there were.
    num_draws: int
    #: The shape of the weights' tail; 0 where they are equal up to rounding, infinite where too
    #: few are left for an estimate.
    pareto_k: float | None
    #: What that means, in words.
    verdict: str
    #: The bound ``E_q[log w]`` in nats, from these draws, and its standard error.
    bound: float | None = None
    bound_error: float | None = None
    #: ``log mean(w)`` in nats: a lower bound on the log evidence in expectation, and an estimate
    #: of it where ``k`` is below 0.7. Its standard error is None where the weights have none.
    importance_weighted_bound: float | None = None
    importance_weighted_bound_error: float | None = None
    #: ``1 / sum(w^2)`` of the smoothed normalised weights.
    effective_sample_size: float | None = None
    #: Draws at which the log density is NaN or infinite.
    num_dropped: int = 0
    #: By coordinate of the unconstrained latent vector.
    marginals: Marginals = dataclasses.field(
        default_factory=lambda: Marginals(np.empty(0), np.empty(0))
    )
    #: ``log w`` in nats, shape ``(num_draws,)``.
    log_weights: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))

    def worst(self, n: int = 5) -> list[Marginal]:
        """The marginals that the weights change most, the worst first."""
        return self.marginals.worst(n)

    def __repr__(self) -> str:
        k = "undefined" if self.pareto_k is None else f"{self.pareto_k:.2f}"
        return f"Diagnostics(num_draws={self.num_draws}, pareto_k={k}: {self.verdict})"


def undefined(reason: str) -> Diagnostics:
    """The diagnostics of a model without importance weights.

    :param reason: why it has none.
    """
    return Diagnostics(0, None, reason)


def from_log_weights(
    log_weights: np.ndarray,
    moments: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    sites: tuple[Site, ...],
    rounding: float,
) -> Diagnostics:
    """What log weights say of a posterior. No value of theirs is an error.

    :param log_weights: of independent draws, shape ``(n,)``.
    :param moments: from weights of shape ``(m, n)`` to weighted means and mean squares of the
        draws, in standard deviations of ``q`` from its mean; each of shape ``(m, d)``.
    :param sites: that the coordinates belong to.
    :param rounding: error of a log weight, in nats.
    """
    log_weights = np.asarray(log_weights, np.float64)
    finite = np.isfinite(log_weights)
    kept, num_draws = log_weights[finite], len(log_weights)
    num_dropped = num_draws - len(kept)
    if not len(kept):
        return dataclasses.replace(
            undefined("useless: the log density is not finite at any draw"),
            num_draws=num_draws,
            num_dropped=num_dropped,
            log_weights=log_weights,
        )
    smoothed, shape = _smoothed(kept, rounding)
    weights = np.zeros((2, num_draws))
    weights[0, finite] = np.exp(smoothed)
    weights[1, finite] = 1.0 / len(kept)
    # At -inf the weight is zero: such draws count, whereas NaN and +inf say nothing.
    num_zero = int(np.sum(np.isneginf(log_weights)))
    largest = kept.max()
    raw = np.exp(kept - largest)
    num_counted = len(kept) + num_zero
    relative_variance = num_counted * np.sum(raw**2) / np.sum(raw) ** 2 - 1.0
    has_error = shape is not None and shape < USABLE and num_counted > 1
    return Diagnostics(
        num_draws=num_draws,
        pareto_k=shape,
        verdict=_verdict(shape, kept, num_dropped, num_draws, rounding),
        bound=float(kept.mean()),
        bound_error=float(kept.std(ddof=1) / math.sqrt(len(kept))) if len(kept) > 1 else None,
        importance_weighted_bound=float(largest + np.log(raw.sum() / num_counted)),
        importance_weighted_bound_error=(
            math.sqrt(max(relative_variance, 0.0) / num_counted) if has_error else None
        ),
        effective_sample_size=float(1.0 / np.sum(weights[0] ** 2)),
        num_dropped=num_dropped,
        marginals=_marginals(*moments(weights), sites),
        log_weights=log_weights,
    )


def _smoothed(log_weights: np.ndarray, rounding: float) -> tuple[np.ndarray, float | None]:
    """Normalised log weights and ``k``, where there is a tail."""
    equal = np.full(len(log_weights), -math.log(len(log_weights)))
    if np.ptp(log_weights) <= ROUNDINGS * rounding:
        # Nothing but rounding: an exact posterior, unless even that could not be seen.
        return equal, 0.0 if ROUNDINGS * rounding < 1.0 else None
    smoothed, shape = smoothed_weights(log_weights)
    if len(log_weights) < MIN_DRAWS or math.isnan(shape):
        shape = math.inf
    return smoothed, shape


def _verdict(
    shape: float | None,
    log_weights: np.ndarray,
    num_dropped: int,
    num_draws: int,
    rounding: float,
) -> str:
    spread = float(log_weights.std())
    if shape is None:
        words = "unknown: the log density's rounding errors hide the weights"
    elif len(log_weights) < MIN_DRAWS:
        words = f"unknown: {len(log_weights)} draws are too few, take {MIN_DRAWS} at least"
    elif spread < EQUAL:
        words = f"good: the weights hardly vary (sd {spread:.2g} nats), whatever their tail"
    elif shape < GOOD:
        words = "good: q covers the posterior"
    elif shape < USABLE:
        words = "usable: q covers most of the posterior, and importance weights can correct it"
    elif shape < 1.0:
        words = "poor: q misses a part of the posterior; distrust its spread and its tails"
    else:
        words = "bad: q is far from the posterior, and importance weights cannot tell how far"
    if num_dropped:
        words += f"; the log density is not finite at {num_dropped} of {num_draws} draws"
    if rounding > NOTABLE_ROUNDING:
        words += f"; log weights are rounded by about {rounding:.1g} nats: use float64"
    return words


def _marginals(means: np.ndarray, squares: np.ndarray, sites: tuple[Site, ...]) -> Marginals:
    variances = np.maximum(squares - means**2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale_ratio = np.sqrt(variances[0] / variances[1])
    return Marginals(means[0] - means[1], scale_ratio, sites)


def _discrepancy(shift: np.ndarray, scale_ratio: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        value = 0.5 * (scale_ratio**2 + shift**2 - 1.0) - np.log(scale_ratio)
    return np.where(np.isnan(value), np.inf, value)
