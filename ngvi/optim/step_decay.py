"""A step size of the mean that falls as the bound stops to rise: ``"auto"`` of IVON and VOGN.

With steps of constant size, the noise of minibatches and draws keeps the mean at some distance from
the optimum. A schedule would have to know the number of steps in advance. The slope of the bound at
the end of the last step needs no such number. On average it is positive while steps make progress,
and negative once they only wander (Pflug, 1990, *Non-asymptotic confidence bounds for stochastic
approximation algorithms with constant step size*). The step size is
``first / (1 + n / halves)^(1/2)``. A step increases ``n`` by one if clearly more than half of the
recent slopes were negative, and decreases ``n`` by one otherwise. The method is meant for networks:
with few latents and much noise, a slope says so little that steps hardly shorten. Counting every
negative slope (Kesten, 1958) would keep shortening steps along a valley, where half of the slopes
are negative by noise.

The steps move a point whose average makes up most of the mean (:mod:`ngvi.optim.averaging`).
Because the average already reduces the noise, the square root decreases slowly enough to make
progress along valleys (Polyak and Juditsky, 1992, *Acceleration of stochastic approximation by
averaging*).
"""

from __future__ import annotations

from typing import NamedTuple

from ngvi.optim.rule import TINY, Algebra, Number


class DecayState(NamedTuple):
    """State of the rule."""

    frequency: Number  #: Part of the recent steps with a negative slope at their end.
    count: Number  #: ``n``.


class StepDecay(NamedTuple):
    """The step size, and its numbers."""

    algebra: Algebra
    of_conjugate: float = 0.03  #: ``rho`` of conjugate sites, which have no such noise.
    first: float = 0.1  #: Step size.
    halves: float = 60.0  #: Value of ``n`` that halves the square of the step size.
    #: Earlier steps of the frequency's average, where step ``t`` counts ``t^(weight - 1)``-fold.
    earlier: float = 50.0
    weight: float = 4.0
    often: float = 0.52  #: The part of steps that is clearly more than half.

    def judge(self, state: DecayState, slope: Number, count: Number) -> DecayState:
        """Return the state after a look at the end of the last step.

        :param slope: of the bound there, along the mean's last change; 0 before the first step.
        :param count: the number of steps taken so far.
        """
        on = self.algebra
        now = on.where(slope < 0, 1.0, 0.0)
        weight = self.weight / (count + self.earlier)
        frequency = state.frequency + weight * (now - state.frequency)
        more = on.where(frequency > self.often, 1.0, -1.0)
        return DecayState(frequency, on.maximum(state.count + more, 0.0))

    def rate(self, state: DecayState, square: Number, dim: int) -> Number:
        """Return the step size.

        No step is longer than one standard deviation, the root of the mean square over latents: a
        ``q`` that begins too wide would else move far off before its precision has grown.

        :param square: of the direction's length in standard deviations, over all latents.
        """
        on = self.algebra
        rate = self.first / (1.0 + state.count / self.halves) ** 0.5
        longest = (dim / on.maximum(square, TINY)) ** 0.5
        return on.minimum(rate, longest)
