"""Draws of the posterior itself, from those of a Gaussian by their importance weights.

The bound is blind to where the Gaussian is and the posterior is not: between the scale of some
effects and zero there is a tail that a Gaussian in the scale's logarithm does not have. So the
latents outside of plates, if they are few, are drawn from a Student's t, and all others from the
Gaussian given them; otherwise those whose variance hangs on few draws, one in each draw
(:mod:`~ngvi.inference.proposals`). The t has the Gaussian's location and scale, or where weights of
a few draws have too heavy a tail the moments by these (Paananen et al., 2021, *Implicitly adaptive
importance sampling*, Statistics and Computing 31). Weights are Pareto smoothed
(:mod:`~ngvi.inference.psis`), and draws resampled systematically (Kitagawa, 1996). Whether they are
as wide as the posterior its own dynamics tell (:mod:`~ngvi.inference.moved`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ngvi.inference.estimate import State
from ngvi.inference.moved import spread_of_moved
from ngvi.inference.problem import Problem
from ngvi.inference.proposals import Resampling, Weighed, proposal_for
from ngvi.inference.psis import LIMITS, Diagnostics
from ngvi.inference.weights_verdict import OPTIONS as VERDICT
from ngvi.inference.weights_verdict import USABLE, WAY_ON
from ngvi.latents.layout import Site, name_of


def weighed(
    problem: Problem,
    state: State,
    count: int,
    rng: np.random.Generator,
    options: Resampling = Resampling(),  # noqa: B008  it is immutable
) -> Weighed:
    """Draws for the model's posterior, of a proposal that up to two rounds have adapted.

    :raises ValueError: if the log density is finite at no draw.
    """
    return proposal_for(problem, state, count, rng, options).weighed(count, rng)


class CorrectedDraws(NamedTuple):
    """Draws of a model's posterior, and why not to believe them."""

    latents: np.ndarray  #: shape ``(n, d)``
    fault: str  #: in words, or nothing
    #: Whether they are worth so many that they tell more of the posterior than the Gaussian's.
    are_many: bool = True


def corrected(
    problem: Problem,
    state: State,
    num_samples: int,
    rng: np.random.Generator,
    options: Resampling = Resampling(),  # noqa: B008  it is immutable
) -> CorrectedDraws:
    """Draws of the model's posterior; some are the same.

    They have a fault where the weights' tail has a k-hat above 0.7, or that of the weights times a
    latent's squared deviations. Another is that they are worth too few draws. More are wanted where
    the error of a k-hat reaches 0.7. The last is that the posterior's own dynamics spread them.

    :param state: of which they are made, by their weights.
    :param num_samples: how many.
    :raises ValueError: if the log density is finite at no draw.
    """
    least, most = options.num_draws
    proposal = proposal_for(problem, state, most, rng, options)
    found = proposal.weighed(max(least, num_samples), rng)
    wanted = max(options.effective, num_samples) / found.share
    sites = problem.space.sites
    if found.are_trusted is None or (found.are_trusted and found.rarely_wide(sites, options)[1]):
        wanted = most
    if wanted > len(found.log_weights):
        found = proposal.weighed(max(min(int(wanted), most), num_samples), rng)
    latents = found.resampled(num_samples, rng)
    effective = found.effective
    are_many = effective >= options.least_effective
    if found.share >= VERDICT.alike:
        return CorrectedDraws(latents, "")
    if found.pareto_k > USABLE:
        words = f"the weights' k-hat is {found.pareto_k:.2f}, and above {USABLE} they may miss a "
        return CorrectedDraws(latents, words + "part of the posterior", are_many)
    if not are_many or (found.are_trusted is None and effective < options.effective):
        words = f"{len(found.log_weights):,} draws are worth {effective:,.0f} at a k-hat of "
        words += f"{found.pareto_k:.2f}, too few to tell their widths"
        return CorrectedDraws(latents, words, are_many)
    if (rare := found.rarely_wide(sites, options)[0][:3]).size:
        names = ", ".join(name_of(int(i), sites) for i in rare)
        return CorrectedDraws(latents, f"few of them tell the standard deviation of {names}")
    narrow = _in_words(spread_of_moved(problem, state, found, rng), sites)
    fault = f"moved by the posterior's own dynamics {narrow}, so that they are too narrow"
    return CorrectedDraws(latents, fault if narrow else "")


def with_heavier_tails(
    problem: Problem,
    state: State,
    found: Diagnostics,
    seed: int | list[int],
    options: Resampling = Resampling(),  # noqa: B008  it is immutable
) -> Diagnostics:
    """Whether :func:`corrected` mends what weights of the Gaussian's own draws cannot, in words.

    :param found: of the Gaussian, of which nothing but the last words changes.
    :param seed: of the draws, 4000 and up to two rounds before them; none where weights do.
    """
    if found.are_trusted or found.pareto_k is None or found.num_draws < LIMITS.num_draws:
        return found
    rng = np.random.default_rng([*np.atleast_1d(seed), 1])
    proposal = proposal_for(problem, state, LIMITS.num_draws, rng, options)
    if not proposal.indices.size:
        return found
    heavier = proposal.weighed(LIMITS.num_draws, rng)
    if not heavier.are_trusted or heavier.effective < options.least_effective:
        return found
    if heavier.rarely_wide(problem.space.sites, options)[0].size:
        return found
    words = f"heavier tails mend that (k-hat {heavier.pareto_k:.2f}), by "
    words += "result.sample(corrected=True)"
    return dataclasses.replace(found, verdict=found.verdict.replace(WAY_ON, words))


def _in_words(factors: np.ndarray, sites: Sequence[Site]) -> str:
    """Of which latents draws spread, the worst first; or nothing."""
    order = [int(i) for i in np.argsort(-factors)[:3] if factors[i] > 1.0]
    return ", ".join(f"{name_of(i, sites)} spreads {factors[i]:.1f} times as far" for i in order)
