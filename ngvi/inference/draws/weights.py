"""Importance weights of a result: what they say of its Gaussian, and draws that they correct."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from ngvi._warn import warn
from ngvi.errors import check_count, check_flag, is_auto
from ngvi.inference.draws.psis import (
    NUM_DRAWS,
    Diagnostics,
    diagnose,
    of_minibatches,
    undefined,
)
from ngvi.inference.draws.resampling import corrected, with_heavier_tails
from ngvi.inference.draws.weights_verdict import ALIKE, MAX_LATENTS
from ngvi.inference.options import LEVELS
from ngvi.inference.prices import num_affordable
from ngvi.inference.problem import Problem
from ngvi.inference.verdict.outcome import APPROXIMATE


def check_corrected(corrected: bool | str) -> bool | None:
    """Check the argument of ``sample``; None for ``"auto"``.

    :raises ValueError: for anything else.
    """
    if is_auto(corrected, "corrected", "True or False"):
        return None
    return check_flag(corrected, "corrected")


def diagnosed(result: Any, num_draws: int | None, seed: int | list[int]) -> Diagnostics:
    """Judge the Gaussian of a result by the importance weights of its draws; see ``diagnose``."""
    num_draws = num_draws if num_draws is None else check_count(num_draws, "num_draws")
    known = vars(result).get("diagnostics")
    if known is not None and not known.num_draws:
        return known  # of rows of which the result holds a part only
    with result._at_end() as (problem, state):
        if why := _without_weights(problem):
            return undefined(why)
        most = num_affordable(result, LEVELS.more_draws * NUM_DRAWS)
        found, elsewhere = diagnose(problem, state, num_draws, seed, most), _unseen(result)
        is_small = result.dim <= MAX_LATENTS
        if is_small and not elsewhere and not _without_density(result, problem):
            found = with_heavier_tails(problem, state, found, seed)
    if not elsewhere:
        return found
    word = found.verdict.partition(":")[0]
    words = f"partial: {elsewhere}, and weights see none of it; of its own optimum q is {word}"
    return dataclasses.replace(found, verdict=words, are_trusted=False)


def corrected_latents(
    result: Any, num_samples: int, seed: int | list[int], is_asked: bool = True
) -> np.ndarray | None:
    """Draw latent vectors of the model's posterior; see ``sample``.

    :param is_asked: whether the user insists; if not, None where they are worth too few.
    """
    with result._at_end() as (problem, state):
        if is_asked:
            check_density(result, problem, "corrected=True", "Leave it out.")
        elif _without_density(result, problem):
            return None
        found = corrected(problem, state, num_samples, np.random.default_rng(seed))
    if found.fault and not (is_asked or found.are_many):
        warn(
            "The draws are the Gaussian's, and the posterior is another: corrected, "
            f"{found.fault}. result.nuts() goes on by NUTS; corrected=False is the Gaussian in "
            "silence."
        )
        return None
    if fault := "; ".join(filter(None, [found.fault, _unseen(result)])):
        warn(f"Corrected draws may be wrong: {fault}. result.nuts() goes on by NUTS.")
    return found.latents


def is_worth_correcting(result: Any) -> bool:
    """Tell whether the Gaussian's draws will not do, and correcting them costs little."""
    known = result.validation
    if known is None or not math.isfinite(known.spread) or result.dim > MAX_LATENTS:
        return False
    if _elsewhere(result):
        return True
    # The chi-square divergence of nearly equal weights is the variance of their logarithms.
    return known.is_heavy_tailed or known.spread**2 > 1.0 / ALIKE - 1.0


def check_density(result: Any, problem: Problem, who: str, way_out: str) -> None:
    """Refuse a posterior without importance weights.

    :param who: needs them, in words.
    """
    if why := _without_density(result, problem):
        raise ValueError(
            f"{who} needs the importance weights of a NaturalGaussianGuide, and here {why}. "
            f"{way_out}"
        )


def why_undefined(result: Any, problem: Problem) -> str:
    """Say why draws have no importance weights of all data, if so."""
    known = vars(result).get("diagnostics")
    if known is not None and not known.num_draws:  # of rows of which it holds a part only
        return known.verdict.removeprefix("undefined: ")
    return _without_weights(problem) or of_minibatches(problem.objective)


def _without_weights(problem: Problem) -> str:
    if getattr(problem.objective, "guide_is_enumerated", False):  # in Pyro
        return "the guide has enumerated sites, whose draws have no single weight"
    return ""


def _without_density(result: Any, problem: Problem) -> str:
    """Say why the density of all data is not at hand, if so."""
    if [part is result.guide for part in result._gaussians()] != [True]:
        return f"the guide ({type(result.guide).__name__}) is no NaturalGaussianGuide"
    return why_undefined(result, problem)


def _unseen(result: Any) -> str:
    """Say of what importance weights see nothing, if so."""
    drift = result.change.in_words() if result.verdict == APPROXIMATE else ""
    return "; ".join(filter(None, [drift, _elsewhere(result)]))


def _elsewhere(result: Any) -> str:
    """Say whether other optima hold a part of the posterior."""
    bounds = [one.bound for one in result.optima]
    weights = np.exp(np.array(bounds[1:]) - bounds[0]) if bounds else np.zeros(0)
    share = float(weights.sum() / (1.0 + weights.sum()))
    if share < 1.0 - LEVELS.confidence:
        return ""
    return f"other optima hold about {100 * share:.0f} % of the posterior, by their bounds"
