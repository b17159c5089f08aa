"""Draws of the posterior itself, from those of a Gaussian by their importance weights.

The bound is blind to where the Gaussian is and the posterior is not: between the scale of some
effects and zero there is a tail that a Gaussian in the scale's logarithm does not have. So the
latents outside of plates, if they are few, are drawn from a Student's t, and all others from the
Gaussian given them (:mod:`~ngvi.inference.draws.proposals`). The t has the Gaussian's location and
scale, or where weights of a few draws have too heavy a tail the moments by these (Paananen et al.,
2021, *Implicitly adaptive importance sampling*, Statistics and Computing 31). Weights are Pareto
smoothed (:mod:`~ngvi.inference.draws.psis`), and draws resampled systematically (Kitagawa, 1996).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ngvi.inference.draws.pareto import ERRORS_OF_K
from ngvi.inference.draws.proposals import ENOUGH_DRAWS, Proposal, Weighed, proposal_for
from ngvi.inference.draws.psis import NUM_DRAWS, Diagnostics
from ngvi.inference.draws.weights_verdict import ALIKE, WAY_ON
from ngvi.inference.estimate import State
from ngvi.inference.problem import Problem
from ngvi.latents.layout import Site, name_of

#: Draws at first and at most, until this many effective ones have moments within 0.05 sd.
FIRST_DRAWS, MOST_DRAWS, EFFECTIVE = 5000, 20_000, 2000


def weighed(
    problem: Problem,
    state: State,
    count: int,
    rng: np.random.Generator,
) -> Weighed:
    """Return draws for the model's posterior, of a proposal that up to two rounds have adapted.

    :raises ValueError: if the log density is finite at no draw.
    """
    return proposal_for(problem, state, count, rng).weighed(count, rng)


class CorrectedDraws(NamedTuple):
    """Draws of a model's posterior, and why not to believe them."""

    latents: np.ndarray  #: Shape ``(n, d)``.
    pareto_k: float  #: K-hat of their weights.
    fault: str  #: The fault in words, or nothing.
    #: True if they are worth enough to tell more of the posterior than the Gaussian's.
    are_many: bool = True


def corrected(
    problem: Problem,
    state: State,
    num_samples: int,
    rng: np.random.Generator,
) -> CorrectedDraws:
    """Draw from the model's posterior; some draws are the same.

    They have a fault where the tail of the weights, or of these times a latent's squared
    deviations, may hold too much beyond the largest draw, or where they are worth too few. More are
    drawn until that is certain.

    :param state: of which they are made, by their weights.
    :param num_samples: how many.
    :raises ValueError: if the log density is finite at no draw.
    """
    proposal = proposal_for(problem, state, MOST_DRAWS, rng)
    first = proposal.weighed(max(FIRST_DRAWS, num_samples), rng)
    return _corrected(problem, state, proposal, first, num_samples, rng)


def _corrected(
    problem: Problem,
    state: State,
    proposal: Proposal,
    found: Weighed,
    num_samples: int,
    rng: np.random.Generator,
) -> CorrectedDraws:
    """See :func:`corrected`.

    :param found: the first draws.
    """
    most, sites = MOST_DRAWS, problem.space.sites
    is_certain = found.judged.are_right(len(ERRORS_OF_K) - 1)
    wanted = max(EFFECTIVE, num_samples) / found.share if is_certain else math.inf
    if (more := int(min(wanted, most)) - found.num_drawn) > 0:
        found = found.joined(proposal.weighed(more, rng))
    fault = _fault(found, sites)
    are_many = not fault or found.effective >= ENOUGH_DRAWS
    return CorrectedDraws(found.resampled(num_samples, rng), found.pareto_k, fault, are_many)


def _fault(found: Weighed, sites: Sequence[Site]) -> str:
    """Say why averages under these weights are not the posterior's, or nothing."""
    if found.share >= ALIKE:
        return ""
    judged, count = found.judged, len(found.raw)
    k_hat = f"a k-hat of {found.pareto_k:.2f}"
    if found.effective < ENOUGH_DRAWS:
        words = (
            f"{count:,} draws are worth {found.effective:,.0f} at {k_hat}, too few to tell their"
        )
        return f"{words} widths"
    if judged.are_right(1):
        return ""
    if judged.errors is None:
        return f"the weights have {k_hat}, and may miss a part of the posterior"
    mass, means, stddevs = judged.errors.faults(1)
    if mass.any():
        return f"the weights have {k_hat}, whose tail may hold a part of the posterior in no draw"
    rare, what = (stddevs, "standard deviation") if stddevs.any() else (means, "mean")
    order = np.argsort(-judged.errors.squares[1], kind="stable")
    names = ", ".join(name_of(int(i), sites) for i in order[rare[order]][:3])
    return f"few of them tell the {what} of {names}"


def with_heavier_tails(
    problem: Problem,
    state: State,
    found: Diagnostics,
    seed: int | list[int],
) -> Diagnostics:
    """Say whether :func:`corrected` mends what weights of the Gaussian's own draws cannot.

    :param found: of the Gaussian, of which nothing but the last words changes.
    :param seed: of the draws, as many as ``corrected`` takes; none where these weights do.
    """
    if found.are_trusted or found.pareto_k is None or found.num_draws < NUM_DRAWS:
        return found
    rng, count = np.random.default_rng([*np.atleast_1d(seed), 1]), NUM_DRAWS
    proposal = proposal_for(problem, state, count, rng)
    if not proposal.indices.size:
        return found
    first = proposal.weighed(count, rng)
    if first.effective < ENOUGH_DRAWS:  # more of them would hardly mend that
        return found
    heavier = _corrected(problem, state, proposal, first, count, rng)
    if heavier.fault:
        return found
    words = f"heavier tails mend that (k-hat {heavier.pareto_k:.2f}), by "
    words += "result.sample(corrected=True)"
    return dataclasses.replace(found, verdict=found.verdict.replace(WAY_ON, words))
