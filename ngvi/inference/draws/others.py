"""Other optima of a posterior: their mass, and how far they move draws at the best one.

Mass ``p`` at a distance of ``D`` standard deviations moves a mean by ``p D`` and a variance by
``p D^2``: two thousandths at twenty standard deviations are a third of a standard deviation more.
Draws and weights at one optimum do not see that mass. A few draws of the Gaussians at the others
do. Their weights are those of draws of several Gaussians together (Veach and Guibas, 1995), so that
mass where a better optimum has draws does not count.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import scipy

from ngvi.inference.draws.accuracy import Accuracy, flat, in_models, numbers
from ngvi.inference.draws.proposals import NUM_DRAWS
from ngvi.inference.estimate import State
from ngvi.inference.options import LEVELS
from ngvi.inference.problem import Problem

#: Draws of the Gaussian at each of the other optima, a tenth of those that a result holds.
DRAWS_ELSEWHERE = 400
#: Nats below the best bound from which an optimum does not count.
FAR_BELOW = 10.0
#: Part of the posterior from which on chains jump to an optimum.
HEAVY = 0.01
#: Words for optima that hold less than that.
TOO_LITTLE = "too little for chains to jump there"


class Elsewhere(NamedTuple):
    """Draws at another optimum."""

    latents: np.ndarray  #: Vectors in the guide's coordinates, shape ``(n, d)``.
    #: The mass that each draw stands for, as a part of the mass at the best optimum, ``(n,)``.
    shares: np.ndarray


def states_of(result: Any, problem: Problem, state: State) -> list[State]:
    """Return the fit's own state, and those of optima that may hold a part of the posterior."""
    optima = result.optima
    # Others of the model's own parameters are of another posterior; a mixture has them in it.
    if problem.space.has_model_parameters or problem.space.noise_dim > problem.space.dim:
        return [state]
    others = [optimum for optimum in optima[1:] if optimum.bound > optima[0].bound - FAR_BELOW]
    return [state, *(result._ppl.state_of(problem, optimum.params) for optimum in others)]


def elsewhere(
    problem: Problem, states: list[State], evidence: float, count: int = DRAWS_ELSEWHERE
) -> list[Elsewhere]:
    """Draw from the Gaussians at the other optima.

    :param states: of all optima, the best first.
    :param evidence: logarithm of the mass at the best optimum, in nats.
    :param count: number of draws at each optimum.
    """
    space, rng, found = problem.space, np.random.default_rng(0), []
    for index, other in enumerate(states[1:], 1):
        noise = rng.standard_normal((count, space.noise_dim))
        latents, log_q = space.draw(other, noise)
        logs = [space.log_q(one, latents) + math.log(NUM_DRAWS) for one in states[:index]]
        values = problem.objective.log_density(states[0], latents)
        with np.errstate(over="ignore", invalid="ignore"):
            shares = np.exp(values - evidence - scipy.special.logsumexp([*logs, log_q], 0))
        shares = np.where(np.isfinite(shares), shares, 0.0) / count
        found.append(Elsewhere(latents, shares))
    return found


def with_others(
    accuracy: Accuracy,
    result: Any,
    own: np.ndarray,
    weights: np.ndarray,
    others: list[Elsewhere],
    most: float = math.inf,
) -> Accuracy:
    """Add to limits how far other optima move means and standard deviations.

    :param own: the model's own latents at draws at the best optimum, shape ``(n, d)``.
    :param weights: of these draws, shape ``(n,)``.
    :param most: mass, as a part of that at the best optimum, from which on an optimum is left out.
    :return: with a fault if draws that are accurate at the best optimum leave out too much.
    """
    some = [one for one in others if 0.0 < one.shares.sum() < most]
    if not some or not accuracy.names:
        return accuracy
    columns = flat(numbers(result, own))
    columns = np.where(weights[:, None] > 0, columns, 0.0)  # what weighs nothing may be infinite
    center, shares = weights @ columns, np.concatenate([one.shares for one in some])
    there = flat(numbers(result, in_models(result, np.concatenate([o.latents for o in some]))))
    total, variance = 1.0 + shares.sum(), weights @ np.square(columns - center)
    with np.errstate(all="ignore"):
        apart = np.nan_to_num((there - center) / np.sqrt(variance))  # a number that is constant
    means, squares = shares @ apart / total, (shares @ np.square(apart) + 1.0) / total
    moved = abs(np.stack([means, np.sqrt(squares - means**2) - 1.0]))
    moved[moved <= 0.1 * LEVELS.negligible] = 0.0  # or chains that end at a limit exceed the limit
    fault = accuracy.fault
    if accuracy.is_accurate and moved.max() > LEVELS.negligible:
        worst = accuracy.names[int(moved.max(0).argmax())]
        is_heavy = any(one.shares.sum() >= HEAVY for one in some)
        part = "" if is_heavy else f", {TOO_LITTLE}"
        fault = (
            f"other optima hold about {100 - 100 / total:.2g} % of the posterior, which the draws "
            f"leave out{part}: the mean or the sd of {worst!r} is off by more than a tenth"
        )
    return dataclasses.replace(accuracy, limits=accuracy.limits + moved, fault=fault)
