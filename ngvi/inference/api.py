"""A fit from its start to its verdict, whatever the PPL."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ngvi._lock import as_now
from ngvi._warn import warn
from ngvi.inference.data_passes import over_minibatches
from ngvi.inference.estimate import State
from ngvi.inference.monitor import OPTIMUM, VERIFYING, Monitor, StoppedByCallback, TimeLimitReached
from ngvi.inference.multistart import MultiStart
from ngvi.inference.options import LEVELS
from ngvi.inference.prices import Timed, num_in_time
from ngvi.inference.problem import Integrated, Problem
from ngvi.inference.request import Request
from ngvi.inference.runs import Run, are_apart
from ngvi.inference.saved.schema import printable
from ngvi.inference.search import Status
from ngvi.inference.tables import Table
from ngvi.inference.trace import Trace
from ngvi.inference.verdict.checks import UNCHECKED, Finding, gradients, support
from ngvi.inference.verdict.optima import Optimum
from ngvi.inference.verdict.outcome import Ending, FoundOptimum, Outcome, in_words
from ngvi.inference.verdict.runaway import runaway
from ngvi.inference.verdict.validation import Validation, integrated


def optimise(
    problem: Problem,
    rng: np.random.Generator,
    request: Request,
    state: State | None = None,
    monitor: Monitor | None = None,
    is_good: Callable[[Optimum], bool] | None = None,
    keep: Callable[[Problem, MultiStart], None] | None = None,
) -> Outcome:
    """Search for the optimum, and leave the guide where the search ended, whatever ends it.

    :param state: begin here, and nowhere else; by default where it is best.
    :param monitor: watches it; by default one of its own.
    :param is_good: see :meth:`MultiStart.solve`.
    :param keep: called after each step, with the problem and its search.
    """
    if request.options.data_passes:
        problem = over_minibatches(problem)
    monitor = monitor or request.monitor()
    problem = problem.replace(objective=Timed(problem.objective, monitor))
    if problem.objective.is_exact:
        problem = problem.replace(objective=Integrated(problem.objective))
    restore = as_now()
    if monitor.phase == VERIFYING:  # of another search
        monitor.phase = OPTIMUM
    search = MultiStart(problem, rng, request, monitor)
    if keep is not None:
        monitor.keep = partial(keep, problem, search)
    ending = None
    try:
        if search.solve(state, is_good) is None:
            ending = Ending.NO_START
    except TimeLimitReached:
        ending = Ending.TIME_LIMIT  # hours of work, maybe: keep what there is
        price, left = problem.objective.cost.prices.draw, request.time_limit - request.seconds
        few = request.options.validation.coarse()
        count = num_in_time(few.min_draws, price, 0.5 * left)
        in_double = count == few.min_draws
        few = dataclasses.replace(few, min_draws=count, max_draws=count, in_double=in_double)
        search.runs.options = dataclasses.replace(request.options, validation=few)
    except StoppedByCallback:
        ending = Ending.CALLBACK
    except KeyboardInterrupt:
        restore()
        if not monitor.num_steps:  # there is nothing to keep
            raise
        ending = Ending.INTERRUPTED
    except BaseException:
        problem.space.write(search.so_far(validates=False).state)
        raise
    monitor.phase = VERIFYING
    limit, monitor.time_limit = monitor.time_limit, math.inf
    outcome = _outcome(search, rng, request, ending)
    monitor.time_limit = limit
    problem.space.write(outcome.optimum.state)
    return outcome


def _outcome(
    search: MultiStart, rng: np.random.Generator, request: Request, ending: Ending | None
) -> Outcome:
    """Return the outcome of a search, with what the checks find."""
    best = search.so_far() if ending is not None else _finished(search, request.tolerance)
    optima = [place for one in search.runs.optima for place in (one, *one.images)]
    optima.sort(key=lambda one: (one is best, one.rank(LEVELS.same)), reverse=True)
    outcome = Outcome(best, optima, search.exploration, ending=ending, search=search)
    outcome.tolerance = request.tolerance
    if best.status is Status.OPTIMUM:
        is_late = ending is Ending.TIME_LIMIT and search.runs.checked[0] is not best.state
        outcome.finding = UNCHECKED if is_late else search.check(best)
        if outcome.finding is not None and not math.isnan(outcome.finding.error):
            known = dataclasses.replace(best.validation, error=outcome.finding.error)
            best.validation = known
        elif outcome.finding is None and search.problem.objective.is_exact:
            bound, error = integrated(search.problem, best.state, rng)
            best.validation = dataclasses.replace(best.validation, bound=bound, error=error)
    elif ending is None:
        words = request.options.checks and runaway(search.problem, best.state)
        context = search.runs.context
        outcome.finding = Finding("endless", words) if words else support(context, best)
        if outcome.finding is None and best.status is Status.CONTRADICTED:
            outcome.finding = gradients(context, best)
    return outcome


def _finished(search: MultiStart, tolerance: float) -> Optimum:
    """Return the best optimum, followed to the fit's tolerance."""
    best = search.runs.best
    if best.is_certified and not best.certificate.is_met(tolerance):
        search.runs.optima.remove(best)
        end = search.runs.refine(Run(best.name, best.search, best.validation))
        end.count, end.images = end.count + best.count, best.images + end.images
    return search.runs.best


def no_start(problem: Problem) -> Outcome:
    """Return the outcome of a fit without any start."""
    initial = Optimum(problem.space.initial, Validation(-np.inf, np.nan))
    return Outcome(initial, [initial], ending=Ending.NO_START)


def account(
    outcome: Outcome, problem: Problem, request: Request, error: Exception | str | None = None
) -> dict[str, Any]:
    """Return a result's account of its fit, by field; warn if it has not converged.

    :param error: why the model has no start, if it has none.
    """
    best, why = outcome.optimum, error or problem.objective.fault
    trace = Trace() if best.trace is None else best.trace
    reason = in_words(
        outcome,
        lambda: problem.space.stddevs(best.state),
        request,
        f" ({why})" if why else "",
        problem.rounding(best.validation.bound),
    )
    if not outcome.converged:
        warn(f"fit has not converged: {reason}.")
    return {
        "trace": trace,
        "validation": None if problem.objective.is_subsampled else best.validation,
        "restarts": outcome.restarts(),
        "verdict": outcome.verdict,
        "reason": printable(" ".join(reason.split())),
        "cost": dataclasses.replace(problem.objective.cost),
        "seconds": request.seconds,
    }


#: Optima that a result keeps.
NUM_KEPT = 8


def found_optima(outcome: Outcome, problem: Any) -> tuple[FoundOptimum, ...]:
    """Return the optima of a result, the best first.

    :param problem: whose space has a method ``params`` besides.
    """
    found = [one for one in outcome.optima if math.isfinite(one.validation.bound)][:NUM_KEPT]
    logs = np.array([one.validation.bound for one in found])
    is_mixture = problem.space.noise_dim > problem.space.dim
    for index, one in enumerate(found[1:], 1):
        # Others of the model's own parameters are of another posterior; a mixture is all of it.
        is_part = not problem.space.has_model_parameters and not is_mixture
        if not is_part or not are_apart(problem, found[0].state, one.state):
            logs[index] = -math.inf
    return Table(
        FoundOptimum(
            problem.space.params(one.state),
            one.validation.bound,
            one.validation.error,
            one.count,
            one.is_certified and one.certificate.is_met(max(outcome.tolerance, LEVELS.same)),
            float(weight),
        )
        for one, weight in zip(found, np.exp(logs - np.logaddexp.reduce(logs)), strict=True)
    )
