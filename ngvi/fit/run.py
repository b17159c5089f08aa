"""One fit from its start to its verdict, whatever the PPL."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ngvi.fit.engine import Engine, Place
from ngvi.fit.outcome import Outcome, Reason, in_words
from ngvi.fit.progress import Progress
from ngvi.fit.search import MIN_POINTS, Search
from ngvi.fit.settings import Settings
from ngvi.fit.start import find_other_start, find_start
from ngvi.fit.stochastic import StochasticSearch


def first_that_starts(
    set_up: Callable[[Any], Any],
    starts: Iterable[Any],
    error_type: type[Exception],
    nan_arguments: Callable[[], str],
) -> tuple[Any, Exception | None]:
    """The first set-up that succeeds.

    :param set_up: sets up guide and engine for one of the starts.
    :param starts: ways to initialise the guide.
    :param error_type: the error of a start that is none.
    :param nan_arguments: which of the model's arguments hold NaN, in words.
    :return: what was set up, or None; and the error of the first start that failed.
    :raises ValueError: if the model cannot run.
    """
    error = None
    for start in starts:
        try:
            return set_up(start), error
        except error_type as raised:
            error = error or raised
        except ValueError as raised:
            where = nan_arguments()
            if not where:
                raise
            reason = f"The model cannot run, and its {where} holds NaN: {raised}"
            raise ValueError(reason) from raised
    return None, error


def in_arguments(args: tuple, kwargs: dict[str, Any], holds: Callable[[Any], bool]) -> str:
    """Which of a model's arguments hold something, in words."""
    named = {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}
    return ", ".join(name for name, value in named.items() if holds(value))


def check_coordinates(
    name: str, old: dict[str, tuple] | None, new: dict[str, tuple], dim: int
) -> None:
    """Raise a ``ValueError`` if ``init=`` holds a Gaussian of another kind.

    :param name: of the guide's part.
    :param old: the shapes of the earlier result's coordinates, or None if it has none of the name.
    :param new: the shapes of the model's.
    :param dim: the number of the model's latents.
    """
    if old != new:
        count = "no" if not old or "loc" not in old else old["loc"][0]
        raise ValueError(
            f"init= holds {count} latents for '{name}', and the model has {dim}: it must be the "
            "result of a model with the same latents, and of the same family."
        )


def search(
    engine: Engine,
    rng: np.random.Generator,
    settings: Settings,
    progress_bar: bool,
    place: Place | None = None,
) -> Outcome:
    """Search for the optimum, and leave the guide where the search ended, whatever ends it.

    :param place: begin here, and nowhere else; by default where it is best.
    """
    is_noisy = engine.parameters.has_ordinary or engine.evaluator.is_subsampled
    kind = StochasticSearch if is_noisy else Search
    with Progress(settings.max_steps, progress_bar) as progress:
        one = kind(engine, rng, settings, progress)
        try:
            outcome = _searched(one, place)
        except KeyboardInterrupt:
            # Hours of work, maybe: keep what there is.
            remaining = (one.trace.distances or [math.inf])[-1]
            outcome = Outcome(one.place, Reason.INTERRUPTED, remaining, one.trace)
        except BaseException:
            engine.parameters.write(one.place)
            raise
    engine.parameters.write(outcome.place)
    return outcome


def _searched(one: Search | StochasticSearch, place: Place | None) -> Outcome:
    engine, rng, trace = one.engine, one.rng, one.trace
    num_groups = math.ceil(MIN_POINTS / (2 * engine.parameters.dim + 1))
    start = find_start(engine, rng, num_groups, place)
    if start is None:
        return no_start(engine)
    outcome = one.run(*start)
    if outcome.reason is not Reason.STUCK or place is not None:
        return outcome
    # A hopeless start: begin where the log density is high, if somewhat narrow.
    start = find_other_start(engine, rng, num_groups)
    if start is None:
        return outcome
    steps, loss = len(trace), trace.last_loss
    one.begin_again()
    again = one.run(*start)
    if again.converged or (len(trace) > steps and trace.last_loss < loss):
        return again
    trace.cut(steps)  # the way to the place that is returned
    return outcome


def no_start(engine: Engine) -> Outcome:
    """What a fit without any start comes to."""
    return Outcome(engine.parameters.initial, Reason.NOT_FINITE)


def account(
    outcome: Outcome,
    engine: Engine,
    settings: Settings,
    start_time: float,
    error: Exception | None = None,
) -> dict[str, Any]:
    """What a result tells of a fit, by its fields; a fit that has not converged also warns.

    :param start_time: of the fit, by ``time.perf_counter()``.
    :param error: why the model has no start, if it has none.
    """
    reason = in_words(
        outcome,
        lambda: engine.parameters.stddevs(outcome.place),
        settings.tolerance,
        settings.max_steps,
        "" if error is None else f" ({error})",
    )
    if not outcome.converged:
        warnings.warn(f"fit has not converged: {reason}.", stacklevel=3)
    return {
        "trace": outcome.trace,
        "converged": outcome.converged,
        "reason": reason,
        "num_steps": len(outcome.trace),
        "num_gradients": engine.evaluator.num_gradients,
        "num_hessian_products": engine.evaluator.num_hessian_products,
        "seconds": time.perf_counter() - start_time,
    }
