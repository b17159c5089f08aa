"""Mixtures that begin at the optima of one Gaussian.

Components start at the optima found by the search for one Gaussian, and at further modes. Ascents
find the modes, from the points of the search with the largest importance weights ``p / q``. Here
``q`` is the sum of all Gaussians so far, each with the mass of its bound
(Arenz, Dahlinger, Ye, Volpp and Neumann, 2022, *A unified perspective on natural gradient
variational inference with Gaussian mixture models*, TMLR). An ordinary search fits a Gaussian to
each mode; Gaussians that do not overlap have weights in proportion to ``exp(bound)``.

From this mixture a search continues along the natural gradients of weights and components, with the
mixture's exact density and the usual certificate. The mixture is kept if its bound is higher than
that of the best Gaussian. If the numbers of modes and components differ, components could have
started elsewhere, and those optima are not searched. The verdict is then ``"local"`` at best,
unless the bound is so close to the evidence that no optimum can be better.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from ngvi._lock import as_now
from ngvi.inference.estimate import State
from ngvi.inference.exploration import degenerate
from ngvi.inference.map_ascent import Ascent, map_ascents
from ngvi.inference.mode_centred import missed
from ngvi.inference.monitor import StoppedByCallback, TimeLimitReached
from ngvi.inference.multistart import MultiStart
from ngvi.inference.options import LEVELS
from ngvi.inference.problem import Problem
from ngvi.inference.request import FitArguments
from ngvi.inference.search import Status
from ngvi.inference.starts import MODE
from ngvi.inference.verdict.optima import Exploration, Optimum
from ngvi.inference.verdict.outcome import Ending, Outcome

#: Most components: of five exchangeable labels there are 120 modes.
MAX_COMPONENTS = 16
#: Smallest gain of the bound, in nats, for which a component is worth while: about its weight.
LEAST_GAIN = 0.01
#: Draws among which more components than modes are placed, and the width of these, in standard
#: deviations of the best Gaussian.
NUM_PLACES, WIDTH = 1000, 0.5
AUTO, FROM_OPTIMA = "auto", "the optima of one Gaussian"
#: Words for a mixture whose components could begin elsewhere.
NO_OTHERS = "; mixtures that begin elsewhere have not been looked for"
#: Arguments of ``fit`` that leave no choice of the guide, or of which there is no one density.
NOT_BESIDE = ("guide", "init", "batches", "checkpoint")


def check_beside(given: FitArguments) -> None:
    """Refuse too many components, and arguments that do not go with several.

    :raises ValueError: naming the argument.
    """
    words = f"num_components={given.num_components!r}"
    if isinstance(given.num_components, int) and given.num_components > MAX_COMPONENTS:
        raise ValueError(
            f"{words} is more than the {MAX_COMPONENTS} components that a mixture may have."
        )
    for name in NOT_BESIDE:
        if getattr(given, name) is not None:
            raise ValueError(
                f"{words} is for guides that fit makes itself: leave {name}= out, or take SVI with "
                "NaturalGaussianGuide(model, families.Mixture(...)), BLR() and NaturalELBO()."
            )
    if given.reparametrize is True:
        raise ValueError(
            f"{words} reparametrises no locals: leave out reparametrize=True or num_components=."
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


def modes(search: MultiStart) -> list[Optimum]:
    """Return the optima at the modes of a posterior, the best first.

    Two modes of the same height are two, though their optima are one to the search for the best.

    :param search: that has ended at the best optimum.
    """
    runs, space, best = search.runs, search.runs.problem.space, search.runs.best
    found, met = [best], [best.state]

    def add(new: Optimum) -> None:
        """Add an optimum, unless it is there already or has hardly any mass."""
        state, known, mean = new.state, new.validation, space.mean(new.state)
        is_there = any(
            runs.is_inside(one, mean) and runs.is_inside(state, space.mean(one)) for one in met
        )
        least = best.validation.bound + math.log(LEAST_GAIN)
        if not is_there and known.bound + 2 * known.error > least:
            found.append(new)
        met.append(state)

    for one in sorted(runs.optima, key=lambda one: -one.validation.lower):
        for place in (one, *one.images) if one.is_certified else ():
            add(place)
    (points, values), count = search.starts.pool, 0
    while count < len(found) < MAX_COMPONENTS and len(points):
        count = len(found)
        parts = [one.validation.bound + space.log_q(one.state, points) for one in found]
        gaps = np.where(np.isfinite(values), values - np.logaddexp.reduce(parts, 0), -math.inf)
        order = np.argsort(-gaps)[: runs.options.multi_start.num_starts]
        chosen = points[order[gaps[order] > LEVELS.worth]]
        for end in map_ascents(runs.problem, best.state, chosen, runs.options.starts):
            is_met = any(runs.is_inside(state, end.mean) for state in met)
            if math.isfinite(end.height) and end.is_mode and not is_met:
                if (new := _at_mode(search, end)) is not None:
                    add(new)
    return found[:MAX_COMPONENTS]


def _at_mode(search: MultiStart, end: Ascent) -> Optimum | None:
    """Return the optimum to which a search from a mode leads.

    :return: None of a mode so high that it has hardly any mass, as a funnel's.
    """
    runs = search.runs
    if end.height > runs.level(runs.best) + degenerate(runs):
        return None
    start = search.starts.at(end.mean, MODE, runs.best.state)
    if start is None:
        return None
    run = runs.coarse(start, 2 * runs.options.multi_start.first_steps)
    runs.current = run
    run.search.advance()
    runs.current = None
    return runs.optimum(run)


def mixed(first: Any, outcome: Outcome, call: Any) -> tuple[Any, Outcome]:
    """Go on from the optima of one Gaussian.

    :param first: what was set up for it.
    :param outcome: what it has come to.
    :param call: the :class:`~ngvi.inference.call.FitCall`.
    :return: what was set up for the end, and what it has come to.
    """
    if outcome.ending is not None:
        return first, _cut_short(outcome, outcome.ending)
    is_optimum = outcome.finding is None and outcome.optimum.status is Status.OPTIMUM
    if not is_optimum or outcome.search is None:
        return first, outcome
    restore, problem, best = as_now(), outcome.search.runs.problem, outcome.optimum
    try:
        states, log_weights, num_modes = _components(outcome.search, call)
        number = len(states)
        if number == 1:
            is_asked = len(outcome.search.starts.pool[0]) > 0
            return first, _of_one(outcome, "no other mode was " + ("met" if is_asked else "sought"))
        if number > num_modes and missed(best) < LEAST_GAIN:
            return first, _of_one(outcome, f"others can add {missed(best):.2g} nats at most")
        ready = call.set_up_mixture(first, number)
        state = ready.problem.space.mixture(states, log_weights)
        other = call.optimise(ready.problem, state)
        problem.objective.cost.share(ready.problem.objective.cost)
    except (TimeLimitReached, StoppedByCallback, KeyboardInterrupt) as error:
        restore()
        return first, _cut_short(outcome, _ENDINGS[type(error)])
    end = other.optimum
    gain = end.validation.bound - best.validation.bound
    least = max(LEAST_GAIN, 2 * math.hypot(end.validation.error, best.validation.error))
    kept = end if gain > least else best
    has_others = number < num_modes or (number > num_modes and missed(kept) > outcome.tolerance)
    if has_others:
        outcome = dataclasses.replace(outcome, exploration=Exploration())
    if kept is best:
        words = f"the mixture of {number} that was tried gains less than {least:.2g} nats"
        return first, _of_one(outcome, words + NO_OTHERS * has_others)
    end.name, end.count, end.trace = FROM_OPTIMA, best.count, best.trace.then(end.trace)
    weights = np.sort(np.exp(ready.problem.space.components(end.state)[1]))[::-1]
    shown = ", ".join(f"{weight:.2f}" for weight in weights)
    words = f"a mixture of {number} components with weights {shown}"
    if num_modes > number:
        left_out = num_modes - number
        words += f"; {left_out} more modes are left out, which num_components='auto' has"
    words += NO_OTHERS * has_others
    found = dataclasses.replace(other, exploration=outcome.exploration, mixture=words, search=None)
    return ready, found


def _components(search: MultiStart, call: Any) -> tuple[list[State], np.ndarray, int]:
    """Return the Gaussians to begin with, their log weights, and the number of modes.

    Of more modes than are wanted the heaviest are taken. Of fewer, the others are narrower, at
    draws of the best Gaussian with the largest importance weights.
    """
    found, problem, wanted = modes(search), search.runs.problem, call.given.num_components
    bounds = np.array([one.validation.bound for one in found])
    number = len(found) if wanted == AUTO else int(wanted)
    order = np.argsort(-bounds, kind="stable")[:number]
    states = [found[index].state for index in order]
    log_weights = bounds[order] - np.logaddexp.reduce(bounds[order])
    if (more := number - len(states)) > 0:
        best, space = states[0], problem.space
        theta, log_q = space.draw(best, call.rng.standard_normal((NUM_PLACES, space.dim)))
        gaps = problem.objective.log_density(best, theta) - log_q
        highest = np.argsort(-np.where(np.isnan(gaps), -math.inf, gaps))[:more]
        sd = WIDTH * np.concatenate(list(space.stddevs(best).values()))
        states += [space.at(theta[index], sd) for index in highest]
        rest = log_weights + math.log1p(-more / number)
        log_weights = np.concatenate([rest, np.full(more, -math.log(number))])
    return states, log_weights, len(found)


def _of_one(outcome: Outcome, why: str) -> Outcome:
    return dataclasses.replace(outcome, mixture=f"one component: {why}", search=None)


def _cut_short(outcome: Outcome, ending: Ending) -> Outcome:
    words = f"one component; the search for more was cut short: {ending.value}"
    return dataclasses.replace(outcome, ending=ending, mixture=words)


_ENDINGS = {
    TimeLimitReached: Ending.TIME_LIMIT,
    StoppedByCallback: Ending.CALLBACK,
    KeyboardInterrupt: Ending.INTERRUPTED,
}
