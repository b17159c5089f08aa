"""The draws of a result: one set, by the cheapest method that is shown to be accurate.

Draws of the Gaussian have importance weights ``w = p(y, theta) / q(theta)``, Pareto smoothed
(Vehtari, Simpson, Gelman, Yao and Gabry, 2024, JMLR 25). Where these change no mean and no
standard deviation, the draws are the Gaussian's as it is. Otherwise the bound was blind to where
the Gaussian is and the posterior is not: between the scale of some effects and zero there is a tail
that a Gaussian in the scale's logarithm does not have. So a few latents, those outside of plates
first, are drawn from a Student's t, and all others from the Gaussian given them
(:mod:`~ngvi.inference.draws.proposals`). The t has the moments by weights of a few draws (Paananen
et al., 2021, *Implicitly adaptive importance sampling*, Statistics and Computing 31). Draws are
resampled systematically (Kitagawa, 1996). Where that is not accurate either, NUTS goes on from the
fit.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from typing import Any

import numpy as np

from ngvi._warn import warn
from ngvi.inference.arguments import AUTO, CORRECTED, GAUSSIAN, NUTS
from ngvi.inference.draws import conditions
from ngvi.inference.draws.accuracy import (
    ENOUGH_DRAWS,
    Accuracy,
    in_models,
    is_by_modes,
    numbers,
)
from ngvi.inference.draws.going_on import MOST_GRADIENTS, seconds_of_chains, way_on
from ngvi.inference.draws.nuts import STATISTICS, WAY_OUT, NutsResult, run_until
from ngvi.inference.draws.others import (
    DRAWS_ELSEWHERE,
    TOO_LITTLE,
    Elsewhere,
    elsewhere,
    states_of,
    with_others,
)
from ngvi.inference.draws.pareto import EQUAL, USABLE
from ngvi.inference.draws.proposals import (
    NUM_DRAWS,
    NUMBERS_AT_ONCE,
    ROUNDS,
    Proposal,
    Weighed,
    proposal_for,
)
from ngvi.inference.options import LEVELS
from ngvi.inference.prices import FEW_DRAWS, FREE, num_affordable, say_price
from ngvi.inference.problem import Problem
from ngvi.inference.saved.schema import printable
from ngvi.inference.tells import TellsWhatItHas
from ngvi.inference.verdict.outcome import APPROXIMATE

#: Draws of those that are corrected, at first and where these are not accurate.
FIRST_DRAWS, MOST_DRAWS = 5000, 20_000
#: Most latents of which draws are corrected, or made by NUTS, unasked, for the memory's sake.
MAX_LATENTS = 2000
#: Part of the Gaussian's draws that are worth something, below which correction is not tried.
HOPELESS = 0.005
#: Seconds that draws may take, those by weights as long as the fit, and those of chains so many
#: times as long.
LEAST_SECONDS, TIMES_THE_FIT = 10.0, 10.0


@dataclasses.dataclass(frozen=True, eq=False)
class Diagnostics(TellsWhatItHas):
    """Draws of a posterior, and whether to trust them. Undefined attributes are None."""

    #: The method that has made them: ``"gaussian"``, ``"corrected"`` or ``"nuts"``.
    method: str
    #: Errors of their means and standard deviations.
    accuracy: Accuracy
    #: The method in words.
    how: str
    #: Vectors of the model's own latents, unconstrained, shape ``(n, d)``; None of the Gaussian's,
    #: which are drawn anew.
    latents: np.ndarray | None = None
    #: ``log w`` in nats of draws of the Gaussian, shape ``(num_draws,)``.
    log_weights: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))
    #: Chains of NUTS, with their divergences, R-hat and effective draws; also of chains in vain.
    chains: Any = None

    @property
    def verdict(self) -> str:
        """``"accurate"`` or ``"doubtful"``: of :attr:`accuracy`."""
        return self.accuracy.verdict

    def __repr__(self) -> str:
        return f"Diagnostics({self.verdict}: {self.how}; {self.accuracy.words})"

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a file holds of them."""
        found = {"latents": self.latents, "log_weights": self.log_weights}
        found |= {"errors": self.accuracy.errors, "limits": self.accuracy.limits}
        if self.chains is not None:
            found |= {"latents": self.chains.latents, "optima": self.chains.optima}
            found |= self.chains.sample_stats
        return {name: array for name, array in found.items() if array is not None}

    def in_words(self) -> dict[str, Any]:
        """Return what a file holds of them, for JSON."""
        gradients = self.chains.num_gradients if self.chains is not None else None
        own = {"method": self.method, "how": self.how, "chain_gradients": gradients}
        fault = printable(self.accuracy.fault)
        return {**own, "names": list(self.accuracy.names), "fault": fault}

    @classmethod
    def of(cls, words: dict[str, Any], arrays: dict[str, np.ndarray], result: Any) -> Diagnostics:
        """Return the draws of which a file holds these.

        :param result: of the draws.
        :raises ValueError: if they are none of its latents.
        """
        limits, log_weights = (arrays["errors"], arrays["limits"]), arrays["log_weights"]
        chains, latents = None, arrays.get("latents", np.zeros((1, result.dim)))
        shapes = [one.shape for one in limits] == [(2, len(words["names"]))] * 2
        is_right = shapes and log_weights.ndim == 1 and np.isfinite(latents).all()
        accuracy = Accuracy(tuple(words["names"]), *limits, words["fault"])
        if (gradients := words["chain_gradients"]) is not None:
            stats = {name: arrays[name] for name in STATISTICS}
            kinds = [one.dtype.kind in STATISTICS[name] for name, one in stats.items()]
            is_right &= all(kinds) and {one.shape for one in stats.values()} == {latents.shape[:2]}
            is_right &= arrays["optima"].shape == latents.shape[:1] and latents.ndim == 3
            own = accuracy, gradients, stats, arrays["optima"], result
            chains, latents = NutsResult(latents, *own), in_one(latents)
        if not is_right or latents.shape != (len(latents), result.dim) or not len(latents):
            raise ValueError("its draws are none of these latents")
        found = latents if "latents" in arrays else None
        return cls(words["method"], accuracy, words["how"], found, log_weights, chains)

    @property
    def num_draws(self) -> int:
        """Number of draws of the Gaussian that were weighed."""
        return len(self.log_weights)

    @functools.cached_property
    def _weighed(self) -> Weighed | None:
        is_known = np.isfinite(self.log_weights).any()
        return Weighed(np.empty((self.num_draws, 0)), self.log_weights) if is_known else None

    @property
    def pareto_k(self) -> float | None:
        """K-hat, the shape of the weights' tail, for information only."""
        return None if self._weighed is None else self._weighed.pareto_k

    @property
    def importance_weighted_bound(self) -> float | None:
        """``log mean(w)`` in nats: a lower bound on the log evidence in expectation.

        It estimates the log evidence if k-hat is below 0.7.
        """
        return None if self._weighed is None else self._weighed.evidence

    @property
    def importance_weighted_bound_error(self) -> float | None:
        """The standard error of that, in nats; None if by k-hat weights have no variance."""
        if self._weighed is None or not self._weighed.pareto_k < USABLE:
            return None
        raw = np.exp(self.log_weights - self.log_weights.max())
        variance = len(raw) * np.sum(raw**2) / np.sum(raw) ** 2 - 1.0
        return math.sqrt(max(variance, 0.0) / len(raw))


