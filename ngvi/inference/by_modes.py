"""A second fit, with locals by their conditional modes, where the first one leaves a gap.

How the spread of locals depends on the globals no Gaussian over all latents follows, and the
importance weights of its draws tell: by how much their average, an estimate of the evidence, is
above the bound. Where the gap is ten times the tolerance, and the model has locals that are
independent of each other given the rest, a
:class:`~ngvi.guide.reparametrized.ReparametrizedGaussianGuide` is fitted as well. It begins at the
globals of the first fit, so that few steps do and no other modes are looked for again. What has
the better bound over the same draws is kept.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ngvi.inference.audit import MAX_DRAWS, log_weights
from ngvi.inference.engine import Engine, Place
from ngvi.inference.outcome import BY_MODES, Ended, Outcome, Reason
from ngvi.inference.settings import Settings

#: A gap of so many tolerances is worth a second fit. Of eight schools, Neal's funnel, the seeds of
#: the BUGS examples, radon with slopes, and epilepsy it was 0.78, 0.66, 0.57, 1.02 and 1.12 nats,
#: and the second fit gained 1.16, 1.85, 0.54, 1.79 and 1.05. Of radon with intercepts only it was
#: 0.33, of eight schools without a funnel 0.2 to 0.5 (gained 0.13 to 0.17): the second fit takes
#: twice the time of the first, and its Gaussian is over other coordinates.
WORTH = 10.0
#: Ends that the user has brought about, or that other locals would not change.
FINAL = (
    Reason.MAX_STEPS,
    Reason.TIME_LIMIT,
    Reason.INTERRUPTED,
    Reason.UNBOUNDED,
    Reason.NOT_FINITE,
    Reason.EDGE,
    Reason.JUMP,
    Reason.ROUNDED,
)
#: Arguments of ``fit`` that leave no choice of the latents' coordinates.
NO_CHOICE = "guide", "init", "family", "create_plates", "curvature", "batches", "process_group"
_COUNTERS = "num_gradients", "num_hessian_products", "num_values"


def check_reparametrize(given: dict[str, Any]) -> bool | str:
    """``fit``'s argument: False, True or ``"auto"``.

    :param given: all arguments of ``fit``.
    :return: the same; False beside one that leaves no choice.
    :raises ValueError: for anything else, or for True beside one of these.
    """
    reparametrize = given["reparametrize"]
    if not (isinstance(reparametrize, bool) or reparametrize == "auto"):
        raise ValueError(f"reparametrize must be 'auto', True or False, got {reparametrize!r}.")
    others = [name for name in NO_CHOICE if not _is_default(given.get(name))]
    if others and reparametrize is True:
        raise ValueError(
            f"reparametrize=True is ignored beside {others[0]}=. Leave one of them out; "
            "guide=ReparametrizedGaussianGuide(model, family=...) is for a family of your own."
        )
    return False if others else reparametrize


def _is_default(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value == "auto")


def is_worthwhile(
    reparametrize: bool | str, first: Any, outcome: Outcome, tolerance: float
) -> bool:
    """Whether a second fit is to be tried.

    :param reparametrize: what :func:`check_reparametrize` returned.
    :param first: what was set up for the first fit.
    :param outcome: of that.
    :param tolerance: of the fit, in nats.
    """
    engine = first.engine
    if reparametrize is False or outcome.reason in FINAL or outcome.audit is None:
        return False
    if reparametrize is True:
        return True
    are_local = [any(plate.size > 1 for plate in site.plates) for site in first.guide.sites]
    # Given parameters of the model's own the map of the locals is one affine map: of latents that
    # all are local a Gaussian family has the same optimum in both coordinates.
    may_gain = not (engine.parameters.has_ordinary and all(are_local))
    is_whole = not engine.evaluator.is_subsampled
    return any(are_local) and may_gain and is_whole and outcome.audit.gap > WORTH * tolerance


def tried(
    first: Any,
    outcome: Outcome,
    set_up: Callable[[np.ndarray], Any],
    search: Callable[[Engine, Place, int], Outcome],
    rng: np.random.Generator,
    insists: bool = False,
) -> tuple[Any, Outcome]:
    """Fit again, and compare.

    :param first: what was set up for the first fit.
    :param outcome: of the first fit.
    :param set_up: the same with a ``ReparametrizedGaussianGuide`` whose Newton's method begins at
        the given latent vector.
    :param search: from a place, after so many steps.
    :param insists: whether the user is told why it cannot be tried.
    :return: what was set up for the better fit, and its outcome, with evaluations of both.
    """
    mean = first.engine.parameters.mean(outcome.place)
    try:
        second = set_up(mean)
        if not second.has_start:
            raise second.error
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  the first fit is there
        if insists:
            warnings.warn(
                "reparametrize=True has had no effect, and the Gaussian over all latents is kept: "
                f"{error}",
                stacklevel=4,
            )
        return first, outcome
    try:
        other = search(second.engine, _begun(first, outcome, second), len(outcome.trace))
    except Exception as error:
        if _is_of_callback(error):
            raise
        warnings.warn(f"A second fit, with {BY_MODES}, has failed: {error}", stacklevel=4)
        return first, outcome
    is_better, outcome = _compared(first.engine, outcome, second.engine, other, rng)
    kept = second if is_better else first
    if insists and not is_better and other.reason is not Reason.CONVERGED:
        names = ", ".join(repr(name) for group in second.guide._blocks.sites for name in group)
        warnings.warn(
            "reparametrize=True has had no effect, and the Gaussian over all latents is kept: the "
            f"fit with {BY_MODES} came to no better end. Maybe {names} have none given the others; "
            "the report of fit(..., guide=ReparametrizedGaussianGuide(model)) tells.",
            stacklevel=4,
        )
    for name in _COUNTERS:
        both = sum(getattr(one.engine.evaluator, name) for one in (first, second))
        setattr(kept.engine.evaluator, name, both)
    return kept, outcome


def _is_of_callback(error: Exception) -> bool:
    """Whether the user's function has raised it, which may be to end the fit."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is Settings.after_step.__code__ for frame, _ in frames)


