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

#: Draws of those that are corrected, at first and where these are not accurate.
FIRST_DRAWS, MOST_DRAWS = 5000, 20_000
#: Most latents of which draws are corrected, or made by NUTS, unasked, for the memory's sake.
MAX_LATENTS = 2000
#: Mixtures before the last, each at draws of the one before.
SPREADS = 4
#: Largest error of draws of a mixture that chains would not better: chains miss tails, too.
NEAR = 0.5
#: Standard deviation of log weights, in nats, of a posterior that is Gaussian. Where few latents
#: have another one, draws look where two return to their prior.
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
        self.are_as_chains = False  # draws that no chains would better
        self.errors: np.ndarray | float = 0.0  # of a mixture, which meets tails that chains miss
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
        is_checked = self.result.dim <= MAX_FEW and not pilot.raw.std() < EXACT
        is_enough = asked == AUTO and best.accuracy.is_accurate and not is_checked
        if is_enough or asked in (GAUSSIAN, NUTS) or self.why_no_density:
            return best
        is_large, is_hopeless = self.result.dim > MAX_LATENTS, pilot.share < HOPELESS
        needed = (ROUNDS * NUM_DRAWS + FIRST_DRAWS) * self.result.cost.prices.draw
        most = min(max(self.result.seconds, LEAST_SECONDS), 0.5 * self.left)
        is_long = needed > min(most, FREE + seconds_of_chains(self.result))
        is_vain = is_large or is_hopeless or is_long or bool(best.accuracy.fault)
        if asked == AUTO and is_vain:
            return best
        found = self._corrected(pilot)
        is_better = asked == CORRECTED or found.accuracy.is_accurate or self.are_as_chains
        return found if is_better else min((found, best), key=order)

    def _corrected(self, pilot: Weighed) -> Diagnostics:
        is_cheap = not NUM_OF_PRIOR * self.result.cost.prices.call > FREE  # nor if it is not known
        proposal = proposal_for(
            self.problem, self.state, pilot, self.rng, self.density, looks_far=is_cheap
        )
        found, held, of_what = proposal.weighed(FIRST_DRAWS, self.rng), NUM_DRAWS, ""
        accuracy = self._accuracy(found, True)
        is_blind = not accuracy.is_accurate or bool(self.others)
        if is_blind and isinstance(proposal, JointTails) and self._may_spread(proposal):
            found, held, of_what = self._of_mixture(proposal, found), MOST_DRAWS, " of a mixture"
            accuracy = self._accuracy(found, True, held)
            if found.effective >= ENOUGH_DRAWS:
                self.errors = accuracy.errors
                self.are_as_chains = self.errors.max(initial=0.0) <= NEAR
        elif not accuracy.is_accurate and not self._is_vain(found, accuracy):
            found = found.joined(proposal.weighed(MOST_DRAWS - FIRST_DRAWS, self.rng))
            accuracy = self._accuracy(found, True)
        self.weighed = found
        worth = f"{len(found.raw):,} draws{of_what} worth {found.effective:,.0f}"
        how = f"the Gaussian, corrected by weights: {worth}"
        latents = found.own[found.picked(held, self.rng)]
        return Diagnostics(CORRECTED, accuracy, how, latents, pilot.raw)

    def _may_spread(self, proposal: Proposal) -> bool:
        """Return whether draws may become those of a mixture: of few latents, at a low price."""
        needed = (SPREADS * FIRST_DRAWS + MOST_DRAWS) * self.result.cost.prices.draw
        is_long = needed > min(max(self.result.seconds, LEAST_SECONDS), 0.5 * self.left)
        return len(proposal.indices) == self.result.dim <= MAX_FEW and not is_long

    def _of_mixture(self, proposal: JointTails, found: Weighed) -> Weighed:
        """Return draws of a mixture with components at draws, most of these in tails.

        Draws that hold most of a variance count most (Oh and Berger, 1993). The number of draws is
        fixed beforehand, because draws that have met no tail look accurate. Other optima have draws
        among the first, and are then a part of the mixture.
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

    def _is_vain(self, found: Weighed, accuracy: Accuracy) -> bool:
        """Return whether more of the same draws would be of no use, or late."""
        # Four times the draws halve a limit, which is twice an error.
        is_far = accuracy.errors.max(initial=0.0) > LEVELS.negligible
        is_late = MOST_DRAWS * self.result.cost.prices.draw > self.left
        return is_late or is_far or MOST_DRAWS * found.share <= ENOUGH_DRAWS

    def _accuracy(self, found: Weighed, is_corrected: bool, held: int = NUM_DRAWS) -> Accuracy:
        parts = self.result._gaussians()
        if len(parts) != 1:
            return Accuracy(fault=f"the guide has {len(parts)} Gaussians in it, not one")
        values = numbers(self.result, found.own)
        of_weights = found.log_weights, found.missing, held, is_corrected
        changed = self.result.verdict == APPROXIMATE
        fault = self.result.change.in_words() if changed else ""
        accuracy = Accuracy.of_weights(values, *of_weights, fault)
        rounding = self.problem.rounding(float(np.abs(found.raw[np.isfinite(found.raw)]).max()))
        if rounding > EQUAL and not accuracy.is_accurate:
            words = f"log weights are rounded by about {rounding:.1g} nats: use float64"
            return dataclasses.replace(accuracy, fault=words)
        return accuracy
