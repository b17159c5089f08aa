"""From the optima of one Gaussian to a mixture of several.

The components that :mod:`~ngvi.inference.components` finds become one state, from which a search
goes on along the natural gradients of weights and components, with the mixture's exact density. Its
certificate is that of any other search. A component that adds next to nothing is left out, and the
search goes on without it. The mixture is kept if its bound is above that of the best Gaussian.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ngvi._lock import as_now
from ngvi.inference.components import Contributions, Modes, places, switched
from ngvi.inference.estimate import State
from ngvi.inference.monitor import StoppedByCallback, TimeLimitReached
from ngvi.inference.optima import Optimum
from ngvi.inference.options import LEVELS
from ngvi.inference.outcome import Ending, Outcome
from ngvi.inference.problem import Problem
from ngvi.inference.request import FitArguments, Request
from ngvi.inference.search import Status
from ngvi.inference.validation import bound_alone

AUTO, FROM_OPTIMA = "auto", "the optima of one Gaussian"
#: What raises the number of components.
MORE = "options=FitOptions(mixture=MixtureOptions(max_components=...))"
#: Arguments of ``fit`` that leave no choice of the guide, or of which there is no one density.
NOT_BESIDE = ("guide", "init", "batches", "checkpoint")


def check_beside(given: FitArguments) -> None:
    """Refuse more components than the options allow, and arguments that do not go with several.

    :raises ValueError: naming the argument.
    """
    words, most = f"num_components={given.num_components!r}", given.options.mixture
    if isinstance(given.num_components, int) and given.num_components > most.max_components:
        raise ValueError(
            f"{words} is more than the {most.max_components} components that a mixture may have: "
            f"{MORE} allows more."
        )
    for name in NOT_BESIDE:
        if getattr(given, name) is not None:
            raise ValueError(
                f"{words} is for guides that fit makes one after another, of all data in one "
                f"process: leave {name}= out, or take SVI with NaturalGaussianGuide(model, "
                "families.Mixture(...)), BLR() and NaturalELBO()."
            )
    if given.reparametrize is True:
        raise ValueError(
            f"{words} takes locals as they are: leave reparametrize=True out, or num_components=."
        )


def check_density(problem: Problem) -> None:
    """Refuse a model whose density is not one function of the latents.

    :raises ValueError: saying what it has.
    """
    what = ""
    if problem.objective.is_subsampled:
        what = "sees minibatches"
    elif problem.space.has_model_parameters:
        what = "has parameters of its own"
    if what:
        raise ValueError(
            f"num_components= needs one posterior, and the model {what}: leave it out, or give "
            "parameters priors and the model all rows."
        )


def mixed(
    first: Any,
    outcome: Outcome,
    wanted: int | str,
    set_up: Callable[[int], Any],
    search: Callable[[Problem, State, int], Outcome],
    rng: np.random.Generator,
    request: Request,
) -> tuple[Any, Outcome]:
    """Go on from the optima of one Gaussian.

    :param first: what was set up for it.
    :param outcome: what it has come to.
    :param wanted: how many components, or ``"auto"``.
    :param set_up: the same with a mixture of so many.
    :param search: from a state, after so many steps.
    :return: what was set up for the end, and what it has come to.
    """
    if outcome.ending is not None:
        return first, _cut_short(outcome, outcome.ending)
    is_optimum = outcome.finding is None and outcome.optimum.status is Status.OPTIMUM
    if not is_optimum or outcome.search is None:
        return first, outcome
    modes, restore = Modes(outcome.search, request.options.mixture.max_components), as_now()
    try:
        modes.look()
        growth = _Growth(first, outcome, modes, rng, request)
        growth.begin(wanted)
        ready, other = growth.followed(set_up, search)
    except (TimeLimitReached, StoppedByCallback, KeyboardInterrupt) as error:
        restore()
        return first, _cut_short(outcome, _ENDINGS[type(error)])
    words = growth.words(wanted)
    # Of one component the search for a better one has to be over as well.
    is_over = modes.is_over and (other is not None or outcome.exploration.is_over)
    report = dataclasses.replace(outcome.exploration, is_over=is_over)
    if other is None:
        kept = dataclasses.replace(outcome, exploration=report, mixture=words)
        return first, dataclasses.replace(kept, search=None)
    other.optimum.count = outcome.optimum.count
    other.optimum.trace = outcome.optimum.trace.then(other.optimum.trace)
    return ready, dataclasses.replace(other, exploration=report, mixture=words, search=None)


def _cut_short(outcome: Outcome, ending: Ending) -> Outcome:
    words = f"one component; the search for more was cut short: {ending.value}"
    return dataclasses.replace(outcome, ending=ending, mixture=words)


_ENDINGS = {
    TimeLimitReached: Ending.TIME_LIMIT,
    StoppedByCallback: Ending.CALLBACK,
    KeyboardInterrupt: Ending.INTERRUPTED,
}


class _Growth:
    """A mixture on its way.

    :ivar states: of the components, for the first problem's space.
    :ivar log_weights: of these.
    """

    def __init__(
        self, first: Any, outcome: Outcome, modes: Modes, rng: np.random.Generator, request: Request
    ) -> None:
        self.first, self.outcome, self.modes, self.rng = first, outcome, modes, rng
        self.options, self.problem = request.options.mixture, modes.runs.problem
        self.draws = request.options.validation
        self.states = [one.state for one in modes.found]
        self.log_weights, self.num_left_out = modes.log_weights(), 0

    def begin(self, wanted: int | str) -> None:
        """The components at the modes, and more if these are too few."""
        if len(self.states) > 1:
            of_best = partial(self.problem.objective.log_density, self.states[0])
            self._prune(of_best)
        count = 0 if wanted == AUTO else int(wanted) - len(self.states)
        if count < 0:
            self.num_left_out = -count
            kept = np.argsort(-self.log_weights)[: int(wanted)]
            self.states = [self.states[index] for index in kept]
            rest = self.log_weights[kept]
            self.log_weights = rest - np.logaddexp.reduce(rest)
        if count > 0:
            run = self.problem, self.states, self.log_weights, count
            self.states = [*self.states, *places(*run, self.rng, self.options)]
            size = len(self.states)
            rest = self.log_weights + math.log((size - count) / size)
            self.log_weights = np.concatenate([rest, np.full(count, -math.log(size))])

    def followed(
        self, set_up: Callable[[int], Any], search: Callable[[Problem, State, int], Outcome]
    ) -> tuple[Any, Outcome | None]:
        """The end of a search from there, as often as components are left out; None if it has come
        to one component, or to no higher bound than that of the best.
        """
        best, steps = self.outcome.optimum, len(self.outcome.optimum.trace)
        while len(self.states) > 1:
            ready = set_up(len(self.states))
            space = ready.problem.space
            other = search(ready.problem, space.mixture(self.states, self.log_weights), steps)
            end = other.optimum
            self.states, self.log_weights = space.components(end.state)
            left_out = self._prune(partial(ready.problem.objective.log_density, end.state))
            is_over = not left_out or other.ending is not None
            is_kept = is_over and self._is_higher(ready.problem, end, best)
            self.problem.objective.cost.share(ready.problem.objective.cost)
            if is_kept:
                end.name = FROM_OPTIMA
                return ready, other
            if is_over:
                break
        self.states, self.log_weights = self.states[:1], np.zeros(1)
        return self.first, None

    def _is_higher(self, problem: Problem, end: Optimum, best: Optimum) -> bool:
        """Whether a mixture's bound is above that of the best Gaussian; while the noise of both
        hides it, by four times as many draws.
        """
        least, count = self.options.least_gain, self.draws.max_draws
        gain = end.validation.bound - best.validation.bound
        noise = 2 * math.hypot(end.validation.error, best.validation.error)
        # One density for both: the mixture's parameters are where Pyro's guide had the Gaussian's.
        log_density = partial(problem.objective.log_density, end.state)
        while least < gain <= noise and count < LEVELS.more_draws**2 * self.draws.max_draws:
            count *= LEVELS.more_draws
            high = bound_alone(problem.space, end.state, log_density, self.rng, count)
            low = bound_alone(self.problem.space, best.state, log_density, self.rng, count)
            gain, noise = high[0] - low[0], 2 * math.hypot(high[1], low[1])
        return gain > max(least, noise)

    def _prune(self, log_density: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Leave components out that add next to nothing; whether there were any."""
        run = self.problem, self.states, log_density, self.rng, self.options
        before = len(self.states)
        kept, self.log_weights = Contributions(*run).pruned(self.log_weights)
        self.states = [self.states[index] for index in kept]
        return len(kept) < before

    # -- words ------------------------------------------------------------------------

    def words(self, wanted: int | str) -> str:
        """What is known of the components."""
        count, points = len(self.states), self.modes.num_points
        found = "one component"
        if count > 1:
            weights = sorted(np.exp(self.log_weights), reverse=True)
            shown = ", ".join(f"{weight:.2f}" for weight in weights)
            found = f"a mixture of {count} components with weights {shown}"
        if self.modes.is_over:
            found += f"; the largest importance weights of {points:,} points lead to no other mode"
        else:
            found += f"; other modes have not been ruled out by {points:,} points"
            if self.modes.least_share < self.options.least_share:
                found += ", hardly any of which are near to one of these"
        if self.num_left_out:
            found += (
                f"; {self.num_left_out} more modes are left out, which num_components='auto' has"
            )
        elif wanted != AUTO and count < int(wanted):
            found += (
                f"; of num_components={wanted} it is what the data tell: others would add less "
                f"than {self.options.least_gain:g} nats"
            )
        if wanted == AUTO and len(self.modes.found) == self.options.max_components:
            found += f"; more than {count} are not looked for: {MORE} allows more"
        return found + self._labels()

    def _labels(self) -> str:
        """What it means if some components are others with their labels switched."""
        space = self.problem.space
        means = [space.mean(state) for state in self.states]
        sds = [np.concatenate(list(space.stddevs(state).values())) for state in self.states]
        if not switched(means, sds, self.options.width):
            return ""
        return (
            "; some components are others with the order of their latents changed, as where labels "
            "are exchangeable: marginals are then averages over the labels, and only what does not "
            "depend on these has one meaning. Order the latents in the model for marginals of each"
        )