def _begun(first: Any, outcome: Outcome, second: Any) -> Place:
    """Globals of the first fit, independent of each other, and standardised locals; the model's own
    parameters are those of the first fit.
    """
    mask, parameters = second.guide._blocks.mask, first.engine.parameters
    stddevs = parameters.stddevs(outcome.place)
    sd = np.concatenate([stddevs[site.name] for site in second.guide.sites])
    mean = np.where(mask, 0.0, parameters.mean(outcome.place))
    place = second.engine.parameters.at(mean, np.where(mask, 1.0, sd))
    own, initial = parameters.own(outcome.place), second.engine.parameters.own(place)
    steps = [new - old for new, old in zip(own, initial, strict=True)]
    return second.engine.parameters.moved(place, steps) if steps else place


def _compared(
    first: Engine, outcome: Outcome, second: Engine, other: Outcome, rng: np.random.Generator
) -> tuple[bool, Outcome]:
    """Whether the second fit is better, and the outcome of the one that is kept.

    A fit that has converged is not given up for one that has not.
    """
    noise = rng.standard_normal((2 * MAX_DRAWS, first.parameters.dim))
    with np.errstate(invalid="ignore"):
        gains = log_weights(second, other.place, noise) - log_weights(first, outcome.place, noise)
        gain, error = float(gains.mean()), float(gains.std()) / math.sqrt(len(gains) - 1)
    is_better = gain > 2 * error and (other.converged or not outcome.converged)  # not if NaN
    words = "not finite"
    if abs(gain) < 1e6:  # not if NaN
        words = f"{abs(gain):.2f} nats {'below' if (gain > 0) is is_better else 'above'}"
    if not is_better and not other.converged:
        words += ", not at its optimum"
    bounds = (other.audit.bound, other.audit.error) if other.audit else (math.nan, math.nan)
    ended = Ended(BY_MODES, *bounds, len(other.trace), "kept" if is_better else words)
    if not is_better:
        return False, dataclasses.replace(outcome, starts=(*outcome.starts, ended))
    starts = tuple(
        start._replace(kept=words) if start.kept == "kept" else start for start in outcome.starts
    )
    reason = other.reason
    if other.converged and outcome.reason is Reason.MODES:
        reason = Reason.MODES  # the same posterior, of which no more is known
    return True, dataclasses.replace(
        other,
        reason=reason,
        trace=outcome.trace.then(other.trace),
        starts=(ended, *starts),
        seen=outcome.seen,
        seen_own=outcome.seen_own,
        num_tops=outcome.num_tops,
        has_more=outcome.has_more,
        has_more_as_high=outcome.has_more_as_high,
    )
