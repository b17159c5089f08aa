"""Fits with locals by their conditional modes.

How the spread of locals depends on the globals no Gaussian over all latents follows, and its optima
are dear to look for: in the neck of a funnel the log density has no bound. So where the model has
locals that are independent of each other given the rest, a
:class:`~ngvi.guide.reparametrized.ReparametrizedGaussianGuide` is fitted first (:func:`alone`). It
is all there is, if the first starts lead to an optimum that misses little of the evidence, and no
better one is likely.

Else the Gaussian is over all latents, and may be followed by a second fit with locals by their
modes (:func:`tried`), unless the first one misses nothing. What that costs is ``KL(q || p)`` at
most, of which the importance weights of draws tell: their average is above the bound by about as
much, and so is half the variance of their logarithms. Where the larger one is above the tolerance,
the second fit begins at the globals of the first, so that few steps do, and no other optima are
looked for again. Where the fit by modes that came first has converged at the same globals, it is
the second one, and nothing is fitted again. It is kept where its bound, less two standard errors
over the same draws, is above that of the first less the tolerance.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ngvi._lock import as_now
from ngvi._warn import warn
from ngvi.inference.estimate import State
from ngvi.inference.monitor import Monitor
from ngvi.inference.optima import Optimum
from ngvi.inference.options import LEVELS
from ngvi.inference.outcome import CERTIFIED, Ending, Outcome
from ngvi.inference.problem import Problem
from ngvi.inference.request import FitArguments, Request
from ngvi.inference.search import Status

#: The name of a second fit among the restarts of a result.
BY_MODES = "locals by their modes"
#: Ends that other locals would not change.
FINAL = (Status.MAX_STEPS, Status.UNBOUNDED)
#: Arguments of ``fit`` that leave no choice of the latents' coordinates.
NO_CHOICE = "guide", "init", "family", "curvature", "batches"


class Attempt(NamedTuple):
    """A fit with locals by their modes.

    :ivar ready: what was set up for it.
    :ivar is_enough: whether nothing else is needed.
    """

    ready: Any
    outcome: Outcome
    is_enough: bool


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
            f"reparametrize=True is ignored beside {others[0]}=. Leave one of them out; "
            "guide=ReparametrizedGaussianGuide(model, family=...) is for a family of your own."
        )
    return False if others else reparametrize


def _is_default(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value == "auto")


def is_worthwhile(
    reparametrize: bool | str, first: Any, outcome: Outcome, request: Request
) -> bool:
    """Whether a second fit is to be tried.

    :param reparametrize: what :func:`check_reparametrize` returned.
    :param first: what was set up for the first fit.
    """
    problem, optimum = first.problem, outcome.optimum
    is_final = outcome.ending is not None or outcome.finding is not None or optimum.status in FINAL
    if reparametrize is False or is_final or problem.objective.is_subsampled:
        return False
    if reparametrize is True:
        return True
    if request.seconds > 0.5 * request.time_limit:
        return False  # it takes as long again
    return _may_gain(first) and missed(optimum) > request.tolerance


def _may_gain(first: Any) -> bool:
    """Whether there are latents in plates, and others."""
    are_local = [any(plate.size > 1 for plate in site.plates) for site in first.guide.sites]
    # Given parameters of the model's own the map of the locals is one affine map: of latents that
    # all are local a Gaussian family has the same optimum in both coordinates.
    return any(are_local) and not (first.problem.space.has_model_parameters and all(are_local))


def missed(optimum: Optimum) -> float:
    """Return what a Gaussian may miss of the evidence, in nats."""
    found = optimum.validation
    return max(found.gap, 0.5 * found.spread**2)  # of which the first is by few draws


def alone(
    first: Any,
    reparametrize: bool | str,
    set_up: Callable[[], Any],
    search: Callable[[Problem, Callable], Outcome],
    request: Request,
) -> Attempt | None:
    """Return a fit with locals by their modes, which may be all that is needed.

    :param first: what was set up for a Gaussian over all latents; it has the evaluations of both.
    :param reparametrize: what :func:`check_reparametrize` returned.
    :param set_up: the same with a ``ReparametrizedGaussianGuide``.
    :param search: for an optimum, and for others where a function says that it is good.
    :return: nothing where there is none.
    """
    if reparametrize is False or first.problem.objective.is_subsampled or not _may_gain(first):
        return None
    try:
        second = set_up()
    except Exception:  # noqa: BLE001  the other fit tells what is wrong with the model
        return None
    if not second.has_start:
        return None
    most = math.inf if reparametrize is True else LEVELS.worth
    try:
        outcome = search(second.problem, lambda optimum: missed(optimum) < most)
    except Exception as error:  # the other fit goes on, and the second says it if it is asked for
        if _is_of_callback(error):
            raise
        return None
    finally:
        first.problem.objective.cost.share(second.problem.objective.cost)
    optimum, has_none = outcome.optimum, outcome.ending is Ending.NO_START
    is_good = outcome.converged and missed(optimum) < most
    # Without a choice of starts others are not looked for, as little as without a share.
    has_others = request.share > 0 and reparametrize is not True
    is_over = outcome.verdict == CERTIFIED or not has_others
    is_stopped = outcome.ending is not None and not has_none
    return Attempt(second, outcome, (is_good and is_over) or is_stopped)


def tried(
    first: Any,
    outcome: Outcome,
    set_up: Callable[[np.ndarray], Any],
    search: Callable[[Problem, State, int], Outcome],
    rng: np.random.Generator,
    request: Request,
    insists: bool = False,
    at_first: Attempt | None = None,
) -> tuple[Any, Outcome]:
    """Fit again, and compare.

    :param first: what was set up for the first fit.
    :param outcome: of the first fit.
    :param set_up: the same with a ``ReparametrizedGaussianGuide`` whose Newton's method begins at
        the given latent vector.
    :param search: from a state, after so many steps.
    :param request: of the fit; the second may be worse by its tolerance.
    :param insists: whether the user hears why it cannot be tried.
    :param at_first: the fit by modes that came before the first, and is counted there.
    :return: what was set up for the better fit, and its outcome, with evaluations of both.
    """
    optimum, restore = outcome.optimum, as_now()
    if at_first is not None and _is_there(first, optimum, at_first, request):
        is_better, kept = _compared(
            first.problem, outcome, at_first.ready.problem, at_first.outcome, rng, request
        )
        return (at_first.ready if is_better else first), kept
    try:
        second = set_up(first.problem.space.mean(optimum.state))
        if not second.has_start:
            raise second.error
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  the first fit is there
        restore()
        if insists:
            warn(
                "reparametrize=True has had no effect, and the Gaussian over all latents is kept: "
                f"{error}"
            )
        return first, outcome
    try:
        other = search(second.problem, _begun(first, outcome, second), len(optimum.trace))
    except Exception as error:
        if _is_of_callback(error):
            raise
        warn(f"A second fit, with {BY_MODES}, has failed: {error}")
        return first, outcome
    is_better, kept = _compared(first.problem, outcome, second.problem, other, rng, request)
    if insists and not is_better and not other.converged:
        names = ", ".join(repr(name) for group in second.guide._blocks.sites for name in group)
        warn(
            "reparametrize=True has had no effect, and the Gaussian over all latents is kept: the "
            f"fit with {BY_MODES} came to no better end. Maybe {names} have none given the others; "
            "the report of fit(..., guide=ReparametrizedGaussianGuide(model)) tells."
        )
    first.problem.objective.cost.share(second.problem.objective.cost)
    return (second if is_better else first), kept


def _is_there(first: Any, optimum: Optimum, at_first: Attempt, request: Request) -> bool:
    """Whether a second fit from the first one's globals would come to what was found at first."""
    old, new = first.problem.space, at_first.ready.problem.space
    if not at_first.outcome.converged or old.has_model_parameters:
        return False
    stddevs = old.stddevs(optimum.state)
    sd = np.concatenate([stddevs[site.name] for site in at_first.ready.guide.sites])
    apart = (new.mean(at_first.outcome.optimum.state) - old.mean(optimum.state)) / sd
    # A Newton step comes back from within a standard deviation.
    return bool(np.all(np.abs(apart[~at_first.ready.guide._blocks.mask]) < 1.0))


