"""Conditions of draws, and reasons for what is not possible."""

from __future__ import annotations

from typing import Any

from ngvi.inference.arguments import CORRECTED, NUTS
from ngvi.inference.problem import Objective, Problem


def check_may_draw(asked: str, problem: Problem, is_alone: bool, has_batches: bool) -> None:
    """Refuse, before a fit, a method that cannot make its draws.

    :param asked: who is to make them.
    :param is_alone: whether the guide is a ``NaturalGaussianGuide``.
    :raises ValueError: with the reason.
    """
    why = "the rows come in batches" if has_batches else of_objective(problem.objective)
    if not why and not is_alone:
        why = "the guide is not a NaturalGaussianGuide"
    if not why and asked == NUTS and problem.space.has_model_parameters:
        names = ", ".join(map(repr, problem.space.model_parameters(problem.space.initial)))
        why = f"the model has parameters of its own, {names}, which have no prior"
    if why and asked in (CORRECTED, NUTS):
        raise ValueError(f"draws={asked!r} is not possible: {why}. Leave it out.")


def check_density(result: Any, problem: Problem, who: str, way_out: str) -> None:
    """Refuse a posterior without importance weights.

    :param who: needs them, in words.
    """
    if why := why_without_density(result, problem):
        raise ValueError(
            f"{who} needs the importance weights of a NaturalGaussianGuide, and here {why}. "
            f"{way_out}"
        )


def why_undefined(result: Any, problem: Problem) -> str:
    """Say why draws have no importance weights of all data, if so."""
    known = vars(result).get("diagnostics")
    if known is not None and not known.num_draws:  # of rows of which it holds a part only
        return known.accuracy.fault
    return of_objective(problem.objective)


def of_objective(objective: Objective) -> str:
    """Say why an objective has no density of all data, if so."""
    if getattr(objective, "guide_is_enumerated", False):  # in Pyro
        return "the guide has enumerated sites, whose draws have no single weight"
    of_plate = objective.rows and f" (of plate '{objective.rows.plate}')"
    words = f"the model sees minibatches{of_plate or ''}, whose density is not that of all data"
    return words if objective.is_subsampled else ""


def why_without_density(result: Any, problem: Problem) -> str:
    """Say why the density of all data is not at hand, if so."""
    if [part is result.guide for part in result._gaussians()] != [True]:
        return f"the guide ({type(result.guide).__name__}) is not a NaturalGaussianGuide"
    return why_undefined(result, problem)
