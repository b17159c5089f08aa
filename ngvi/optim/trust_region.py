"""Radius and size of the steps of the Bayesian learning rule.

Both adapt to earlier steps, without further evaluations of the model. Let ``slope`` be the
derivative of the bound along the last change of ``q``, at its beginning and at its end.

- The *radius* bounds ``KL(q_new || q_old)``. If the slope is still positive at the end of a step,
  the radius grows beyond the length of the step. If the slope has changed sign and grown, the step
  overshot: the radius shrinks to where a linear slope would vanish, at most tenfold.
- If the slope has grown a hundredfold, with either sign, the step ended in a tail from which no
  slope leads back. It is undone, and a tenth of it is tried.
- The *step size* is ``1 / (1 + decrease n)``, where ``n`` counts the steps that end with a negative
  slope (Kesten, 1958, *Accelerated stochastic approximation*). Far from the optimum, steps stay
  whole. At the optimum, where noise changes the sign every other time, they decrease as averaging
  requires. Noise affects the precision first, so the mean and the precision have separate counts,
  of their own parts of the slope. A step much shorter than the previous one is not counted.
  On a long way, sign changes come from curvature instead of noise: two steps in a row that leave
  between half and all of their slope, which noise alone rarely does, reduce the count by two.

If the second of those two steps was not shortened, the bound is much flatter than the Fisher metric
says, for instance because mean and covariance have to move together. The mean's step then gets a
*momentum* (Polyak, 1964, *Some methods of speeding up the convergence of iteration methods*), until
the slope along it changes sign sharply, or a step would begin downhill.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ngvi.families import direction
from ngvi.optim.rule import COMMON, TINY, Algebra, Array, Families, Number


class TrustRegionState(NamedTuple):
    """Memory of the last step; it begins as :func:`first_state`."""

    radius: Number  #: Largest KL divergence of a step, in nats.
    mean_sign_changes: Number  #: Steps at whose end the bound fell with the mean's change.
    scale_sign_changes: Number  #: The same number for all other coordinates.
    slope: Number  #: Slope of the bound at the beginning of the last step; 0 before the first.
    mean_slope: Number  #: The part of the slope along the mean's change.
    is_rejected: Number  #: True if the step before was to be taken back.
    steady: Number  #: True if it left between half and all of its slope.
    mean_steady: Number  #: True if it left so much of the slope along the mean's change.
    scale_steady: Number  #: True if it left so much of that along all other coordinates.
    length: Number  #: KL divergence of the last step, in nats.
    rho: Number  #: Size of the last step.
    previous_length: Number  #: KL divergence of the step before, in nats.
    momentum: Number  #: Part of the mean's last step that is added to the next.


def first_state() -> TrustRegionState:
    """Return what is known before the first step, whose radius is one nat."""
    return TrustRegionState(1.0, *[0.0] * (len(TrustRegionState._fields) - 1))


class LineSearchState(NamedTuple):
    """State of a search for the length of a step."""

    count: Number  #: Number of attempts so far.
    rho: Number  #: The last attempt.
    low: Number  #: The largest rho known to fit.
    high: Number  #: The smallest rho known not to fit, or the full step.
    failed: Number  #: True if an attempt did not fit.
    attempt: Any  #: What the path gives for the last attempt.
    length: Number  #: Divergence of the step, in nats.


class TrustRegion(NamedTuple):
    """The radius, the step size, and the search for the longest step within a radius.

    The divergence grows with ``rho``, like its square while it is small, faster later, and jumps
    where a correction of the new precision sets in. So ``rho`` falls until an attempt fits, by the
    square root of what is missing within limits that widen. It is then bracketed between that and
    the last that did not, until the divergence is at least ``close`` times the radius. As long as
    all fit, it grows in the same way.
    """

    #: Largest factor by which a length, and so the radius, may be off. A step whose slope grows by
    #: more than its square is taken back.
    growth: float = 10.0
    decrease_with_memory: float = 0.2  #: Fall of the step size where steps are quasi-Newton's.
    #: Part of the way, to the radius or to where a linear slope would vanish, that is far enough.
    close: float = 0.5
    shortest: float = 0.25  #: Part of the step before from which on a sign change counts.
    #: In nats: ``q`` is nearly the same after so short a step, and another slope is noise, as where
    #: the log density explodes in the tail. It is not taken back, and the radius falls no further.
    near: float = 0.01
    momentum: float = 0.6  #: Part of the mean's last step that is added to the next.
    sharp: float = -0.8  #: Ratio of two slopes below which the momentum ends.
    rounding: float = 10.0  #: Rounding error of a divergence, in units of precision by dimension.
    aim: float = 0.85  #: Part of the radius that a length aims at, for it grows faster than rho.
    max_refinements: int = 12  #: Largest number of attempts to lengthen a step that fits.
    max_attempts: int = 40  #: Largest number of attempts to find a step that fits.
    patience: int = 10  #: Number of attempts that are at least a tenth of the one before.

    def judge(
        self, on: Algebra, state: TrustRegionState, duals: Families, change: Families
    ) -> TrustRegionState:
        """Return the radius and the sign changes, after looking at the end of the last step.

        :param duals: Euclidean gradients of the bound.
        :param change: the last step, in coordinates.
        """
        # Those at its beginning were not wanted before.
        slope, of_mean, begin, begin_of_mean = on.numbers(
            *slopes(duals, change), state.slope, state.mean_slope
        )
        known = begin > 0
        ratio = on.where(known, slope / on.where(known, begin, 1.0), 0.0)
        steady = self._is_steady(slope, begin)
        mean_steady = self._is_steady(of_mean, begin_of_mean)
        scale_steady = self._is_steady(slope - of_mean, begin - begin_of_mean)
        is_long = steady & (state.steady > 0)
        is_long_for_mean = is_long | (mean_steady & (state.mean_steady > 0))
        is_long_for_scale = is_long | (scale_steady & (state.scale_steady > 0))
        # Where steps have no limit their lengths are not known, and all count.
        counts = known & (state.length >= self.shortest * state.previous_length)

        def counted(before: Number, slope: Number, is_long: Number) -> Number:
            more = on.where(counts & (slope < 0), 1, 0) - on.where(is_long, 2, 0)
            return on.maximum(before + more, 0)

        goes_on = known & ((begin_of_mean <= 0) | (of_mean >= self.sharp * begin_of_mean))
        begins = is_long_for_mean & (state.length < self.close * state.radius)
        kept = on.where(goes_on, state.momentum, 0.0)
        return state._replace(
            radius=self._radius(on, state, ratio),
            mean_sign_changes=counted(state.mean_sign_changes, of_mean, is_long_for_mean),
            scale_sign_changes=counted(
                state.scale_sign_changes, slope - of_mean, is_long_for_scale
            ),
            is_rejected=((ratio > self.growth**2) | (ratio < -(self.growth**2)))
            & (state.length > self.near),
            steady=steady,
            mean_steady=mean_steady,
            scale_steady=scale_steady,
            previous_length=state.length,
            momentum=on.where(begins, self.momentum, kept),
        )

    def _is_steady(self, end: Number, begin: Number) -> Any:
        return (begin > 0) & (end > (1 - self.close) * begin) & (end <= begin)

    def _radius(self, on: Algebra, state: TrustRegionState, ratio: Number) -> Number:
        # A slope that is linear in the step vanishes at 1 / (1 - ratio) of it.
        factor = (1 / (1 - on.minimum(ratio, 0.9))) ** 2  # so that nothing can overflow
        radius = on.minimum(on.maximum(factor, 1 / self.growth), self.growth) * state.length
        grown = on.where(ratio > 0, on.maximum(radius, state.radius), state.radius)
        least = on.minimum(state.radius, self.near)
        return on.where(ratio < -1, on.maximum(radius, least), grown)

    def smallest_radius(self, on: Algebra, families: Families) -> float:
        """Return the radius in nats below which none should fall.

        A smaller one is zero but for rounding, and would never grow again.
        """
        return self.rounding * sum(family.dim for family in families) * on.eps(families[0].loc)

    def step_size(self, num_sign_changes: Number, has_memory: bool = False) -> Number:
        """Return the step size that decreases with every sign change."""
        decrease = self.decrease_with_memory if has_memory else COMMON.decrease
        return 1.0 / (1.0 + decrease * num_sign_changes)

    def promising(self, on: Algebra, state: TrustRegionState, radius: Number) -> Number:
        """Return the ``rho`` that reaches the radius if divergences are as in the last step.

        Infinite if that is not known.
        """
        known = (state.length > 0) & (state.rho > 0)
        ratio = self.aim * radius / on.where(known, state.length, 1.0)
        return on.where(known, state.rho * on.sqrt(ratio), math.inf)

    def is_settled(self, state: LineSearchState, radius: Number) -> Any:
        """Return whether there is nothing left to try."""
        fits = state.length <= radius
        enough = (state.length >= self.close * radius) | (state.rho >= state.high)
        enough = enough | (state.count > self.max_refinements)
        return (state.count > 0) & ((fits & enough) | (state.count > self.max_attempts))

    def next(self, on: Algebra, state: LineSearchState, radius: Number, path: Any) -> Any:
        """Return the search after one more attempt."""
        fits, begins = state.length <= radius, state.count == 0
        low = on.where(fits, state.rho, state.low)
        high = on.where(fits | begins, state.high, state.rho)
        failed = on.where(fits | begins, state.failed, True)
        least = 0.1 ** on.maximum(1.0, state.count + 1 - self.patience)
        # Far from a fit the divergence may grow like log rho: then its size is to be found first.
        most = on.where(state.count <= self.patience, 0.8, 0.1)
        ratio = on.sqrt(radius / on.maximum(state.length, TINY))
        ratio = on.where(state.length < math.inf, ratio, least)
        shorter = high * on.minimum(on.maximum(ratio, on.minimum(least, most)), most)
        longer = on.minimum(low * on.minimum(math.sqrt(self.aim) * ratio, self.growth), high)
        between = on.where(failed, on.sqrt(low) * on.sqrt(high), longer)
        # What fits on one side of a jump will do.
        between = on.where(state.count < self.max_refinements, between, low)
        rho = on.where(begins, state.rho, on.where(low > 0, between, shorter))
        attempt, (length,) = on.measured(lambda: path.at(rho), lambda one: [path.kl(one)])
        return LineSearchState(state.count + 1, rho, low, high, failed, attempt, length)


def slopes(duals: Families, change: Families) -> tuple[Array, Array]:
    """Return the bound's slope along a change, and the part of its means; unread.

    :param duals: Euclidean gradients of the bound.
    :param change: in coordinates.
    """
    pairs = zip(duals, change, strict=True)
    # Of a mixture there are several means.
    means = sum(one.ops.row_products(one.loc, other.loc).sum() for one, other in pairs)
    return direction.dot(duals, change), means


def longest_within(
    on: Algebra, radius: Number, path: Any, rho: Number, first: Number = math.inf
) -> tuple[Any, Number, Number]:
    """Return the step that goes about as far as a trust region allows.

    :param radius: the largest ``KL(new || old)``, in nats.
    :param path: a :class:`~ngvi.families.path.JointPath`, or what has its methods.
    :param rho: the full step.
    :param first: the first attempt, if it is less than the full step.
    :return: the attempt, its divergence and its ``rho``. If the divergence is above the radius, or
        NaN, none was found that fits.
    """
    search = TrustRegion()
    # The first attempt is the loop's: in front of it, it would be compiled twice.
    start = LineSearchState(0, on.minimum(first, rho), 0.0, rho, False, None, math.nan)
    found = on.repeated(
        lambda state: search.next(on, state, radius, path),
        lambda state: search.is_settled(state, radius),
        start,
        path,
    )
    return found.attempt, found.length, found.rho
