"""How far one step of the Bayesian learning rule may move ``q``, and how large steps should be.

What follows adapts to what the steps did, without further evaluations of the model. Let ``slope``
be the derivative of the bound along the last change of ``q``, at its beginning and at its end.

- The *radius* bounds ``KL(q_new || q_old)``. It grows past a step whose slope is still positive at
  its end (it could have been longer), and falls below the length of one whose slope has turned
  and is larger than before (it went far beyond the optimum): to where a linear slope would vanish,
  at most tenfold.
- A slope that has grown a hundredfold, whatever its sign, tells of a step into a tail from which no
  slope leads back: it is taken back, and a tenth of it tried.
- The *step size* is ``1 / (1 + DECREASE n)``, where ``n`` counts the steps at whose end the slope
  was negative (Kesten, 1958, *Accelerated stochastic approximation*): far from the optimum steps
  stay whole, and at the optimum, where noise turns the slope every other time, they decrease
  as averaging needs them to. The mean and the precision have a count each, of their parts of the
  slope, because noise reaches the precision first: the mean still has whole steps to take. The turn
  of a step that is far shorter than the one before does not count: it ends what that one began.
  On a long way there are turns that tell of curvature and not of noise: two steps in a row that
  leave between half and all of their slope, or of its part, give two turns back, as noise alone
  hardly ever does.

If the second of these was not shortened, the way is long for another reason than the radius: the
bound is much flatter there than the Fisher metric says, as where the mean of ``q`` and its
covariance have to move together. From then on the mean's step *carries on* with a part of the last
one (Polyak, 1964, *Some methods of speeding up the convergence of iteration methods*), until the
slope along it turns sharply, or a step would lead downhill from its beginning.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ngvi.families import direction
from ngvi.optim.radius import GROWTH, INITIAL_RADIUS
from ngvi.optim.rule import TINY, Algebra, Array, Families, Number

#: Of the step size, by every turn.
DECREASE = 0.5
#: What part of their slope steps leave that are far too short, and how many turns two give back.
STEADY, GIVEN_BACK = (0.5, 1.0), 2
#: A step is taken back if the slope at its end is so many times that at its beginning.
THROWN = 100
#: A turn counts if its step is at least this part of the one before.
FALLEN = 0.25
#: In nats: ``q`` is nearly the same after so short a step, and another slope is noise, as where the
#: log density explodes in the tail. It is not taken back, and the radius falls no further.
NEAR = 0.01
#: What part of the last step of the mean is carried on, and the ratio of its slopes that ends it.
CARRIED, SHARP = 0.6, -0.8

#: The divergence of ``d`` dimensions is rounded by this many times ``d`` units of precision: a
#: smaller radius could not be told from zero, and would never grow again.
ROUNDING = 10

#: A step that had to be shortened is at least this fraction of the radius, ...
CLOSE = 0.5
#: ... and this is aimed at by what the last step's length says, which grows faster than its square.
AIM = 0.85
#: What fits and is too short becomes so many times as long at most.
LONGER = 10.0
#: ... if that many attempts find it; a step that fits is sought for longer.
MAX_REFINEMENTS = 12
MAX_ATTEMPTS = 40
#: One attempt is at least a tenth of the one before; after so many, it may be far less.
PATIENCE = 10


class Progress(NamedTuple):
    """What the rule remembers of its last step."""

    radius: Number = INITIAL_RADIUS  #: largest KL divergence of a step, in nats
    mean_turns: Number = 0  #: steps at whose end the bound was falling with the mean's change
    scale_turns: Number = 0  #: ... and with that of all other coordinates
    slope: Number = 0.0  #: of the bound at the beginning of the last step; 0 before the first
    mean_slope: Number = 0.0  #: ... its part along the mean's change
    thrown: Number = 0  #: whether the step before was to be taken back
    steady: Number = 0  #: whether it left between half and all of its slope
    mean_steady: Number = 0  #: ... of its part along the mean's change
    scale_steady: Number = 0  #: ... and along that of all other coordinates
    length: Number = 0.0  #: KL divergence of the last step, in nats
    rho: Number = 0.0  #: its size
    earlier: Number = 0.0  #: KL divergence of the step before, in nats
    carried: Number = 0.0  #: what part of the mean's last step is added to the next


def slopes(duals: Families, change: Families) -> tuple[Array, Array]:
    """Of the bound along a change, and the part of its means; unread.

    :param duals: Euclidean gradients of the bound.
    :param change: in coordinates.
    """
    pairs = zip(duals, change, strict=True)
    means = sum(one.ops.row_products(one.loc, other.loc) for one, other in pairs)
    return direction.dot(duals, change), means


def judge(on: Algebra, progress: Progress, duals: Families, change: Families) -> Progress:
    """The radius and the numbers of turns, after looking at the end of the last step.

    :param duals: Euclidean gradients of the bound.
    :param change: the last step, in coordinates.
    """
    # Those at its beginning were not wanted before.
    slope, of_mean, begin, begin_of_mean = on.numbers(
        *slopes(duals, change), progress.slope, progress.mean_slope
    )
    of_scale = slope - of_mean
    known = begin > 0
    ratio = on.where(known, slope / on.where(known, begin, 1.0), 0.0)
    # A slope that is linear in the step vanishes at 1 / (1 - ratio) of it.
    factor = (1 / (1 - on.minimum(ratio, 0.9))) ** 2  # so that nothing can overflow
    radius = on.minimum(on.maximum(factor, 1 / GROWTH), GROWTH) * progress.length
    grown = on.where(ratio > 0, on.maximum(radius, progress.radius), progress.radius)
    least = on.minimum(progress.radius, NEAR)
    radius = on.where(ratio < -1, on.maximum(radius, least), grown)

    def is_steady(end: Number, begin: Number) -> Any:
        return (begin > 0) & (end > STEADY[0] * begin) & (end <= STEADY[1] * begin)

    steady = is_steady(slope, begin)
    mean_steady = is_steady(of_mean, begin_of_mean)
    scale_steady = is_steady(of_scale, begin - begin_of_mean)
    is_long = steady & (progress.steady > 0)
    is_long_for_mean = is_long | (mean_steady & (progress.mean_steady > 0))
    is_long_for_scale = is_long | (scale_steady & (progress.scale_steady > 0))
    goes_on = known & ((begin_of_mean <= 0) | (of_mean >= SHARP * begin_of_mean))
    whole = progress.length < CLOSE * progress.radius
    # Where steps have no limit their lengths are not known, and all count.
    counts = known & (progress.length >= FALLEN * progress.earlier)

    def counted(turns: Number, slope: Number, is_long: Number) -> Number:
        turned = on.where(counts & (slope < 0), 1, 0)
        return on.maximum(turns + turned - on.where(is_long, GIVEN_BACK, 0), 0)

    return progress._replace(
        radius=radius,
        mean_turns=counted(progress.mean_turns, of_mean, is_long_for_mean),
        scale_turns=counted(progress.scale_turns, of_scale, is_long_for_scale),
        thrown=((ratio > THROWN) | (ratio < -THROWN)) & (progress.length > NEAR),
        steady=steady,
        mean_steady=mean_steady,
        scale_steady=scale_steady,
        earlier=progress.length,
        carried=on.where(
            is_long_for_mean & whole, CARRIED, on.where(goes_on, progress.carried, 0.0)
        ),
    )


def smallest_radius(on: Algebra, families: Families) -> float:
    """The radius below which none should fall, in nats."""
    return ROUNDING * sum(family.dim for family in families) * on.eps(families[0].loc)


def step_size(num_turns: Number, decrease: float = DECREASE) -> Number:
    """The step size that decreases with every turn."""
    return 1.0 / (1.0 + decrease * num_turns)


class Search(NamedTuple):
    """How far a search for the length of a step has come."""

    count: Number  #: attempts so far
    rho: Number
    low: Number  #: the largest rho known to fit
    high: Number  #: the smallest known not to, or the full step
    failed: Number  #: whether an attempt did not fit
    attempt: Any
    length: Number


def promising(on: Algebra, progress: Progress, radius: Number) -> Number:
    """The ``rho`` that leads as far as a radius allows if divergences are as in the last step.

    Infinite if that is not known.
    """
    known = (progress.length > 0) & (progress.rho > 0)
    ratio = AIM * radius / on.where(known, progress.length, 1.0)
    return on.where(known, progress.rho * on.sqrt(ratio), math.inf)


def longest_within(
    on: Algebra, radius: Number, path: Any, rho: Number, first: Number = math.inf
) -> tuple[Any, Number, Number]:
    """The step that goes about as far as a trust region allows.

    The divergence grows with ``rho``, like its square while it is small, faster later, and jumps
    where a correction of the new precision sets in. So ``rho`` falls until an attempt fits, by the
    square root of what is missing within limits that widen, and is then bracketed between that and
    the last that did not, until the divergence is at least ``CLOSE`` times the radius. As long as
    all fit, it grows in the same way.

    :param radius: the largest ``KL(new || old)``, in nats.
    :param path: a :class:`~ngvi.families.path.JointPath`, or what has its methods.
    :param rho: the full step.
    :param first: the first attempt, if it is less than the full step.
    :return: the attempt, its divergence and its ``rho``. If the divergence is above the radius, or
        NaN, none was found that fits.
    """

    def settled(search: Search) -> Any:
        fits = search.length <= radius
        enough = (search.length >= CLOSE * radius) | (search.rho >= search.high)
        enough = enough | (search.count > MAX_REFINEMENTS)
        return (search.count > 0) & ((fits & enough) | (search.count > MAX_ATTEMPTS))

    def narrow(search: Search) -> Search:
        fits, begins = search.length <= radius, search.count == 0
        low = on.where(fits, search.rho, search.low)
        high = on.where(fits | begins, search.high, search.rho)
        failed = on.where(fits | begins, search.failed, True)
        least = 0.1 ** on.maximum(1.0, search.count + 1 - PATIENCE)
        # Far from a fit the divergence may grow like log rho: then its size is to be found first.
        most = on.where(search.count <= PATIENCE, 0.8, 0.1)
        # Of a step of no length the divergence, and the next radius, may be below zero by rounding.
        ratio = on.sqrt(on.maximum(radius / on.maximum(search.length, TINY), 0.0))
        ratio = on.where(search.length < math.inf, ratio, least)
        shorter = high * on.minimum(on.maximum(ratio, on.minimum(least, most)), most)
        longer = on.minimum(low * on.minimum(math.sqrt(AIM) * ratio, LONGER), high)
        between = on.where(failed, on.sqrt(low) * on.sqrt(high), longer)
        # What fits on one side of a jump will do.
        between = on.where(search.count < MAX_REFINEMENTS, between, low)
        rho = on.where(begins, search.rho, on.where(low > 0, between, shorter))
        attempt, (length,) = on.measured(lambda: path.at(rho), lambda one: [path.kl(one)])
        return Search(search.count + 1, rho, low, high, failed, attempt, length)

    # The first attempt is the loop's: in front of it, it would be compiled twice.
    start = Search(0, on.minimum(first, rho), 0.0, rho, False, None, math.nan)
    search = on.repeated(narrow, settled, start, path)
    return search.attempt, search.length, search.rho
