"""Prices of evaluations, measured at those that a fit makes anyway, and a limit of their time.

Each phase of a fit, and each call of its result, knows before it begins what it will take: its
evaluations by their price. It takes fewer draws where that is more than its part of what the fit
has taken.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import Any

import numpy as np

from ngvi._warn import warn
from ngvi.inference.draws.proposals import NUM_DRAWS
from ngvi.inference.monitor import LOGGER, Monitor
from ngvi.inference.problem import Cost, Forwarding, Objective

#: Part of a fit's seconds that a phase may take unasked, and the seconds that any may.
PART, FREE = 0.2, 1.0
#: Draws that are made whatever part of the fit's seconds they take, and whatever time is left.
FEW_DRAWS, FEWEST_DRAWS = 200, 8
#: Seconds of a run of the model, or of a gradient, of which a user hears, and how many a fit takes.
SLOW, OF_A_FIT = 2.0, 1000
#: Seconds that a call, or a phase, may take beyond those of the fit without a word.
UNSAID = 10.0


def warn_of_slow(seconds: float, at_least: str = "") -> None:
    """Warn of what a fit will take, if that is long.

    :param seconds: of a run of the model, or of a gradient.
    :param at_least: words, of one that has not ended.
    """
    if seconds > SLOW:
        warn(
            f"A run of the model takes {at_least}{seconds:.3g} s, and a fit takes {OF_A_FIT:,} of "
            f"them and more, {seconds * OF_A_FIT / 3600:.2g} hours. Vectorise its loops, give "
            "time_limit= or family='diagonal', or learn from minibatches by SVI(model, guide, "
            "IVON(), NaturalELBO(1, 'stein'))."
        )


def say_price(
    result: Any,
    what: str,
    evaluations: float,
    gradients: float = 0.0,
    programs: int = 1,
    of_run: float = 0.0,
) -> None:
    """Log what a call will take, and warn where that is longer than the fit took.

    :param result: a ``FitResult``.
    :param evaluations: of the log density, at most.
    :param gradients: besides these.
    :param programs: to be compiled, at most.
    :param of_run: seconds of a run of the model, where each evaluation is a run of its own.
    """
    prices = result.cost.prices
    seconds = evaluations * max(_known(prices.draw), of_run) + gradients * _known(prices.gradient)
    compiling = programs * _known(prices.program)
    evaluations += gradients
    words = "%s: at most %d runs of the model, which take "
    words += "%.2g s" if seconds > FREE else "less than a second%.0s"
    words += ", and compilation as much as %.2g s" if compiling else "%.0s"
    LOGGER.info(words, what, evaluations, seconds, compiling)
    if seconds > max(result.seconds, UNSAID):
        warn(
            f"{what} runs the model up to {evaluations:,.0f} times, about {seconds:,.0f} s where "
            f"the fit took {result.seconds:,.0f} s: ask for less, or vectorise the model."
        )


def say_compilation(result: Any, what: str, programs: int) -> None:
    """Log what the compilation of as many programs takes at most, before a call knows the rest."""
    if seconds := programs * _known(result.cost.prices.program):
        LOGGER.info("%s: compilation takes as much as %.2g s", what, seconds)


def num_affordable(result: Any, wanted: int, left: float = math.inf) -> int:
    """Return how many draws of a result are evaluated: as many as wanted, or as its part pays for.

    :param result: a ``FitResult``, which has their price.
    :param left: seconds of its time limit.
    """
    price, allowed = result.cost.prices.draw, max(PART * result.seconds, FREE)
    if wanted * price > allowed:  # not if the price is not known
        wanted = min(wanted, max(FEW_DRAWS, int(allowed / price)))
    return num_in_time(wanted, price, left)


def num_in_time(wanted: int, price: float, left: float) -> int:
    """Return how many draws there is time for, and a few at any price.

    :param price: seconds of one, NaN if it is not known.
    :param left: seconds.
    """
    return min(wanted, max(FEWEST_DRAWS, int(left / price))) if wanted * price > left else wanted


class Timed(Forwarding):
    """An objective that begins what will end in time, and notes what its evaluations take.

    A step is one of many evaluations where ascents, validations and checks are at work, none of
    which counts steps. A last validation and the report have their part of the time.

    :param monitor: raises :class:`~ngvi.inference.monitor.TimeLimitReached`.
    """

    def __init__(self, inner: Objective, monitor: Monitor) -> None:
        super().__init__(inner)
        self._monitor = monitor

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in ("bound", "gradient", "log_density", "in_double"):
            return found

        def timed(state: Any, at: Any) -> Any:
            amounts, cost = _amounts(name, at), self.inner.cost
            needed = [count * getattr(cost.prices, kind) for kind, count in amounts.items()]
            self._monitor.look_at_clock(_known(*needed) + self._of_report())
            before, start = self.inner.num_programs, time.perf_counter()
            answer = found(state, at)
            seconds = time.perf_counter() - start
            if programs := self.inner.num_programs - before:
                mean = float(np.nanmean([cost.prices.program, seconds / programs]))
                cost.prices = dataclasses.replace(cost.prices, program=mean)
            else:
                call = {"call": seconds} if name == "gradient" else {}
                _note(cost, {kind: seconds / count for kind, count in amounts.items()} | call)
            return answer

        return timed

    def _of_report(self) -> float:
        """Return the seconds of a time limit that are the last validation's and the report's."""
        price, most = _known(self.inner.cost.prices.draw), PART * self._monitor.time_limit
        return sum(min(count * price, most) for count in (FEW_DRAWS, NUM_DRAWS))


def _amounts(name: str, at: Any) -> dict[str, int]:
    """Return how many evaluations of each kind a call makes."""
    if name == "bound":
        return {"group": len(at), "gradient": sum(len(group.points.weights) for group in at)}
    kind = {"log_density": "value", "gradient": "gradient"}.get(name)
    return {kind: len(at)} if kind and len(at) else {}


def _known(*seconds: float) -> float:
    """Return the least of these that are known, or zero."""
    return min((one for one in seconds if one > 0), default=0.0)


def _note(cost: Cost, seen: dict[str, float]) -> None:
    """Note the least that an evaluation has taken, as other work on the machine adds to it."""
    before = cost.prices
    less = {kind: new for kind, new in seen.items() if not getattr(before, kind) <= new}
    cost.prices = dataclasses.replace(before, **less)
    if math.isnan(before.draw):  # the first
        warn_of_slow(cost.prices.draw)
