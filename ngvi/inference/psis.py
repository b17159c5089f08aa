"""Pareto smoothed importance sampling: whether a Gaussian is to be believed.

Draws of ``q`` have importance weights ``w = p(y, theta) / q(theta)``. The largest of them are
replaced by quantiles of a generalised Pareto distribution that is fitted to them, whose shape ``k``
tells how many moments they have: those up to the order ``1 / k``. Below 0.7, averages under the
smoothed weights can be trusted, and ``q`` is close enough to the posterior to be corrected by them
(Yao, Vehtari, Simpson and Gelman, 2018, *Yes, but did it work?*; Vehtari, Simpson, Gelman, Yao and
Gabry, 2024, JMLR 25). It is a statement about all latents together: with many of them ``k`` may
exceed 0.7 though each of the marginals is fine.

Smoothed weights are those of ``psislw`` of ArviZ 0. What ArviZ 1 calls it depends on the version:
these are 30 lines, and need neither.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ngvi.inference.estimate import State
from ngvi.inference.problem import Objective, Problem
from ngvi.latents.layout import Site

#: Up to these ``k`` the weights have a variance, and smoothed weights can be trusted.
GOOD, USABLE = 0.5, 0.7
#: The prior of Zhang and Stephens (2009, section 4) on the inverse scale, and that of Vehtari et
#: al. (2024, appendix C) on the shape: so many observations of one half.
SCALE_PRIOR, SHAPE_PRIOR, PRIOR_SHAPE = 3.0, 10.0, 0.5
#: Numbers of the draws that are in memory at once, 128 MiB.
NUMBERS_AT_ONCE = 2**24


class Limits(NamedTuple):
    """From where on weights have a verdict."""

    min_tail: int = 5  #: weights that tell the shape of a tail
    min_draws: int = 25  #: weights of which a part is a tail
    equal: float = 0.05  #: a standard deviation of ``log w``, in nats, that is as good as none
    roundings: float = 20.0  #: a range of ``log w`` in units of its rounding that is none
    notable_rounding: float = 0.05  #: in nats, which a reader of ``k`` should know of


LIMITS = Limits()

# -- weights -------------------------------------------------------------------------------


def smoothed_weights(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Pareto smoothed importance weights.

    :param log_weights: finite, shape ``(n,)``.
    :return: normalised logarithms of the smoothed weights, and the shape ``k`` of the tail;
        infinite if the tail is too short for an estimate, or of equal weights.
    """
    logs = np.asarray(log_weights, np.float64)
    logs, count = logs - logs.max(), len(logs)
    order = np.argsort(logs)
    size = math.ceil(min(count / 5.0, 3.0 * math.sqrt(count)))
    cutoff = logs[order[-size - 1]] if size < count else -math.inf
    cutoff = max(cutoff, math.log(np.finfo(float).tiny))
    tail = order[logs[order] > cutoff]
    shape = math.inf
    if len(tail) >= LIMITS.min_tail and logs[tail[0]] < logs[tail[-1]]:
        shape, scale = fit_tail(np.exp(logs[tail]) - math.exp(cutoff))
        if math.isfinite(shape) and scale > 0:
            order_statistics = (np.arange(len(tail)) + 0.5) / len(tail)
            found = np.log(quantiles(order_statistics, shape, scale) + math.exp(cutoff))
            logs[tail] = np.minimum(found, 0.0)  # never above the largest raw weight
    return logs - np.logaddexp.reduce(logs), shape


def fit_tail(excesses: np.ndarray) -> tuple[float, float]:
    """Shape and scale of a generalised Pareto distribution.

    The posterior mean of ``b = -k / sigma`` on a grid, where the likelihood has been maximised over
    the rest (Zhang and Stephens, 2009), and ``k`` at that mean, drawn to one half.

    :param excesses: positive, in ascending order, shape ``(m,)``.
    :return: ``k``, positive for heavy tails, and ``sigma``; NaN if there is no estimate.
    """
    count = len(excesses)
    size = 30 + int(math.sqrt(count))
    quartile = excesses[int(count / 4 + 0.5) - 1]
    with np.errstate(all="ignore"):
        grid = 1.0 - np.sqrt(size / (np.arange(size) + 0.5))
        grid = grid / (SCALE_PRIOR * quartile) + 1.0 / excesses[-1]
        shapes = np.log1p(-grid[:, None] * excesses).mean(1)
        likelihoods = count * (np.log(-grid / shapes) - shapes - 1.0)
        weights = 1.0 / np.exp(likelihoods - likelihoods[:, None]).sum(1)
        used = weights >= 10.0 * np.finfo(float).eps
        inverse = float(grid[used] @ (weights[used] / weights[used].sum()))
        shape = float(np.log1p(-inverse * excesses).mean())
        scale = -shape / inverse if inverse else math.nan
    return (count * shape + SHAPE_PRIOR * PRIOR_SHAPE) / (count + SHAPE_PRIOR), scale


def quantiles(probabilities: np.ndarray, shape: float, scale: float) -> np.ndarray:
    """Of a generalised Pareto distribution."""
    exponential = -np.log1p(-probabilities)
    if abs(shape) < np.finfo(float).eps:
        return scale * exponential
    return scale * np.expm1(shape * exponential) / shape


# -- diagnostics ---------------------------------------------------------------------------


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

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        site = next(site for site in self.sites if index < site.start + site.size)
        name = site.name
        if site.shape:
            within = np.unravel_index(index - site.start, site.shape)
            name += f"[{','.join(str(int(i)) for i in within)}]"
        return Marginal(name, float(self.shift[index]), float(self.scale_ratio[index]))


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
        found = self.marginals
        order = np.argsort(-_discrepancy(found.shift, found.scale_ratio), kind="stable")
        return [found[int(index)] for index in order[:n]]

    def __repr__(self) -> str:
        k = "undefined" if self.pareto_k is None else f"{self.pareto_k:.2f}"
        return f"Diagnostics(num_draws={self.num_draws}, pareto_k={k}: {self.verdict})"


