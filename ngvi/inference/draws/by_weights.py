"""The draws of a result by importance weights, as far as these are shown to be accurate."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ngvi.inference.arguments import AUTO, CORRECTED, GAUSSIAN, NUTS
from ngvi.inference.draws import conditions
from ngvi.inference.draws.accuracy import (
    ENOUGH_DRAWS,
    Accuracy,
    flat,
    in_models,
    is_by_modes,
    numbers,
)
from ngvi.inference.draws.diagnostics import Diagnostics, order, undefined
from ngvi.inference.draws.going_on import seconds_of_chains
from ngvi.inference.draws.nuts import WAY_OUT
from ngvi.inference.draws.others import DRAWS_ELSEWHERE, Elsewhere, elsewhere, states_of
from ngvi.inference.draws.pareto import EQUAL
from ngvi.inference.draws.proposals import (
    MAX_FEW,
    MAX_HEAVY,
    NUM_DRAWS,
    NUM_OF_PRIOR,
    NUMBERS_AT_ONCE,
    ROUNDS,
    JointTails,
    Proposal,
    Weighed,
    proposal_for,
)
from ngvi.inference.options import LEVELS
from ngvi.inference.prices import FEW_DRAWS, FREE, num_affordable, say_price
from ngvi.inference.problem import Problem
from ngvi.inference.verdict.outcome import APPROXIMATE

#: Draws of those that are corrected, at first and where these are not accurate, and of a mixture.
FIRST_DRAWS, MOST_DRAWS, MOST_OF_MIXTURE = 5000, 20_000, 200_000
#: Numbers of the draws that a result holds, 8 MiB.
NUMBERS_HELD = 2**20
#: Most latents of which draws are corrected, or made by NUTS, unasked, for the memory's sake.
MAX_LATENTS = 2000
#: Mixtures before the last, each at draws of the one before.
SPREADS = 4
#: Range of log weights, in nats, of a posterior that is Gaussian. Where few latents have another
#: one, draws look where two return to their prior.
EXACT = 1e-3
#: Part of the Gaussian's draws that are worth something, below which correction is not tried.
HOPELESS = 0.005
#: Seconds that draws may take, those by weights as long as the fit.
LEAST_SECONDS = 10.0


class ByWeights:
    """Maker of the draws of a result by weights."""

    def __init__(
        self, result: Any, problem: Problem, state: Any, rng: np.random.Generator, left: float
    ) -> None:
        self.result, self.problem, self.state, self.rng = result, problem, state, rng
        self.left = left
        self.weighed: Weighed | None = None  # the draws that are nearest to the posterior
        self.others: list[Elsewhere] = []
        self.has_mixture = False  # whose draws meet tails that weights and chains may miss
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
        is_checked = self.result.dim <= MAX_HEAVY and not np.ptp(pilot.raw) < EXACT
        is_enough = asked == AUTO and best.accuracy.is_accurate and not is_checked
        if is_enough or asked in (GAUSSIAN, NUTS) or self.why_no_density:
            return best
        is_large, is_hopeless = self.result.dim > MAX_LATENTS, pilot.share < HOPELESS
        needed = ROUNDS * NUM_DRAWS + FIRST_DRAWS
        seconds = needed * self.result.cost.prices.draw
        is_long = seconds > min(self._most_seconds(), FREE + seconds_of_chains(self.result))
        is_vain = is_large or is_hopeless or is_long or bool(best.accuracy.fault)
        if seconds > self.left or (asked == AUTO and is_vain):
            return best
        say_price(self.result, "correction by weights", needed)
        found = self._corrected(pilot)
        is_better = asked == CORRECTED or found.accuracy.is_accurate or self.has_mixture
        return found if is_better else min((found, best), key=order)

    def _corrected(self, pilot: Weighed) -> Diagnostics:
        is_cheap = not NUM_OF_PRIOR * self.result.cost.prices.call > FREE  # nor if it is not known
        proposal = proposal_for(
            self.problem, self.state, pilot, self.rng, self.density, looks_far=is_cheap
        )
        is_whole = len(proposal.indices) == self.result.dim
        found, of_what = proposal.weighed(FIRST_DRAWS, self.rng), ""
        accuracy = self._accuracy(found, True)
        if not is_whole:
            found, accuracy = self._grown(found, accuracy, proposal)
        is_blind = not accuracy.is_accurate or bool(self.others)
        if is_blind and (whole := self._whole(proposal)):
            say_price(self.result, "correction by a mixture", SPREADS * FIRST_DRAWS + MOST_DRAWS)
            found, of_what, proposal = self._of_mixture(whole, found), " of a mixture", whole
            accuracy = self._accuracy(found, True)
        found, accuracy = self._grown(found, accuracy, proposal, bool(of_what))
        is_few = is_whole and self.result.dim <= MAX_FEW
        self.has_mixture = bool(of_what) and is_few and found.effective >= ENOUGH_DRAWS
        self.weighed = found
        worth = f"{len(found.raw):,} draws{of_what} worth {found.effective:,.0f}"
        how = f"the Gaussian, corrected by weights: {worth}"
        latents = found.own[found.picked(self._num_held(found), self.rng)]
        return Diagnostics(CORRECTED, accuracy, how, latents, pilot.raw)

    def _grown(
        self, found: Weighed, accuracy: Accuracy, proposal: Proposal, is_mixture: bool = False
    ) -> tuple[Weighed, Accuracy]:
        """Return as many more draws as would be accurate, if there are such."""
        while more := self._num_more(found, accuracy, is_mixture):
            say_price(self.result, "correction by more draws", more)
            found = found.joined(proposal.weighed(more, self.rng))
            accuracy = self._accuracy(found, True)
        return found, accuracy

    def _whole(self, proposal: Proposal) -> JointTails | None:
        """Return the proposal of all latents, if these are few and a mixture has a low price."""
        needed = (SPREADS * FIRST_DRAWS + MOST_DRAWS) * self.result.cost.prices.draw
        is_cheap = self.result.dim <= MAX_HEAVY and not needed > self._most_seconds()
        if not (isinstance(proposal, JointTails) and is_cheap):
            return None
        if len(proposal.indices) == self.result.dim:
            return proposal
        try:
            return JointTails(self.problem, self.state, range(self.result.dim), self.density)
        except np.linalg.LinAlgError:  # the covariance is singular at this precision
            return None

    def _of_mixture(self, proposal: JointTails, found: Weighed) -> Weighed:
        """Return draws of a mixture with components at draws, most of these in tails.

        Draws that hold most of a variance count most (Oh and Berger, 1993). There are many draws
        at first, because few that have met no tail look accurate. Other optima have draws among the
        first, and are then a part of the mixture.
        """
        for one in (other for other in self.others if other.shares.any()):
            with np.errstate(divide="ignore"):
                raw = found.evidence + np.log(len(found.raw) * one.shares)
            own = in_models(self.result, one.latents)
            found = found.joined(Weighed(one.latents, raw, own))
        for count in [FIRST_DRAWS] * SPREADS + [MOST_DRAWS]:
            weights, columns = np.exp(found.log_weights), flat(numbers(self.result, found.own))
            columns = np.where(weights[:, None] > 0, columns, 0.0)
            squares = np.square(columns - weights @ columns)
            with np.errstate(invalid="ignore"):  # of a constant
                parts = np.nan_to_num(squares / (weights @ squares))
            proposal.spread(found, 1.0 + parts.max(1), self.rng)
            found = proposal.weighed(count, self.rng)
        self.others = []
        return found

    def _num_more(self, found: Weighed, accuracy: Accuracy, is_mixture: bool) -> int:
        """Return how many more of the same draws to weigh.

        Noise falls with the root of their number, and a limit is twice an error. Draws of a mixture
        may also see the end of a tail that has no limit yet.
        """
        if accuracy.is_accurate or accuracy.fault:
            return 0
        limit = 2.0 * accuracy.errors.max(initial=0.0)
        times = max(2.0, (limit / LEVELS.negligible) ** 2, ENOUGH_DRAWS / found.effective)
        most = MOST_OF_MIXTURE if is_mixture else MOST_DRAWS
        price = self.result.cost.prices.draw
        if most * price > (seconds := self._most_seconds()):  # not if the price is not known
            most = int(seconds / price)
        wanted = times * len(found.raw)
        is_vain = wanted > most and not (is_mixture and most * found.share > ENOUGH_DRAWS)
        count = min(wanted, most) if is_mixture else most
        return 0 if is_vain else max(0, int(count) - len(found.raw))

    def _most_seconds(self) -> float:
        """Return the seconds that draws by weights may take."""
        return min(max(self.result.seconds, LEAST_SECONDS), 0.5 * self.left)

    def _num_held(self, found: Weighed) -> int:
        """Return how many of the draws a result holds."""
        return min(len(found.raw), max(NUM_DRAWS, NUMBERS_HELD // self.result.dim))

    def _accuracy(self, found: Weighed, is_corrected: bool) -> Accuracy:
        parts = self.result._gaussians()
        if len(parts) != 1:
            return Accuracy(fault=f"the guide has {len(parts)} Gaussians in it, not one")
        values = numbers(self.result, found.own)
        held = self._num_held(found) if is_corrected else NUM_DRAWS
        of_weights = found.log_weights, found.missing, held, is_corrected
        changed = self.result.verdict == APPROXIMATE
        fault = self.result.change.in_words() if changed else ""
        accuracy = Accuracy.of_weights(values, *of_weights, fault)
        rounding = self.problem.rounding(abs(float(found.raw.max())))
        if rounding > EQUAL and not accuracy.is_accurate:
            is_double = self.problem.space.eps <= np.finfo(float).eps
            way = "write the model with smaller numbers" if is_double else "use float64"
            words = f"log weights are rounded by about {rounding:.1g} nats: {way}"
            return dataclasses.replace(accuracy, fault=words)
        return accuracy
