"""Pareto smoothed importance sampling: whether a Gaussian is to be believed.

Draws of ``q`` have importance weights ``w = p(y, theta) / q(theta)``. The largest of them are
replaced by quantiles of a generalised Pareto distribution that is fitted to them. Its shape ``k``
tells how many moments they have: those up to the order ``1 / k`` (Yao, Vehtari, Simpson and Gelman,
2018, *Yes, but did it work?*; Vehtari, Simpson, Gelman, Yao and Gabry, 2024, JMLR 25). Where the
tail that is fitted holds little beyond the largest draw, averages under the smoothed weights can be
trusted (:mod:`~ngvi.inference.draws.weights_verdict`), and ``q`` is close enough to the posterior
to be corrected by them. Of thousands of latents ``k`` itself says so, up to 0.7.

Smoothed weights are those of ``psislw`` of ArviZ 0. What ArviZ 1 calls it depends on the version:
these are 30 lines, and need neither.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ngvi.inference.draws.marginals import (
    Marginal,
    Marginals,
    discrepancies,
    largest_changes,
    weighted_marginals,
)
from ngvi.inference.draws.pareto import error_of_k, smoothed, tail_size
from ngvi.inference.draws.weights_verdict import ALIKE, Weights, errors_of
from ngvi.inference.estimate import State
from ngvi.inference.options import LEVELS
from ngvi.inference.problem import Objective, Problem
from ngvi.inference.tells import TellsWhatItHas
from ngvi.latents.layout import Site

#: Numbers of the draws that are in memory at once, 128 MiB.
NUMBERS_AT_ONCE = 2**24


#: Fewest weights of which a part is a tail.
MIN_DRAWS = 25
#: Standard deviation of ``log w``, or its rounding, in nats, that is as good as none.
EQUAL = 0.05
#: Draws, and four times as many if these decide nothing.
NUM_DRAWS = 4000

# -- diagnostics ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnostics(TellsWhatItHas):
    """Importance weights' account of a posterior. Everything that is not defined is None."""

    #: Number of draws of ``q``.
    num_draws: int
    #: The shape of the weights' tail; 0 where they are alike, so that their tail carries nothing
    #: (98 % of the draws are effective), infinite where too few are left for an estimate.
    pareto_k: float | None
    #: The verdict in words, with the effective draws, the gap and the marginals.
    verdict: str
    #: The standard error of :attr:`pareto_k`.
    pareto_k_error: float | None = None
    #: True if averages under the weights are those of the posterior; None if that is not decided.
    are_trusted: bool | None = None
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
    #: Marginals by coordinate of the unconstrained latent vector.
    marginals: Marginals = dataclasses.field(
        default_factory=lambda: Marginals(np.empty(0), np.empty(0))
    )
    #: ``log w`` in nats, shape ``(num_draws,)``.
    log_weights: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))

    def worst(self, n: int = 5) -> list[Marginal]:
        """Return the marginals that the weights change most, the worst first."""
        found = self.marginals
        order = np.argsort(-discrepancies(found.shift, found.scale_ratio), kind="stable")
        return [found[int(index)] for index in order[:n]]

    def __repr__(self) -> str:
        k = k_in_words(self)
        return f"Diagnostics(num_draws={self.num_draws}, pareto_k={k}: {self.verdict})"


def undefined(reason: str) -> Diagnostics:
    """Return the diagnostics of a model without importance weights."""
    return Diagnostics(0, None, f"undefined: {reason}")


def of_minibatches(objective: Objective) -> str:
    """Say that the density is not that of all data; or nothing."""
    of_plate = objective.rows and f" (of plate '{objective.rows.plate}')"
    words = f"the model sees minibatches{of_plate or ''}, whose density is not that of all data"
    return words if objective.is_subsampled else ""


def diagnose(
    problem: Problem,
    state: State,
    num_draws: int | None,
    seed: int | list[int],
    most: int = LEVELS.more_draws * NUM_DRAWS,
) -> Diagnostics:
    """Return what importance weights say of a state.

    They are those of all that the guide draws, partners of the Gaussians included, whose own
    coordinates are not among the marginals. Discrete latents are summed out where the model's
    density does. The same seed gives the same draws.

    :param num_draws: how many; each is a value of the log density. Not all are in memory at once.
        By default 4000, or four times as many where these do not decide whether weights can be
        trusted.
    :param most: of these by default.
    """
    if why := of_minibatches(problem.objective):
        return undefined(why)
    if num_draws is not None:
        return _diagnosed(problem, state, num_draws, seed, ())
    first = _diagnosed(problem, state, min(NUM_DRAWS, most), seed, ())
    is_over = first.are_trusted is not None or first.pareto_k is None or first.num_dropped
    if is_over or most <= NUM_DRAWS:
        return first
    return _diagnosed(problem, state, most, seed, first.log_weights)


