"""Outcomes of fits, in numbers and in words."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from ngvi.inference.options import EFFORTS, LEVELS, THOROUGH
from ngvi.inference.request import Request
from ngvi.inference.search import Status
from ngvi.inference.tables import Table
from ngvi.inference.verdict.checks import Finding
from ngvi.inference.verdict.optima import Exploration, Optimum

#: Verdicts of a result, the last one of ``update``: the rows before those that were added count as
#: Gaussians.
Verdict = Literal["certified", "local", "not converged", "approximate"]
VERDICTS = CERTIFIED, LOCAL, NOT_CONVERGED, APPROXIMATE = get_args(Verdict)
#: The name of a second fit among the restarts of a result.
BY_MODES = "conditional modes"

#: If rounding exceeds this many tolerances, report bad scaling rather than too few steps.
BEYOND_PRECISION = 1000.0


class Ending(enum.Enum):
    """Why a fit stopped, where that was not its own search."""

    TIME_LIMIT = "time_limit= is reached"
    INTERRUPTED = "interrupted"
    CALLBACK = "callback= has ended the fit"
    NO_START = "no start"


class Restart(NamedTuple):
    """The end of some of the starts of a fit."""

    name: str  #: Name of the first of them.
    bound: float  #: Bound in nats, from independent draws.
    bound_error: float  #: Standard error of the bound.
    num_steps: int
    num_starts: int  #: Starts, drawn alike, that have led there.
    status: str  #: Place beside the result, in words.


@dataclasses.dataclass(frozen=True, eq=False)
class FoundOptimum:
    """An optimum of the bound.

    :ivar params: all parameters of model and guide there, by their names.
    :ivar bound: in nats, from independent draws.
    :ivar bound_error: its standard error.
    :ivar num_starts: how many starts, drawn alike, have led to it; of optima of the same bound the
        first has those of all.
    :ivar is_certified: whether what is left to it is within the tolerance, or 0.1 nats.
    :ivar weight: its part of the posterior, by the bounds of all that are apart from the best; zero
        of one that is not.
    """

    params: dict[str, Any] = dataclasses.field(repr=False)
    bound: float
    bound_error: float
    num_starts: int
    is_certified: bool
    weight: float

    #: Fields that a table shows.
    _fields: ClassVar = ("bound", "bound_error", "num_starts", "is_certified", "weight")


@dataclasses.dataclass
class Outcome:
    """The end of a fit.

    :ivar optimum: the best.
    :ivar optima: all of them, the best first.
    :ivar finding: what is wrong with it, if a check has found something.
    :ivar ending: why the fit stopped, if that was not its own search.
    :ivar by_modes: the bound of the other of two fits, one of them with conditional modes, in
        words; or nothing.
    :ivar mixture: what is known of components, in words; nothing if only one is asked for.
    :ivar search: that has ended there, for whoever goes on with it.
    :ivar second: the optimum of the one of two fits that is not kept.
    :ivar tolerance: what may be left to an optimum, in nats.
    """

    optimum: Optimum
    optima: list[Optimum]
    exploration: Exploration = dataclasses.field(default_factory=Exploration)
    finding: Finding | None = None
    ending: Ending | None = None
    by_modes: str = ""
    mixture: str = ""
    search: Any = None
    second: Optimum | None = None
    tolerance: float = math.inf

    @property
    def verdict(self) -> str:
        """The verdict, one of three words."""
        is_met = self.optimum.is_certified and self.optimum.certificate.is_met(self.tolerance)
        if not is_met or self.finding is not None:
            return NOT_CONVERGED
        return CERTIFIED if self.exploration.is_over else LOCAL

    @property
    def converged(self) -> bool:
        """True if the upper 95 % limit of what is left to this optimum is at most the tolerance."""
        return self.verdict != NOT_CONVERGED

    @property
    def is_endless(self) -> bool:
        """True if something runs to infinity: the posterior is improper, or a limit is met."""
        is_found = self.finding is not None and self.finding.name == "endless"
        return is_found or self.optimum.status is Status.UNBOUNDED

    def below(self, one: Optimum) -> float:
        """Return how far a bound is below the best, in nats; zero where noise can explain it."""
        known, best = one.validation, self.optimum.validation
        gap = best.bound - known.bound
        noise = 2 * math.hypot(best.error, known.error)
        return gap if abs(gap) >= LEVELS.same + noise else 0.0

    def restarts(self) -> Table[Restart]:
        """Return the ends of the starts, the best first."""
        found = [self._restart(one) for one in self.optima]
        if self.second is not None:
            found.append(self._restart(self.second)._replace(status=self.by_modes))
        elif self.by_modes:  # which have not been tried
            found.append(Restart(BY_MODES, math.nan, math.nan, 0, 0, self.by_modes))
        return Table(found)

    def _restart(self, one: Optimum) -> Restart:
        known, gap = one.validation, self.below(one)
        if one is self.optimum:
            words = "kept"
        elif not gap:
            words = "the same bound"
        else:
            where = f"{gap:.3g} nats below" if gap > 0 else f"{-gap:.3g} nats above"
            words = f"{'another optimum, ' * one.is_certified}{where}"
        steps = 0 if one.trace is None else len(one.trace)
        return Restart(one.name, known.bound, known.error, steps, one.count, words)


def in_words(
    outcome: Outcome,
    stddevs: Callable[[], dict[str, np.ndarray]],
    request: Request,
    cause: str = "",
    rounding: float = 0.0,
) -> str:
    """Say why the fit stopped and, if it has not converged, what to try.

    :param stddevs: gives those of the unconstrained latents, by name.
    :param cause: of a bound that is not finite, as far as it is known.
    :param rounding: of the bound, in nats.
    """
    optimum, tolerance = outcome.optimum, request.tolerance
    left = _left(optimum, tolerance)
    if outcome.ending is Ending.NO_START:
        return (
            f"the log density or its gradient is not finite at any start that was tried{cause}. "
            "Check the data for NaN and the support of the likelihood, leave out an init= or a "
            "checkpoint=, or pass init_loc_fn= with a start where the log density is finite"
        )
    if outcome.finding is not None:
        return outcome.finding.sentence
    if outcome.converged:
        upper = in_digits_apart(optimum.certificate.upper, tolerance)
        within = f"the bound is within {upper} nats of its optimum"
        others = outcome.mixture or _others(outcome, request.effort)
        limit = f"95 % limit, tolerance {tolerance:g}"
        beside = optimum.certificate.beside
        return "; ".join(filter(None, [f"{within} ({limit})", beside, _images(optimum), others]))
    if outcome.ending is not None:
        has_begun = math.isfinite(optimum.validation.bound)
        where = f"with the bound {left}" if has_begun else "before the first step"
        return f"{outcome.ending.value} {where}. Go on with fit(..., init=result)"
    if optimum.is_certified:
        return f"{_limit(optimum, tolerance)}. Go on with fit(..., init=result)"
    if BEYOND_PRECISION * tolerance < rounding < math.inf:
        return (
            f"rounding alone changes the bound by {rounding:.2g} nats: data or latents are on a "
            "scale beyond the precision of the numbers, and more steps do not help. Divide the "
            "data by their scale, let the likelihood learn it, or use double precision"
        )
    if optimum.status is Status.NOISE:
        return _noise(optimum, left, tolerance)
    words, sds = _STATUS[optimum.status], stddevs()
    name = max(sds, key=lambda name: float(np.max(sds[name])))
    widest = float(np.max(sds[name]))
    if words is _STUCK:
        jumps = optimum.validation.mismatch > tolerance
        words += _FLAT if widest > LEVELS.certain else _JUMPS if jumps else _ROUNDING
    return words.format(left=left, max_steps=request.max_steps, name=name, widest=widest)


def in_digits_apart(value: float, limit: float) -> str:
    """Return a number with two digits, or as many as it takes to be on its side of a limit."""
    for digits in range(2, 16):
        words = f"{value:.{digits}g}"
        if (float(words) <= limit) == (value <= limit):
            return words
    return repr(value)


def _left(optimum: Optimum, tolerance: float) -> str:
    gap = optimum.certificate.gap
    if not 0 <= gap < math.inf:
        return "an unknown distance below its optimum"
    words = f"an estimated {in_digits_apart(gap, tolerance)} nats below its optimum"
    return f"{words}, which fresh draws have not confirmed" if gap <= tolerance else words


def _limit(optimum: Optimum, tolerance: float) -> str:
    upper = in_digits_apart(optimum.certificate.upper, tolerance)
    words = f"the upper 95 % limit of the gap to the optimum is {upper} nats"
    return f"{words}, more than tolerance={tolerance:g}"


def _noise(optimum: Optimum, left: str, tolerance: float) -> str:
    is_known = tolerance < optimum.certificate.upper < math.inf
    how = _limit(optimum, tolerance) if is_known else f"noise is too large, and the bound is {left}"
    return (
        f"with the largest number of draws, {how}. Raise tolerance; a reparametrised model "
        "(noncentred local latents, say) may have a posterior closer to a Gaussian, and "
        "result.nuts() samples the posterior itself"
    )


_STUCK = "no step along the natural gradient raises the bound, {left}"
#: Words to add there, by what values at draws and standard deviations say.
_JUMPS = (
    ": values at independent draws would raise the bound more than gradients show, so the density "
    "may be discontinuous. Make the model smooth, or continue with result.nuts()"
)
_FLAT = (
    ": unconstrained '{name}' has sd {widest:.2g}, so the optimum may be at infinity, where only "
    "rounding remains. Narrow its prior, or use the limiting model"
)
_ROUNDING = (
    ": only a kink or rounding may remain. Try double precision, data and latents on "
    "scales near one, or init_loc_fn= with another start"
)
#: Why a search has ended short of its optimum.
_STATUS: dict[Status | None, str] = {
    Status.MAX_STEPS: (
        "max_steps={max_steps} are used up with the bound {left}. Go on with "
        "fit(..., init=result), or raise max_steps"
    ),
    Status.RISING: (
        "short steps along a flat direction keep raising the bound, {left} at least. Go on with "
        "fit(..., init=result), or reparametrise the latents that depend on each other along a "
        "curve"
    ),
    Status.STUCK: _STUCK,
    Status.CONTRADICTED: _STUCK,
    Status.OVERFITTED: (
        "the bound rises over the draws of a step, but not over others: the distance to the "
        "optimum is unknown. Densities with kinks or many modes, such as a network's, do this. Go "
        "on with fit(..., init=result), or smooth the density"
    ),
    Status.UNBOUNDED: (
        "the posterior widens without limit (sd {widest:.1g} of unconstrained '{name}'): it is "
        "improper, for instance because the prior is flat and the data do not determine the latent "
        "(a separable logistic regression, a constant likelihood). Give it a proper prior"
    ),
    None: (
        "no start reached an optimum within the gradient budget; the best ended {left}. Go on with "
        "result.nuts(), which samples the posterior itself, or with fit(..., init=result); "
        "effort='thorough' searches longer"
    ),
}


def _images(optimum: Optimum) -> str:
    """Say that optima of the same bound are elsewhere, if so."""
    number = len(optimum.images)
    words = (
        f"other optima with the same bound, as when labels or signs are switched: {number}, "
        f"so this one holds at most 1/{number + 1} of the posterior"
    )
    return words if number else ""


def _others(outcome: Outcome, effort: str) -> str:
    """Say what the search for other optima has found."""
    found, best = outcome.exploration, outcome.optimum
    count = found.num_starts
    counted = [one for one in outcome.optima if one.count]
    gaps = {one: outcome.below(one) for one in counted}
    lower = {one: gap for one, gap in gaps.items() if gap > 0}
    if not count:
        return "other optima have not been looked for"
    starts = f"{best.count or 'none'} of {count} starts reached it{' or these' * bool(best.images)}"
    if found.num_without_optimum:
        starts += f", {found.num_without_optimum} reached no optimum"
    if lower:
        of_them, gap = sum(one.count for one in lower), min(lower.values())
        where = "a lower one" if len(lower) == 1 else f"{len(lower)} lower ones"
        starts += f", {of_them} reached {where}, by {gap:.2g} nats{' or more' * (len(lower) > 1)}"
    rest = count - found.num_without_optimum - sum(one.count for one in counted)
    if rest > 0:  # of the first of two fits, whose optima are not among these
        starts += f", {rest} reached others of the Gaussian over all latents"
    lost = "a higher mode that led to no optimum has a better one, or " * found.has_lost
    chance = f"{lost}as many more would find a better one with probability {found.probability:.2f}"
    if outcome.verdict == CERTIFIED:
        return f"{starts}; {chance}"
    why = "too few reached an optimum" if found.has_few else chance
    starts += f"; others have not been ruled out: {why}"
    if outcome.ending is not None:
        return f"{starts}. The search for them was cut short: {outcome.ending.value}"
    more = f". effort={THOROUGH!r} looks {EFFORTS[THOROUGH]:g} times as long" * (effort != THOROUGH)
    return starts + more
