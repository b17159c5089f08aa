"""How a search ended, and what that means in words."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ngvi.inference.audit import Audit
from ngvi.inference.engine import Place
from ngvi.inference.trace import Trace


class Reason(enum.Enum):
    """Why a search stopped."""

    CONVERGED = enum.auto()
    MAX_STEPS = enum.auto()
    NOISE = enum.auto()
    STUCK = enum.auto()
    UNBOUNDED = enum.auto()
    NOT_FINITE = enum.auto()
    INTERRUPTED = enum.auto()
    TIME_LIMIT = enum.auto()
    RIDGE = enum.auto()  # short steps keep gaining
    JUMP = enum.auto()  # values contradict gradients
    RARE = enum.auto()  # a few draws make the bound hardly known
    EDGE = enum.auto()  # draws have no density
    ROUNDED = enum.auto()  # single precision is far off
    MODES = enum.auto()  # there are other optima, and only one start led to this one
    STALLED = enum.auto()  # fixed draws: steps that gain nothing
    OVERFITTED = enum.auto()  # fixed draws: the bound over others does not rise
    TRIED = enum.auto()  # as many steps as were to be tried


def after_trial(gain: float, error: float, tolerance: float) -> Reason | None:
    """What trial steps say of an optimum that was claimed before them; None if they gain.

    :param gain: of the trial, with its standard error; see
        :func:`~ngvi.inference.audit.difference`.
    """
    if gain - error > 0.25 * tolerance:
        return None
    return Reason.CONVERGED if gain + 2 * error <= 2 * tolerance else Reason.NOISE


#: What the end of another start says of the result.
THE_SAME, ANOTHER = "the same bound", "another optimum"
#: The name of a second fit among the starts of a result; see :mod:`ngvi.inference.by_modes`.
BY_MODES = "locals by their modes"


class Ended(NamedTuple):
    """Where one start of a fit ended."""

    name: str  #: of the start, in words
    bound: float  #: in nats, from fresh draws
    bound_error: float  #: its standard error
    num_steps: int
    kept: str  #: in words: what it says of the result


@dataclass
class Outcome:
    """Where a search ended.

    :ivar place: the parameters.
    :ivar reason: why it stopped there.
    :ivar remaining: how far the bound still is from its optimum, estimated in nats.
    :ivar trace: the steps.
    :ivar rough: the place at the end of the first stage, if there was one.
    :ivar audit: what ordinary draws say of the place.
    :ivar has_jump: whether its leg went by values alone, and the log density jumps there.
    :ivar starts: where each start ended, this one first.
    :ivar has_ordinary: whether the model has parameters of its own.
    :ivar seen: how many other points led to the same optimum.
    :ivar seen_own: of these, with other parameters of the model's own.
    :ivar num_tops: how many maxima of the log density, of different height, climbs ended at.
    :ivar has_more: whether others would end at ever new ones.
    :ivar has_more_as_high: whether there are many as high as that of the best, and maybe more.
    :ivar is_cut: whether a higher one was not followed, for want of steps.
    """

    place: Place
    reason: Reason
    remaining: float = math.inf
    trace: Trace = field(default_factory=Trace)
    rough: Place = None
    audit: Audit | None = None
    has_jump: bool = False
    starts: tuple[Ended, ...] = ()
    seen: int = 0
    seen_own: int = 0
    num_tops: int = 0
    has_more: bool = False
    has_more_as_high: bool = False
    is_cut: bool = False
    has_ordinary: bool = False

    @property
    def converged(self) -> bool:
        """Whether the search did what it was asked to."""
        return self.reason is Reason.CONVERGED


#: Rounding of the bound of so many tolerances is the scale's fault, not that of too few steps.
BEYOND_PRECISION = 1000.0


def in_words(
    outcome: Outcome,
    stddevs: Callable[[], dict[str, np.ndarray]],
    tolerance: float,
    max_steps: int,
    unusable: str = "",
    rounding: float = 0.0,
) -> str:
    """One or two sentences: why the fit stopped and, if it has not converged, what to try.

    :param stddevs: gives those of the unconstrained latents, by name.
    :param unusable: for :attr:`Reason.NOT_FINITE`, what is known of its cause.
    :param rounding: of the bound, in nats.
    """
    ended_early = outcome.reason in (
        Reason.MAX_STEPS,
        Reason.STUCK,
        Reason.STALLED,
        Reason.TRIED,
    )
    if ended_early and BEYOND_PRECISION * tolerance < rounding < math.inf:
        return (
            f"rounding alone changes the bound by {rounding:.2g} nats: data or latents are on a "
            "scale beyond the precision of the numbers, and more steps do not help. Divide the "
            "data by their scale, let the likelihood learn it, or use double precision"
        )
    left = "an unknown distance below its optimum"
    if outcome.remaining >= 0:  # else rounding alone has estimated it
        left = f"an estimated {outcome.remaining:.2g} nats below its optimum"
    match outcome.reason:
        case Reason.CONVERGED:
            # The last trial may have gained less than is claimed, and its error is in the figure.
            told = " as far as trial steps can tell" if outcome.remaining > tolerance else ""
            return (
                f"the bound is within {outcome.remaining:.2g} nats of its optimum{told} "
                f"(tolerance {tolerance:g}){_others(outcome)}"
            )
        case Reason.MAX_STEPS:
            return (
                f"max_steps={max_steps} are used up with the bound {left}. Go on with "
                f"fit(..., init=result), or raise max_steps{_wide(stddevs())}"
            )
        case Reason.NOISE if outcome.has_ordinary and _is_without_noise(outcome, tolerance):
            return (
                "no step of the model's own parameters gains more, though their gradient and "
                f"curvature promise {outcome.remaining:.2g} nats, more than "
                f"tolerance={tolerance:g}: a plateau or a ridge, as of a network's weights. Go on "
                "with fit(..., init=result), or begin with other values of its parameters"
            )
        case Reason.NOISE:
            return (
                f"with the most draws that fit takes the bound is {left}, more than "
                f"tolerance={tolerance:g}. Raise tolerance; a reparametrised model (noncentred "
                "local latents, say) may have a posterior closer to a Gaussian"
            )
        case Reason.RIDGE:
            return (
                f"short steps along a flat direction keep raising the bound, {left} at least. Go "
                "on with fit(..., init=result), or reparametrise the latents that depend on each "
                "other along a curve"
            )
        case Reason.JUMP:
            return (
                "the log density at independent draws contradicts its gradients: it jumps, as "
                "with a threshold or a rounding of latents in the model, or its gradients are cut "
                f"off; values promise {outcome.remaining:.2g} nats that gradients do not see. "
                "Make the model smooth (a sigmoid for a threshold, a sum over a discrete latent), "
                "or the bound is not at its optimum"
            )
        case Reason.RARE:
            error = math.nan if outcome.audit is None else outcome.audit.error
            return (
                "at a few draws of the posterior the log density is so much lower than at all "
                f"others that the bound is known to {error:.2g} nats only: a support that ends "
                "within the reach of the latents, or a penalty in its place. Gradients at other "
                "draws see nothing of it, and a narrower posterior may be better. Make the "
                "likelihood fall smoothly there, or bound the latents"
            )
        case Reason.EDGE:
            return (
                "independent draws of the posterior meet points where the log density is not "
                "finite, so that the bound is minus infinity: a likelihood that overflows, or a "
                "support that ends within the reach of the latents. Bound or rescale these, or "
                "use double precision"
            )
        case Reason.ROUNDED:
            return (
                "single precision computes another log density than the model's: at draws of this "
                f"posterior it is {outcome.remaining:.3g} nats off, as where large numbers cancel. "
                "Use double precision (jax.config.update('jax_enable_x64', True), or tensors of "
                "torch.float64), or start elsewhere with init_loc_fn="
            )
        case Reason.TRIED:
            return (
                f"of several starts none came to its optimum; the best was left off {left}. Go on "
                "with fit(..., init=result), or raise max_steps"
            )
        case Reason.MODES:
            other = "other values of its parameters" if outcome.has_ordinary else "init_loc_fn="
            seen = outcome.seen_own if outcome.has_ordinary else outcome.seen
            led = f"{1 + seen} starts" if seen else "one start"
            why = f"only {led} led to it"
            if outcome.has_more_as_high and seen:
                why = "the log density has maxima as high that hardly any climb has met"
            elif outcome.is_cut:
                why = "no steps were left to follow higher points (raise max_steps)"
            return (
                "the bound has several optima, of which this is the best that was found (within "
                f"{outcome.remaining:.2g} nats), but {why}: there may be better "
                "ones, see result.starts. Compare fits with other seeds, or begin near the right "
                f"one with {other}"
            )
        case Reason.OVERFITTED:
            return (
                "the bound rises over the draws that a step learns from, but not over others, and "
                "fresh draws at every step have gained no more: how far the optimum is is not "
                "known. A density with kinks or many modes, as a network's, may be so: go on with "
                "fit(..., init=result), or smooth it"
            )
        case Reason.STUCK | Reason.STALLED:
            return (
                f"no step along the natural gradient raises the bound, {left}: the log density may "
                "be discontinuous, or rounding dominates. Try double precision, "
                "data and latents on scales near one, or init_loc_fn= with another start"
            )
        case Reason.UNBOUNDED:
            name, widest = _widest(stddevs())
            return (
                f"the posterior widens without limit (sd {widest:.1g} of "
                f"unconstrained '{name}'): it is improper, as with a flat prior and data that do "
                "not determine the latent (a separable logistic regression, a constant "
                "likelihood). Give it a proper prior"
            )
        case Reason.INTERRUPTED:
            return f"interrupted with the bound {left}. Go on with fit(..., init=result)"
        case Reason.TIME_LIMIT:
            return f"time_limit= is reached with the bound {left}. Go on with fit(..., init=result)"
        case Reason.NOT_FINITE:
            return (
                f"the log density or its gradient is not finite at any start that was tried"
                f"{unusable}. Check the data for NaN and the support of the likelihood, or pass "
                "init_loc_fn= with a start where the log density is finite"
            )
    raise ValueError(outcome.reason)


#: Of a tolerance or more: a bound that draws leave unknown to less is not noise.
SILENT = 0.1


def _is_without_noise(outcome: Outcome, tolerance: float) -> bool:
    """Whether the draws hardly change the bound, so that they cannot hide where the optimum is."""
    return outcome.audit is not None and outcome.audit.error < SILENT * tolerance


def _others(outcome: Outcome) -> str:
    """What is known of other optima."""
    own = _own(outcome) if outcome.has_ordinary else ""
    return own + _of_latents(outcome, outcome.seen - outcome.seen_own)


def _own(outcome: Outcome) -> str:
    """What is known of other optima of the model's own parameters."""
    if outcome.seen_own:
        count = outcome.seen_own
        starts = "another start" if count == 1 else f"{count} other starts"
        return f"; {starts} of the model's own parameters led there too"
    return (
        "; of the optima of the model's own parameters, a network's say, it is the one that "
        "their start led to: there may be better ones"
    )