def undefined(reason: str) -> Diagnostics:
    """The diagnostics of a model without importance weights.

    :param reason: why it has none.
    """
    return Diagnostics(0, None, f"undefined: {reason}")


def of_minibatches(objective: Objective) -> str:
    """That the density is not that of all data, in words; or nothing."""
    of_plate = objective.rows and f" (of plate '{objective.rows.plate}')"
    words = f"the model sees minibatches{of_plate or ''}, whose density is not that of all data"
    return words if objective.is_subsampled else ""


def diagnose(problem: Problem, state: State, num_draws: int, seed: int | list[int]) -> Diagnostics:
    """What importance weights say of a state.

    They are those of all that the guide draws, partners of the Gaussians included, whose own
    coordinates are not among the marginals. Discrete latents are summed out where the model's
    density does. The same seed gives the same draws.

    :param num_draws: how many; each is a value of the log density. Not all are in memory at once.
    """
    space, objective = problem.space, problem.objective
    if why := of_minibatches(objective):
        return undefined(why)
    densities, log_weights = [], []
    for theta, log_q in _draws(problem, state, num_draws, seed):
        densities.append(objective.log_density(state, theta))
        log_weights.append(densities[-1] - log_q)
    density, mean = np.concatenate(densities), space.mean(state)
    size = np.abs(density[np.isfinite(density)]).max(initial=0.0) + space.dim

    def moments(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        means = squares = np.zeros((len(weights), space.dim))
        start = 0
        for theta, _ in _draws(problem, state, num_draws, seed):  # anew, now with weights
            some, start = weights[:, start : start + len(theta)], start + len(theta)
            means = means + some @ (theta - mean)
            squares = squares + some @ np.square(theta - mean)
        return means, squares

    rounding = problem.rounding(float(size))
    return from_log_weights(np.concatenate(log_weights), moments, space.sites, rounding)


def _draws(
    problem: Problem, state: State, count: int, seed: int | list[int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Latent vectors and their ``log q``, some at a time."""
    rng, dim = np.random.default_rng(seed), problem.space.noise_dim
    at_once = max(1, NUMBERS_AT_ONCE // dim)
    for start in range(0, count, at_once):
        noise = rng.standard_normal((min(at_once, count - start), dim))
        yield problem.space.draw(state, noise)


def from_log_weights(
    log_weights: np.ndarray,
    moments: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    sites: tuple[Site, ...],
    rounding: float,
) -> Diagnostics:
    """What log weights say of a posterior. No value of theirs is an error.

    :param log_weights: of independent draws, shape ``(n,)``.
    :param moments: from weights of shape ``(m, n)`` to weighted means and mean squares of the
        draws, each less the mean of ``q``; both of shape ``(m, d)``.
    :param sites: that the coordinates belong to.
    :param rounding: error of a log weight, in nats.
    """
    log_weights = np.asarray(log_weights, np.float64)
    finite = np.isfinite(log_weights)
    kept, num_draws = log_weights[finite], len(log_weights)
    num_dropped = num_draws - len(kept)
    if not len(kept):
        words = "useless: the log density is not finite at any draw"
        return Diagnostics(num_draws, None, words, num_dropped=num_dropped, log_weights=log_weights)
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
    verdict = _verdict(shape, kept, rounding)
    if num_dropped:
        verdict += f"; the log density is not finite at {num_dropped} of {num_draws} draws"
    if rounding > LIMITS.notable_rounding:
        verdict += f"; log weights are rounded by about {rounding:.1g} nats: use float64"
    return Diagnostics(
        num_draws=num_draws,
        pareto_k=shape,
        verdict=verdict,
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
    if np.ptp(log_weights) <= LIMITS.roundings * rounding:
        # Nothing but rounding: an exact posterior, unless even that could not be seen.
        equal = np.full(len(log_weights), -math.log(len(log_weights)))
        return equal, 0.0 if LIMITS.roundings * rounding < 1.0 else None
    smoothed, shape = smoothed_weights(log_weights)
    if len(log_weights) < LIMITS.min_draws or math.isnan(shape):
        shape = math.inf
    return smoothed, shape


def _verdict(shape: float | None, log_weights: np.ndarray, rounding: float) -> str:
    spread, count = float(log_weights.std()), len(log_weights)
    if shape is None:
        return "unknown: the log density's rounding errors hide the weights"
    if count < LIMITS.min_draws:
        return f"unknown: {count} draws are too few, take {LIMITS.min_draws} at least"
    if spread < LIMITS.equal:
        return f"good: the weights hardly vary (sd {spread:.2g} nats), whatever their tail"
    if shape < GOOD:
        return "good: q covers the posterior"
    if shape < USABLE:
        return "usable: q covers most of the posterior, and importance weights can correct it"
    if shape < 1.0:
        return "poor: q misses a part of the posterior; distrust its spread and its tails"
    return "bad: q is far from the posterior, and importance weights cannot tell how far"


def _marginals(means: np.ndarray, squares: np.ndarray, sites: tuple[Site, ...]) -> Marginals:
    stddevs = np.sqrt(np.maximum(squares - means**2, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return Marginals((means[0] - means[1]) / stddevs[1], stddevs[0] / stddevs[1], sites)


def _discrepancy(shift: np.ndarray, scale_ratio: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        value = 0.5 * (scale_ratio**2 + shift**2 - 1.0) - np.log(scale_ratio)
    return np.where(np.isnan(value), np.inf, value)
