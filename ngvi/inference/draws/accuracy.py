"""Errors of draws: of the mean and of the standard deviation of each number.

Averages with importance weights have two errors. The tail of the weights, or of the weights times
squared deviations, may contain mass beyond the largest draw; a fitted generalised Pareto
distribution estimates how much (:mod:`~ngvi.inference.draws.pareto`). The other error is Monte
Carlo noise, which more draws reduce. K-hat alone does not tell whether averages can be trusted: the
tail of nearly equal weights may have any shape but matters little, whereas small weights may carry
a variance. Chains that agree have Monte Carlo noise and the tail of squared deviations: if a
variance depends on rare draws, the other draws understate its error.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from ngvi.guide.reparametrized import ReparametrizedGaussianGuide
from ngvi.inference.draws.chains import effective_draws, error_of_stddevs, r_hat
from ngvi.inference.draws.pareto import ERRORS_OF_K, smoothed, tail_size
from ngvi.inference.options import LEVELS
from ngvi.inference.posterior import to_numpy
from ngvi.inference.problem import Problem
from ngvi.inference.tables import two_digits

#: Z-score of a two-sided limit of 95 %.
TWO_SIDED = 1.96
#: Draws of which the tail of squares is as large as that of weights. Of more draws it is smaller:
#: those farthest out tell what is beyond.
MANY_DRAWS = 20_000
#: Most numbers of which each has a tail of its own, for the time's sake.
MAX_TAILS = 2000
#: Effective draws per draw above which nothing changes by more than 0.14 sd (chi-square).
ALIKE = 0.98
#: Latent vectors whose numbers are computed at once: one program does for any number of draws, and
#: for those that a result holds.
AT_ONCE = 4000
#: Draws that chains miss for each transition that has diverged.
MISSED_BY_DIVERGENCE = 5.0
#: Largest R-hat of few chains, whose noise over hundreds of latents is as large.
LARGEST_R_HAT = 1.03
#: Limit, in standard deviations or %, that says nothing.
SENSELESS = 1e4
#: Fewest effective draws that tell a limit above a tenth (Vehtari et al., 2021, for chains).
ENOUGH_DRAWS = 400


@dataclasses.dataclass(frozen=True, eq=False)
class Accuracy:
    """Errors of a posterior's draws, each with an upper 95 % limit.

    Draws are accurate if by these limits every mean is within 0.1 standard deviations, and every
    standard deviation within 10 %.
    """

    #: The numbers of all latent sites, such as ``"beta[2]"``: the rows of ``summary()``.
    names: tuple[str, ...] = ()
    #: Errors of the means in standard deviations, and of these as a part, shape ``(2, k)``.
    errors: np.ndarray = dataclasses.field(default_factory=lambda: np.empty((2, 0)))
    #: Upper limits of both.
    limits: np.ndarray = dataclasses.field(default_factory=lambda: np.empty((2, 0)))
    #: What the numbers cannot show, in words; nothing if there is no such thing.
    fault: str = ""

    @property
    def is_accurate(self) -> bool:
        """True if all limits are at most a tenth, and no other fault of the draws is known."""
        return not self.fault and self.worst_limit <= LEVELS.negligible

    @property
    def verdict(self) -> str:
        """``"accurate"`` or ``"doubtful"``."""
        return "accurate" if self.is_accurate else "doubtful"

    @property
    def worst_limit(self) -> float:
        """The largest limit of all; infinite if there is none."""
        return float(self.limits.max(initial=0.0)) if self.names else np.inf

    def worst(self, count: int = 3) -> list[str]:
        """Return the names of the numbers with the largest limits, the worst first."""
        order = np.lexsort([-part.max(0, initial=0.0) for part in (self.errors, self.limits)])
        return [self.names[int(i)] for i in order[:count]]

    @property
    def words(self) -> str:
        """The limits in words, and what else is known."""
        said = [self.fault] if self.fault else []
        if self.names and np.isinf(self.limits.max(1)).all():
            said.append(f"errors unknown; worst: {self.worst(1)[0]}")
        elif self.names:
            limits = self.limits.max(1) * [1, 100]
            means, sds = (
                f"within {two_digits(limit)} {unit}" if limit < SENSELESS else "without a limit"
                for limit, unit in zip(limits, ("sd", "%"), strict=True)
            )
            said.append(f"means {means}, sds {sds} (95 % limits); worst: {self.worst(1)[0]}")
        return "; ".join(said)

    @classmethod
    def of_weights(
        cls,
        values: dict[str, np.ndarray],
        log_weights: np.ndarray,
        missing: np.ndarray,
        num_drawn: int,
        is_corrected: bool,
        fault: str = "",
    ) -> Accuracy:
        """Judge draws by their importance weights.

        :param values: of each site at the weighed draws, with an axis of these.
        :param log_weights: smoothed and normalised, shape ``(n,)``.
        :param missing: the part of their mass that their own tail has missed.
        :param num_drawn: draws of the posterior, whose averages have noise of their own.
        :param is_corrected: whether the draws follow the weights, or are without them.
        """
        weights, columns = np.exp(log_weights), flat(values)
        is_constant = (columns == columns[0]).all(0)  # which has no errors
        if is_corrected:  # what weighs nothing may be infinite
            columns = np.where(weights[:, None] > 0, columns, 0.0)
        used = weights if is_corrected else np.full(len(weights), 1.0 / len(weights))
        differ = np.square(weights if is_corrected else weights - used)
        mean = weights @ columns
        squares = np.square(columns - mean)
        variance = weights @ squares
        fourth = 0.25 * np.square(squares - variance)
        moved = used @ columns
        narrower = np.sqrt(np.maximum(used @ squares - np.square(moved - mean), 0.0))
        with np.errstate(divide="ignore", invalid="ignore"):
            sd = np.sqrt(variance)
            off = np.abs(np.stack([moved - mean, narrower - sd])) / sd
            noise = np.stack([differ @ squares / variance, differ @ fourth / variance**2])
            own = np.stack([np.ones(len(sd)), weights @ fourth / variance**2]) / num_drawn
            heavy = np.flatnonzero(own[1] > (0.5 * LEVELS.negligible) ** 2)
            is_met = _are_met(weights, squares[:, heavy], num_drawn)
            met = weights @ np.where(is_met, fourth[:, heavy], 0.0)
            own[1, heavy] = met / variance[heavy] ** 2 / num_drawn
            lost = weights @ np.where(is_met, 0.0, squares[:, heavy])
            off[1, heavy] += 0.5 * lost / variance[heavy]
        noise = np.sqrt(noise + own)
        if np.square(weights).sum() * len(weights) * ALIKE <= 1.0:
            missing = np.zeros(len(missing))
        tails = _tails(log_weights, squares, missing)
        errors = np.maximum(np.maximum(off, tails[0]), noise)
        both = np.stack([errors, off + tails[1] + TWO_SIDED * noise])
        if np.square(weights).sum() * ENOUGH_DRAWS > 1.0:
            both[1] = np.where(both[1] <= LEVELS.negligible, both[1], np.inf)
        both = np.where(is_constant, 0.0, np.nan_to_num(both, nan=np.inf, posinf=np.inf))
        return cls(tuple(labels_of(values)), both[0], both[1], fault)

    @classmethod
    def of_chains(
        cls, values: dict[str, np.ndarray], diverging: np.ndarray, fault: str = ""
    ) -> Accuracy:
        """Judge chains of draws by each other, and by the transitions that have diverged.

        These point at a region that chains hardly enter: as if several times as many draws as have
        diverged were missing there.

        :param values: of each site, shape ``(chains, draws, ...)``.
        :param diverging: the transitions that have diverged, shape ``(chains, draws)``.
        """
        columns = flat(values, 2)
        errors = np.stack([effective_draws(columns) ** -0.5, error_of_stddevs(columns)])
        limits, hats = joint_score(errors) * errors, r_hat(columns)
        # Means of ``2 m`` halves that are worth ``n`` draws have R-hat ``sqrt(1 + 2 m / n)`` (Vats
        # and Knudson, 2021).
        largest = max(LARGEST_R_HAT, math.sqrt(1.0 + 2.0 * len(columns) / ENOUGH_DRAWS))
        rows = (columns - columns.mean((0, 1))).reshape(diverging.size, -1)
        variances = np.square(rows).mean(0)
        tails = _tails(np.zeros(len(rows)), np.square(rows), np.zeros(len(ERRORS_OF_K)))
        limits += np.where(variances == 0, 0.0, tails[1])
        limits = np.where(hats > largest, np.inf, limits)
        if diverging.any():
            with np.errstate(divide="ignore", invalid="ignore"):
                apart = rows[diverging.ravel()] / np.sqrt(variances)
            squares = 0.5 * (np.square(apart).mean(0) - 1.0)
            missing = MISSED_BY_DIVERGENCE * diverging.mean()
            limits += missing * np.nan_to_num(abs(np.stack([apart.mean(0), squares])))
        if not fault and not hats.max(initial=1.0) <= largest:
            fault = f"the chains do not agree (R-hat {hats.max():.2f})"
        return cls(tuple(labels_of(values, 2)), errors, limits, fault)


def _are_met(weights: np.ndarray, squares: np.ndarray, count: int) -> np.ndarray:
    """Return which weighed draws are near enough to be met by one set of draws in a thousand.

    Draws farther out are no noise of a set, which lacks their part of the variance.

    :param squares: squared deviations, shape ``(n, k)``.
    :param count: draws of a set.
    """
    order = np.argsort(-squares, 0)
    mass, met = np.cumsum(weights[order], 0), np.empty(squares.shape, bool)
    np.put_along_axis(met, order, mass * count > LEVELS.tiny, 0)
    return met


def _tails(log_weights: np.ndarray, squares: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """Return what tails may hold of means, in standard deviations, and of these, as a part.

    Mass ``m`` with a second moment ``s`` shifts a mean by ``sqrt(m s)`` at most (Cauchy-Schwarz).

    :param squares: squared deviations, shape ``(n, k)``.
    :param missing: the part of the mass beyond the weights, as estimated and with caution.
    :return: by the best estimate, and with a limit's caution, shape ``(2, 2, k)``; draws of the
        posterior itself, of which the weights miss nothing, need none.
    """
    beyond = np.repeat(missing[:, None], squares.shape[1], 1)
    if squares.shape[1] <= MAX_TAILS:
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = log_weights[:, None] + np.log(squares)
            most = math.ceil(tail_size(len(logs)) * MANY_DRAWS / len(logs))
            beyond = np.stack([smoothed(one, most).missing for one in logs.T], 1)
    with np.errstate(invalid="ignore"):
        shifts = np.nan_to_num(np.sqrt(missing[:, None] * beyond), nan=np.inf, posinf=np.inf)
    shifts[missing == 0] = 0.0
    narrow = np.where(np.isinf(beyond), np.inf, 1.0 - 1.0 / np.sqrt(1.0 + beyond))
    found = np.stack([shifts, narrow], 1)
    return found[[0, int(missing.any())]]


def joint_score(errors: np.ndarray) -> float:
    """Return the z-score at which the largest limit holds for all numbers together, to 95 %.

    That is 1.96 if one of them is much less certain than all others, and Bonferroni's if all are
    alike.

    :param errors: standard errors.
    """
    known = errors[np.isfinite(errors) & (errors > 0)]
    ratios = known.max(initial=0.0) / known
    if not known.size:
        return 0.0
    return scipy.optimize.brentq(
        lambda z: 2.0 * scipy.special.ndtr(-z * ratios).sum() - 0.05, 0.0, 40.0
    )


def flat(values: dict[str, np.ndarray], num_axes: int = 1) -> np.ndarray:
    """Return the numbers of all sites in a row, behind axes of draws."""
    parts = [value.reshape(*value.shape[:num_axes], -1) for value in values.values()]
    return np.concatenate(parts, num_axes, dtype=float)


def labels_of(
    values: dict[str, np.ndarray],
    num_axes: int = 1,
    labels: Mapping[str, Sequence[Sequence | None]] | None = None,
) -> list[str]:
    """Return a name for each number of each site, such as ``"beta[2]"``, in order.

    :param labels: of the elements, by site and axis; None where they are counted.
    """
    found = []
    for name, value in values.items():
        shape = value.shape[num_axes:]
        own = (labels or {}).get(name, [None] * len(shape))
        axes = [range(n) if some is None else some for n, some in zip(shape, own, strict=True)]
        for at in itertools.product(*axes):
            found.append(name + (f"[{','.join(map(str, at))}]" if at else ""))
    return found


def is_by_modes(result: Any) -> bool:
    """Return whether the guide's locals are standardised at their conditional modes."""
    return isinstance(result._gaussian(), ReparametrizedGaussianGuide)


