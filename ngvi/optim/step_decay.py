"""A step size of the mean that falls as the bound stops to rise: ``"auto"`` of IVON and VOGN.

The noise of a minibatch and of one draw leaves a mean that takes steps of one size as far from the
optimum as these let it, and a schedule wants to know the number of steps beforehand. The slope of
the bound along the last step, at its end, does not. On average it is positive while steps lead on,
and negative once they only wander (Pflug, 1990, *Non-asymptotic confidence bounds for stochastic
approximation algorithms with constant step size*). So the step size is
``first / (1 + n / halves)^(1/2)``. Where clearly more than half of the recent steps had a negative
slope ``n`` grows by one a step, and falls by one where not. Of a few latents in much noise one
slope says so little that steps hardly shorten: it is for networks. To count each negative slope
(Kesten, 1958) goes on to shorten steps where a long valley is left to go, for half are noise.

These are the steps of a point whose average is most of the mean (:mod:`ngvi.optim.averaging`). The
average takes out what a shorter step would, and where it does, a root is the fall that also goes
on along valleys (Polyak and Juditsky, 1992, *Acceleration of stochastic approximation by
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
