"""Fits with locals centred at their conditional modes.

A Gaussian over all latents cannot follow how the spread of locals depends on the globals. Its
optima are also expensive to find, because the log density is unbounded in the neck of a funnel. So
if locals are independent given the rest, a
:class:`~ngvi.guide.reparametrized.ReparametrizedGaussianGuide` is fitted first (:func:`alone`). It
is the only fit if the first starts reach an optimum close to the evidence, and a better one is
unlikely.

Otherwise a Gaussian over all latents is fitted. Importance weights estimate its ``KL(q || p)``, in
two ways: by how far their average is above the bound, and by half the variance of their logarithms.
If the larger one exceeds the tolerance, and the first fit has converged at the same globals, the
two are compared (:func:`compared`). The locals at conditional modes are kept if their bound, less
two standard errors over the same draws, is above that of the Gaussian less the tolerance.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from typing import Any, NamedTuple

import numpy as np

from ngvi.inference.monitor import Monitor
from ngvi.inference.options import LEVELS
from ngvi.inference.request import FitArguments
from ngvi.inference.verdict.optima import Optimum
from ngvi.inference.verdict.outcome import BY_MODES, CERTIFIED, Ending, Outcome

#: The bound of locals by their modes where these would be searched for through a loop, or late.
NOT_TRIED = "not known: each step to the modes runs the model's loop; reparametrize=True does so"
TOO_LATE = "not known: half of time_limit= was over before the first step to the modes"
#: Arguments of ``fit`` that leave no choice of the latents' coordinates.
NO_CHOICE = "guide", "init", "family", "curvature", "batches"


class Attempt(NamedTuple):
    """A fit with locals by their modes.

    :ivar ready: what was set up for it.
    :ivar is_enough: whether nothing else is needed.
    :ivar failure: why there is no outcome, in words; or nothing.
    """

    ready: Any
    outcome: Any
    is_enough: bool
    failure: str = ""


def check_reparametrize(given: FitArguments) -> bool | str:
    """``fit``'s argument: False, True or ``"auto"``.

    :return: the same; False beside one that leaves no choice.
    :raises ValueError: for anything else, or for True beside one of these.
    """
    reparametrize = given.reparametrize
    if not (isinstance(reparametrize, bool) or reparametrize == "auto"):
        raise ValueError(f"reparametrize must be 'auto', True or False, got {reparametrize!r}.")
    others = [name for name in NO_CHOICE if not _is_default(getattr(given, name))]
    if others and reparametrize is True:
        raise ValueError(
            f"reparametrize=True cannot be combined with {others[0]}=. Leave one of them out; "
            "guide=ReparametrizedGaussianGuide(model, family=...) is for a family of your own."
        )
    return False if others else reparametrize


def _is_default(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value == "auto")


def may_gain(first: Any, reparametrize: bool | str) -> bool:
    """Return whether locals by their modes are asked for, and there are such and others.

    :param reparametrize: what :func:`check_reparametrize` returned.
    """
    if reparametrize is False or first.problem.objective.is_subsampled:
        return False
    are_local = [any(plate.size > 1 for plate in site.plates) for site in first.guide.sites]
    # Given parameters of the model's own the map of the locals is one affine map: of latents that
    # all are local a Gaussian family has the same optimum in both coordinates.
    return any(are_local) and not (first.problem.space.has_model_parameters and all(are_local))


def missed(optimum: Optimum) -> float:
    """Return what a Gaussian may miss of the evidence, in nats."""
    found = optimum.validation
    return max(found.gap, 0.5 * found.spread**2)  # of which the first is by few draws


def alone(first: Any, call: Any) -> Attempt | None:
    """Return a fit with locals by their modes, which may be all that is needed.

    :param first: what was set up for a Gaussian over all latents; it has the evaluations of both.
    :param call: the :class:`~ngvi.inference.call.FitCall`.
    :return: nothing where there is none.
    """
    reparametrize, late = call.reparametrize, Attempt(None, None, False, TOO_LATE)
    if not may_gain(first, reparametrize):
        return None
    if _is_late(call):
        return late
    try:
        second = call.set_up_by_modes(first)
    except ValueError:  # the model has no such locals, or the other fit says what is wrong with it
        return None
    except Exception as error:  # noqa: BLE001  the other fit goes on, and its report says why
        return _failed(error)
    if not second.has_start:
        return None
    if _is_late(call):
        return late
    most = math.inf if reparametrize is True else LEVELS.worth
    try:
        outcome = call.optimise(second.problem, is_good=lambda optimum: missed(optimum) < most)
    except Exception as error:
        if _is_of_callback(error):
            raise
        return _failed(error)
    finally:
        costs = [one.problem.objective.cost for one in (first, second)]
        costs[0].share(costs[1])
        for cost in costs:
            cost.prices = dataclasses.replace(cost.prices, by_modes=costs[1].prices.group)
    optimum, has_none = outcome.optimum, outcome.ending is Ending.NO_START
    is_good = outcome.converged and missed(optimum) < most
    # Without a choice of starts others are not looked for, as little as without a share.
    has_others = call.request.share > 0 and reparametrize is not True
    is_over = outcome.verdict == CERTIFIED or not has_others
    is_stopped = outcome.ending is not None and not has_none
    return Attempt(second, outcome, (is_good and is_over) or is_stopped)


def compared(first: Any, outcome: Outcome, at_first: Attempt, call: Any) -> tuple[Any, Outcome]:
    """Return the better of two fits, what was set up for it and its outcome.

    :param first: what was set up for a Gaussian over all latents.
    :param outcome: of that.
    :param at_first: the fit with locals by their modes.
    :param call: the :class:`~ngvi.inference.call.FitCall`, which may insist on a comparison.
    """
    if at_first.failure:
        return first, dataclasses.replace(outcome, by_modes=at_first.failure)
    request = call.request
    is_late = request.seconds > request.time_limit
    is_over = is_late or outcome.ending is not None or outcome.finding is not None
    has_more = call.reparametrize is True or missed(outcome.optimum) > request.tolerance
    if is_over or not has_more or not _is_there(first, outcome.optimum, at_first):
        return first, outcome
    second, other = at_first.ready, at_first.outcome
    cost, own = second.problem.objective.cost, first.problem.objective.cost.prices.gradient
    cost.prices = dataclasses.replace(cost.prices, own=own)
    noise = call.rng.standard_normal(
        (2 * request.options.validation.max_draws, first.problem.space.dim)
    )
    with np.errstate(invalid="ignore"):
        gains = second.problem.log_weights(other.optimum.state, noise)
        gains = gains - first.problem.log_weights(outcome.optimum.state, noise)
        gain, error = float(gains.mean()), float(gains.std()) / math.sqrt(len(gains) - 1)
    is_better = gain > 2 * error - request.tolerance  # not if NaN
    words = "not finite"
    if abs(gain) < 1e6:  # not if NaN
        words = f"{abs(gain):.2f} nats {'below' if (gain > 0) is is_better else 'above'}"
    other.optimum.name = BY_MODES
    if not is_better:
        return first, dataclasses.replace(outcome, by_modes=words, second=other.optimum)
    other.optimum.count = outcome.optimum.count
    other.optimum.trace = outcome.optimum.trace.then(other.optimum.trace)
    kept = dataclasses.replace(other, exploration=outcome.exploration, mixture=outcome.mixture)
    return second, dataclasses.replace(kept, by_modes=words, second=outcome.optimum)


def _is_late(call: Any) -> bool:
    """Return whether half of the time limit is over, where nobody has asked for modes."""
    request = call.request
    return call.reparametrize is not True and request.seconds > 0.5 * request.time_limit


def _failed(error: Exception) -> Attempt:
    """Return a fit without an outcome, whose cause a report says: it may be a fault of ours."""
    words = "".join(filter(str.isprintable, str(error).partition("\n")[0]))
    return Attempt(None, None, False, f"not known: {type(error).__name__}: {words[:200]}")


def _is_there(first: Any, optimum: Optimum, at_first: Attempt) -> bool:
    """Return whether a fit by modes has converged at the globals of a Gaussian over all latents."""
    old, new = first.problem.space, at_first.ready.problem.space
    if not at_first.outcome.converged or old.has_model_parameters:
        return False
    stddevs = old.stddevs(optimum.state)
    sd = np.concatenate([stddevs[site.name] for site in at_first.ready.guide.sites])
    apart = (new.mean(at_first.outcome.optimum.state) - old.mean(optimum.state)) / sd
    return bool(np.all(np.abs(apart[~at_first.ready.guide._blocks.mask]) < 1.0))


def _is_of_callback(error: Exception) -> bool:
    """Return whether the user's function has raised it, which may be to end the fit."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is Monitor.after_step.__code__ for frame, _ in frames)