def _diagnosed(
    problem: Problem,
    state: State,
    count: int,
    seed: int | list[int],
    known: Sequence[float] | np.ndarray,
) -> Diagnostics:
    """Return the diagnostics of this many draws; the first have log weights already."""
    space, objective = problem.space, problem.objective
    parts, size, start = [np.asarray(known)], float(space.dim), 0
    for theta, log_q in _draws(problem, state, count, seed):
        latents = theta if len(theta) == count else None  # all of them at once
        new = slice(max(len(known) - start, 0), None)
        start += len(theta)
        if len(theta[new]):
            density = objective.log_density(state, theta[new])
            parts.append(density - log_q[new])
            found = np.abs(density[np.isfinite(density)]).max(initial=0.0)
            size = max(size, space.dim + float(found))
    mean = space.mean(state)

    def moments(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        means = squares = np.zeros((len(weights), space.dim))
        start = 0
        for theta, _ in _draws(problem, state, count, seed):  # anew, now with weights
            some, start = weights[:, start : start + len(theta)], start + len(theta)
            means = means + some @ (theta - mean)
            squares = squares + some @ np.square(theta - mean)
        return means, squares

    rounding = problem.rounding(size)
    return from_log_weights(np.concatenate(parts), moments, space.sites, rounding, latents)


def _draws(
    problem: Problem, state: State, count: int, seed: int | list[int]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield latent vectors and their ``log q``, some at a time; of more the first are the same."""
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
    latents: np.ndarray | None = None,
) -> Diagnostics:
    """Return what log weights say of a posterior. No value of theirs is an error.

    :param log_weights: of independent draws, shape ``(n,)``.
    :param moments: from weights of shape ``(m, n)`` to weighted means and mean squares of the
        draws, each less the mean of ``q``; both of shape ``(m, d)``.
    :param sites: that the coordinates belong to.
    :param rounding: error of a log weight, in nats.
    :param latents: the draws, shape ``(n, d)``, if they are at hand; else k-hat decides alone.
    """
    log_weights = np.asarray(log_weights, np.float64)
    finite = np.isfinite(log_weights)
    kept, num_draws = log_weights[finite], len(log_weights)
    num_dropped = num_draws - len(kept)
    if not len(kept):
        words = "useless: the log density is not finite at any draw"
        return Diagnostics(num_draws, None, words, num_dropped=num_dropped, log_weights=log_weights)
    logs, shape, mass = _smoothed(kept, rounding)
    weights = np.zeros((3, num_draws))
    weights[0, finite] = np.exp(logs)
    weights[1, finite] = 1.0 / len(kept)
    weights[2] = weights[0] ** 2
    effective = float(1.0 / weights[2].sum())
    # At -inf the weight is zero: such draws count, whereas NaN and +inf say nothing.
    num_counted = len(kept) + int(np.sum(np.isneginf(log_weights)))
    largest = kept.max()
    raw = np.exp(kept - largest)
    relative_variance = num_counted * np.sum(raw**2) / np.sum(raw) ** 2 - 1.0
    weighted_bound = float(largest + np.log(raw.sum() / num_counted))
    marginals = weighted_marginals(*moments(weights), sites, effective)
    gap = weighted_bound - float(kept.mean())
    share = effective / num_counted
    if shape is not None and share >= ALIKE:
        shape = 0.0  # the tail of weights that are alike carries nothing, whatever its shape
    known = _known(shape, len(kept), share, gap, marginals)
    if known is not None and mass is not None and latents is not None:
        known = known._replace(errors=errors_of(logs, mass, latents[finite]))
    verdict = _verdict(known, kept) + _remarks(num_dropped, num_draws, rounding)
    error = math.sqrt(max(relative_variance, 0.0) / num_counted)
    return Diagnostics(
        num_draws=num_draws,
        pareto_k=shape,
        verdict=verdict,
        pareto_k_error=None if known is None else known.error,
        are_trusted=None if known is None else known.are_trusted,
        bound=float(kept.mean()),
        bound_error=float(kept.std(ddof=1) / math.sqrt(len(kept))) if len(kept) > 1 else None,
        importance_weighted_bound=weighted_bound,
        importance_weighted_bound_error=error if known and known.are_trusted else None,
        effective_sample_size=effective,
        num_dropped=num_dropped,
        marginals=marginals,
        log_weights=log_weights,
    )


def _smoothed(
    log_weights: np.ndarray, rounding: float
) -> tuple[np.ndarray, float | None, np.ndarray | None]:
    """Return normalised log weights, ``k`` where there is a tail, and what that has missed."""
    if np.ptp(log_weights) <= LEVELS.rounding_units * rounding:
        # Nothing but rounding: an exact posterior, unless even that could not be seen.
        equal = np.full(len(log_weights), -math.log(len(log_weights)))
        return equal, 0.0 if LEVELS.rounding_units * rounding < 1.0 else None, None
    logs, shape, missing = smoothed(log_weights)
    if len(log_weights) < MIN_DRAWS or math.isnan(shape):
        shape = math.inf
    return logs, shape, missing


def _known(
    shape: float | None, count: int, share: float, gap: float, marginals: Marginals
) -> Weights | None:
    """Return what there is to judge weights by."""
    if shape is None or count < MIN_DRAWS:
        return None
    error = error_of_k(shape, tail_size(count)) if shape else 0.0
    return Weights(shape, error, share, gap, count, *largest_changes(marginals))


def _verdict(known: Weights | None, log_weights: np.ndarray) -> str:
    spread, count = float(log_weights.std()), len(log_weights)
    if count < MIN_DRAWS:
        return f"unknown: {count} draws are too few, take {MIN_DRAWS} at least"
    if known is None:
        return "unknown: the log density's rounding errors hide the weights"
    if spread < EQUAL:
        return f"good: the weights hardly vary (sd {spread:.2g} nats), whatever their tail"
    return known.verdict


def _remarks(num_dropped: int, num_draws: int, rounding: float) -> str:
    words = ""
    if num_dropped:
        words += f"; the log density is not finite at {num_dropped} of {num_draws} draws"
    if rounding > EQUAL:
        words += f"; log weights are rounded by about {rounding:.1g} nats: use float64"
    return words


def k_in_words(found: Diagnostics) -> str:
    """Return k-hat with its error, in words."""
    if found.pareto_k is None:
        return "undefined"
    error = f" ± {found.pareto_k_error:.2f}" if found.pareto_k_error else ""
    return f"{found.pareto_k:.2f}{error}"