def undefined(why: str) -> Diagnostics:
    """Return the account of a Gaussian without importance weights, and why it has none."""
    return Diagnostics(GAUSSIAN, Accuracy(fault=why), "the Gaussian, of unknown accuracy")


def made(result: Any, asked: str, seconds: float = math.inf, has_ended: bool = True) -> Diagnostics:
    """Make the draws of a result, and add what they cost to its own.

    :param asked: who may make them.
    :param seconds: that are left.
    :param has_ended: whether the fit has: else no chains go on from there.
    """
    start = time.perf_counter()
    with result._at_end() as (problem, state):
        rng = np.random.default_rng(result._ppl.seed_of_diagnostics(result))
        makes = _Maker(result, problem, state, rng, seconds)
        found = makes.by_weights(asked)
        if (known := makes.weighed) is not None:
            own = known.own, np.exp(known.log_weights)
            accuracy = with_others(found.accuracy, result, *own, makes.others)
            found = dataclasses.replace(found, accuracy=accuracy)
        result.cost = dataclasses.replace(result.cost)
        result.cost.share(problem.objective.cost)
    seconds = start + seconds - time.perf_counter() if has_ended else 0.0
    if asked == AUTO:  # also a limit for chains, whose gradients may take longer than the fit's
        seconds = min(seconds, max(LEAST_SECONDS, TIMES_THE_FIT * result.seconds))
    is_told = found.accuracy.is_accurate or TOO_LITTLE in found.accuracy.fault
    is_enough = asked in (GAUSSIAN, CORRECTED) or (asked == AUTO and is_told)
    if not is_enough and (asked == NUTS or _may_go_on(result, makes, seconds)):
        found = _by_nuts(result, found, asked, time.perf_counter() + seconds, makes.weighed)
    result.seconds += time.perf_counter() - start
    if asked != GAUSSIAN and result.converged and (way := way_on(result, found)):
        warn(f"The draws are doubtful: {found.accuracy.words}. {way}")
    return found