def _is_of_callback(error: Exception) -> bool:
    """Whether the user's function has raised it, which may be to end the fit."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is Monitor.after_step.__code__ for frame, _ in frames)


def _begun(first: Any, outcome: Outcome, second: Any) -> State:
    """Globals of the first fit, independent of each other, and standardised locals; the model's own
    parameters are those of the first fit.
    """
    mask, space, state = second.guide._blocks.mask, first.problem.space, outcome.optimum.state
    stddevs = space.stddevs(state)
    sd = np.concatenate([stddevs[site.name] for site in second.guide.sites])
    mean = np.where(mask, 0.0, space.mean(state))
    new = second.problem.space
    begun = new.at(mean, np.where(mask, 1.0, sd))
    found, initial = space.model_parameters(state), new.model_parameters(begun)
    steps = [found[name] - initial[name] for name in found]
    return new.moved(begun, steps) if steps else begun


def _compared(
    first: Problem,
    outcome: Outcome,
    second: Problem,
    other: Outcome,
    rng: np.random.Generator,
    request: Request,
) -> tuple[bool, Outcome]:
    """Whether the second fit is better, and the outcome of the one that is kept.

    A fit that has converged is not given up for one that has not.
    """
    noise = rng.standard_normal((2 * request.options.validation.max_draws, first.space.dim))
    with np.errstate(invalid="ignore"):
        gains = second.log_weights(other.optimum.state, noise)
        gains = gains - first.log_weights(outcome.optimum.state, noise)
        gain, error = float(gains.mean()), float(gains.std()) / math.sqrt(len(gains) - 1)
    # Not if NaN.
    is_better = gain > 2 * error - request.tolerance and (other.converged or not outcome.converged)
    words = "not finite"
    if abs(gain) < 1e6:  # not if NaN
        words = f"{abs(gain):.2f} nats {'below' if (gain > 0) is is_better else 'above'}"
    if not is_better and not other.converged:
        words += ", not at its optimum"
    other.optimum.name = BY_MODES
    if not is_better:
        return False, dataclasses.replace(
            outcome, by_modes=words, second=other.optimum, ending=other.ending or outcome.ending
        )
    other.optimum.count = outcome.optimum.count
    other.optimum.trace = outcome.optimum.trace.then(other.optimum.trace)
    return True, dataclasses.replace(
        other,
        exploration=outcome.exploration,
        mixture=outcome.mixture,
        by_modes=words,
        second=outcome.optimum,
    )