def _of_latents(outcome: Outcome, seen: int) -> str:
    """What is known of other optima, of the same parameters of the model's own.

    :param seen: points that led to the same optimum.
    """
    others = [start for start in outcome.starts if start.kept.startswith(ANOTHER)]
    if others:
        if len(others) == 1:
            return "; there is another optimum, lower: see result.starts"
        return f"; there are others, lower, at which {len(others)} starts ended: see result.starts"
    tops = ""
    if outcome.num_tops > 1:
        tops = f"; the log density has {outcome.num_tops} maxima of different height, or more"
    if seen > 0:
        points = "another point" if seen == 1 else f"{seen} other points"
        return f"; {points} led to the same optimum{tops}"
    if len([start for start in outcome.starts if start.name != BY_MODES]) > 1:
        return f"; other starts ended lower, maybe at other optima: see result.starts{tops}"
    return tops or ("" if outcome.has_ordinary else "; other optima have not been looked for")


#: A standard deviation of an unconstrained latent that is worth a remark.
WIDE = 1e4


def _widest(stddevs: dict[str, np.ndarray]) -> tuple[str, float]:
    name = max(stddevs, key=lambda name: float(np.max(stddevs[name])))
    return name, float(np.max(stddevs[name]))


def _wide(stddevs: dict[str, np.ndarray]) -> str:
    name, widest = _widest(stddevs)
    if widest < WIDE:
        return ""
    return (
        f". The sd of unconstrained '{name}' is {widest:.1g}: if it still grows, the posterior is "
        "improper and the latent needs a proper prior"
    )
