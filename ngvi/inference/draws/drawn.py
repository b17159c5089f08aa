"""The draws of a result: one set, by the cheapest method that is shown to be accurate.

Draws of the Gaussian have importance weights ``w = p(y, theta) / q(theta)``, Pareto smoothed
(Vehtari, Simpson, Gelman, Yao and Gabry, 2024, JMLR 25). Where these change no mean and no
standard deviation, the draws are the Gaussian's as it is. Otherwise the bound was blind to where
the Gaussian is and the posterior is not: between the scale of some effects and zero there is a tail
that a Gaussian in the scale's logarithm does not have. So a few latents, those outside of plates
first, are drawn from a Student's t, and all others from the Gaussian given them
(:mod:`~ngvi.inference.draws.proposals`). The t has the moments by weights of a few draws (Paananen
et al., 2021, *Implicitly adaptive importance sampling*, Statistics and Computing 31). Where that is
not accurate, draws of up to ten latents are those of a mixture of 500 narrow t's (West, 1993,
*Approximating posterior distributions by mixtures*, JRSS B 55). These lie at draws of an earlier
mixture, most of them in tails. Draws are resampled systematically (Kitagawa, 1996). Otherwise NUTS
goes on from the fit, but not after a mixture of few latents whose draws are worth enough: chains
may miss a tail that these have met.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import numpy as np

from ngvi._warn import warn
from ngvi.inference.arguments import AUTO, CORRECTED, GAUSSIAN, NUTS
from ngvi.inference.draws.by_weights import LEAST_SECONDS, MAX_LATENTS, ByWeights
from ngvi.inference.draws.diagnostics import Diagnostics, in_one, order
from ngvi.inference.draws.going_on import (
    MOST_GRADIENTS,
    USUAL_GRADIENTS,
    price_of_chains,
    seconds_of_chains,
    way_on,
)
from ngvi.inference.draws.nuts import run_until
from ngvi.inference.draws.others import TOO_LITTLE, with_others
from ngvi.inference.draws.trajectories import TooFewDrawsError
from ngvi.inference.monitor import LOGGER

#: Seconds of chains, as a part of the fit's.
TIMES_THE_FIT = 10.0


def made(result: Any, asked: str, seconds: float = math.inf, has_ended: bool = True) -> Diagnostics:
    """Make the draws of a result, and add what they cost to its own.

    :param asked: who may make them.
    :param seconds: that are left.
    :param has_ended: whether the fit has: else no chains go on from there.
    """
    start = time.perf_counter()
    deadline = start + seconds
    with result._at_end() as (problem, state):
        rng = np.random.default_rng(result._ppl.seed_of_diagnostics(result))
        makes = ByWeights(result, problem, state, rng, seconds)
        found = makes.by_weights(asked)
        if (known := makes.weighed) is not None:
            own = known.own, np.exp(known.log_weights)
            accuracy = with_others(found.accuracy, result, *own, makes.others)
            found = dataclasses.replace(found, accuracy=accuracy)
        result.cost = dataclasses.replace(result.cost)
        result.cost.share(problem.objective.cost)
    seconds = deadline - time.perf_counter() if has_ended else 0.0
    if asked == AUTO:  # also a limit for chains, whose gradients may take longer than the fit's
        seconds = min(seconds, max(LEAST_SECONDS, TIMES_THE_FIT * result.seconds))
    is_told = found.accuracy.is_accurate or TOO_LITTLE in found.accuracy.fault
    is_vain = is_told or makes.has_mixture
    is_enough = asked in (GAUSSIAN, CORRECTED) or (asked == AUTO and is_vain)
    if not is_enough and (asked == NUTS or _may_go_on(result, makes, seconds)):
        found = _by_nuts(result, found, asked, time.perf_counter() + seconds, makes)
    result.seconds += time.perf_counter() - start
    left = deadline - time.perf_counter()
    if not found.accuracy.is_accurate and left < seconds_of_chains(result) < math.inf:
        found = dataclasses.replace(found, how=f"{found.how}, for want of time (time_limit=)")
    if asked != GAUSSIAN and result.converged and (way := way_on(result, found)):
        warn(f"The draws are doubtful: {found.accuracy.words}. {way}")
    return found


def best_of(chains: Diagnostics, others: Diagnostics) -> Diagnostics:
    """Return the better ones of draws of chains, and of others that are not accurate.

    The weights of a Gaussian that is far off hide how far: chains that agree are better than the
    Gaussian, and any chains are better than draws without a limit.
    """
    is_unknown = math.isinf(others.accuracy.worst_limit)
    if is_unknown or (others.method == GAUSSIAN and not chains.accuracy.fault):
        return chains
    return min((chains, others), key=order)


def _may_go_on(result: Any, makes: ByWeights, seconds: float) -> bool:
    """Return whether NUTS may go on from a result unasked."""
    if makes.why_no_density or result.change is not None or result.dim > MAX_LATENTS:
        return False
    needed = seconds_of_chains(result)
    return seconds > 0 and not (seconds < needed < math.inf)


def _by_nuts(
    result: Any, found: Diagnostics, asked: str, deadline: float, makes: ByWeights
) -> Diagnostics:
    """Return draws of chains that go on from a result, or the earlier draws if these are better.

    :raises ValueError: if chains are asked for and cannot begin; else the fault is said.
    """
    try:
        seed = result._ppl.seed_of_diagnostics(result)
        price = price_of_chains(result, (USUAL_GRADIENTS, MOST_GRADIENTS))
        LOGGER.info("draws by NUTS: about %s", price)
        chains = run_until(result, seed, MOST_GRADIENTS, deadline, known=makes.weighed)
    except ValueError as error:
        if asked == NUTS and not isinstance(error, TooFewDrawsError):
            raise
        fault = found.accuracy.fault or f"no chains of NUTS: {error}"
        return dataclasses.replace(found, accuracy=dataclasses.replace(found.accuracy, fault=fault))
    result.cost.gradients += chains.num_gradients
    count, each = chains.latents.shape[:2]
    how = f"NUTS from the fit: {count} chains of {each:,} draws, {chains.num_gradients:,} gradients"
    own = in_one(chains.latents), found.log_weights, chains
    new = Diagnostics(NUTS, chains.accuracy, how, *own)
    return new if asked == NUTS else best_of(new, dataclasses.replace(found, chains=chains))


def chosen(held: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return which of the draws that are held to take, each as often as the others but for one."""
    rounds = [rng.permutation(held) for _ in range(-(-count // held))]
    return np.concatenate(rounds)[:count]