def in_models(result: Any, latents: np.ndarray) -> np.ndarray:
    """Return the model's own latents, unconstrained, at the guide's vectors ``(N, d)``."""
    return result._ppl.in_models(result, latents)[0] if is_by_modes(result) else latents


def own_problem(result: Any, problem: Problem) -> Problem | None:
    """Return the problem of the model's own latents, if the guide's have conditional modes.

    :param problem: of the guide's, with which it shares the cost.
    :return: None also where data or parameters are not the model's.
    """
    is_other = problem.space.has_model_parameters or result.change is not None
    if is_other or not is_by_modes(result):
        return None
    found = result._ppl.problem_in_models(result)
    found.objective.cost = problem.objective.cost
    return found


def numbers(result: Any, latents: np.ndarray) -> dict[str, np.ndarray]:
    """Return the latent sites, constrained, at vectors ``(n, d)`` of the model's own latents."""
    names = [site.name for site in result._gaussian().sites]
    size, parts = min(AT_ONCE, len(latents)), []
    for start in range(0, len(latents), size):
        some = latents[start : start + size]
        whole = np.concatenate([some, np.repeat(some[-1:], size - len(some), 0)])
        found = result._ppl.at(result, whole)
        parts.append({name: to_numpy(found[name])[: len(some)] for name in names})
    return {name: np.concatenate([part[name] for part in parts]) for name in names}