def best_of(chains: Diagnostics, others: Diagnostics) -> Diagnostics:
    """Return the better ones of draws of chains, and of others that are not accurate.

    The weights of a Gaussian that is far off hide how far: chains that agree are better, and any
    chains are where they have no limit.
    """
    is_unknown = math.isinf(others.accuracy.worst_limit)
    if others.method == GAUSSIAN and (is_unknown or not chains.accuracy.fault):
        return chains
    return min((chains, others), key=_order)


def _order(draws: Diagnostics) -> tuple[bool, bool, float]:
    """Rank draws: accurate ones first, then those without a fault, then by the average limit."""
    accuracy = draws.accuracy
    average = np.minimum(accuracy.limits, 1.0).mean() if accuracy.names else 1.0
    return not accuracy.is_accurate, bool(accuracy.fault), average


class _Maker:
    """Maker of the draws of a result by weights."""

    def __init__(
        self, result: Any, problem: Problem, state: Any, rng: np.random.Generator, left: float
    ) -> None:
        self.result, self.problem, self.state, self.rng = result, problem, state, rng
        self.left = left
        self.weighed: Weighed | None = None  # the draws that are nearest to the posterior
        self.others: list[Elsewhere] = []
        self.why_no_weights = conditions.why_undefined(result, problem)
        self.why_no_density = conditions.why_without_density(result, problem)

    def density(self, latents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the log density and the model's own latents, by one search for modes."""
        if not is_by_modes(self.result) or self.result.change is not None:
            values = self.problem.objective.log_density(self.state, latents)
            return values, in_models(self.result, latents)
        self.problem.objective.cost.values += len(latents)
        own, values = self.result._ppl.in_models(self.result, latents)
        return values, own

    def by_weights(self, asked: str) -> Diagnostics:
        """Return the Gaussian's draws, or those that weights correct, if these are better."""
        if asked in (CORRECTED, NUTS):
            way_out = WAY_OUT if asked == NUTS else "Leave it out."
            conditions.check_density(self.result, self.problem, f"draws={asked!r}", way_out)
        if self.why_no_weights:
            return undefined(self.why_no_weights)
        most = max(FEW_DRAWS, NUMBERS_AT_ONCE // self.problem.space.noise_dim)
        count = num_affordable(self.result, min(NUM_DRAWS, most), 0.5 * self.left)
        say_price(self.result, "draws", count)
        try:
            proposal = Proposal(self.problem, self.state, (), self.density)
            self.weighed = pilot = proposal.weighed(count, self.rng)
            states = states_of(self.result, self.problem, self.state)
            wanted = DRAWS_ELSEWHERE * (len(states) - 1)
            if some := num_affordable(self.result, wanted, 0.5 * self.left):
                each = max(1, some // (len(states) - 1))
                self.others = elsewhere(self.problem, states, pilot.evidence, each)
        except ValueError as error:
            return undefined(str(error))
        how = f"the Gaussian, judged by weights of {count:,} draws"
        best = Diagnostics(GAUSSIAN, self._accuracy(pilot, False), how, None, pilot.raw)
        is_enough = asked in (GAUSSIAN, NUTS) or (asked == AUTO and best.accuracy.is_accurate)
        if is_enough or self.why_no_density:
            return best
        is_large, is_hopeless = self.result.dim > MAX_LATENTS, pilot.share < HOPELESS
        needed = (ROUNDS * NUM_DRAWS + FIRST_DRAWS) * self.result.cost.prices.draw
        most = min(max(self.result.seconds, LEAST_SECONDS), 0.5 * self.left)
        is_long = needed > min(most, FREE + seconds_of_chains(self.result))
        is_vain = is_large or is_hopeless or is_long or bool(best.accuracy.fault)
        if asked == AUTO and is_vain:
            return best
        found = self._corrected(pilot)
        return found if asked == CORRECTED else min((best, found), key=_order)

    def _corrected(self, pilot: Weighed) -> Diagnostics:
        proposal = proposal_for(self.problem, self.state, pilot, self.rng, self.density)
        found = proposal.weighed(FIRST_DRAWS, self.rng)
        accuracy = self._accuracy(found, True)
        is_late = MOST_DRAWS * self.result.cost.prices.draw > self.left
        # Four times the draws halve a limit, which is twice an error.
        is_far = accuracy.errors.max(initial=0.0) > LEVELS.negligible
        is_vain = is_late or is_far or MOST_DRAWS * found.share <= ENOUGH_DRAWS
        if not accuracy.is_accurate and not is_vain:
            found = found.joined(proposal.weighed(MOST_DRAWS - FIRST_DRAWS, self.rng))
            accuracy = self._accuracy(found, True)
        self.weighed = found
        worth = f"{len(found.raw):,} draws worth {found.effective:,.0f}"
        how = f"the Gaussian, corrected by weights: {worth}"
        latents = found.own[found.picked(NUM_DRAWS, self.rng)]
        return Diagnostics(CORRECTED, accuracy, how, latents, pilot.raw)

    def _accuracy(self, found: Weighed, is_corrected: bool) -> Accuracy:
        parts = self.result._gaussians()
        if len(parts) != 1:
            return Accuracy(fault=f"the guide has {len(parts)} Gaussians in it, not one")
        values = numbers(self.result, found.own)
        of_weights = found.log_weights, found.missing, NUM_DRAWS, is_corrected
        changed = self.result.verdict == APPROXIMATE
        fault = self.result.change.in_words() if changed else ""
        accuracy = Accuracy.of_weights(values, *of_weights, fault)
        rounding = self.problem.rounding(float(np.abs(found.raw[np.isfinite(found.raw)]).max()))
        if rounding > EQUAL and not accuracy.is_accurate:
            words = f"log weights are rounded by about {rounding:.1g} nats: use float64"
            return dataclasses.replace(accuracy, fault=words)
        return accuracy


def _may_go_on(result: Any, makes: _Maker, seconds: float) -> bool:
    """Return whether NUTS may go on from a result unasked."""
    if makes.why_no_density or result.change is not None or result.dim > MAX_LATENTS:
        return False
    needed = seconds_of_chains(result)
    return seconds > 0 and not (seconds < needed < math.inf)


def _by_nuts(
    result: Any,
    found: Diagnostics,
    asked: str,
    deadline: float,
    known: Weighed | None,
) -> Diagnostics:
    """Return draws of chains that go on from a result, or the earlier draws if these are better.

    :raises ValueError: if chains are asked for and cannot begin; else the fault is said.
    """
    try:
        seed = result._ppl.seed_of_diagnostics(result)
        chains = run_until(result, seed, MOST_GRADIENTS, deadline, known=known)
    except ValueError as error:
        if asked == NUTS:
            raise
        fault = found.accuracy.fault or f"no chains can begin: {error}"
        return dataclasses.replace(found, accuracy=dataclasses.replace(found.accuracy, fault=fault))
    result.cost.gradients += chains.num_gradients
    count, each = chains.latents.shape[:2]
    how = f"NUTS from the fit: {count} chains of {each:,} draws, {chains.num_gradients:,} gradients"
    accuracy, weights = chains.accuracy, found.log_weights
    new = Diagnostics(NUTS, accuracy, how, in_one(chains.latents), weights, chains)
    return new if asked == NUTS else best_of(new, dataclasses.replace(found, chains=chains))


def in_one(latents: np.ndarray) -> np.ndarray:
    """Return the draws of all chains in an order without a meaning."""
    return np.random.default_rng(0).permutation(latents.reshape(-1, latents.shape[-1]))


def chosen(held: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return which of the draws that are held to take, each as often as the others but for one."""
    rounds = [rng.permutation(held) for _ in range(-(-count // held))]
    return np.concatenate(rounds)[:count]
