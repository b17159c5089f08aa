"""A step size of the mean that falls as the bound stops to rise: ``"auto"`` of IVON and VOGN.

The noise of a minibatch and of one draw leaves a mean that takes steps of one size as far from the
optimum as these let it: on a network of 2,410 weights 0.03 ends 40 to 100 nats below what a
schedule that falls to zero reaches. A schedule wants to know the number of steps beforehand. The
slope of the bound along the last step, at its end, does not: on average it is positive while steps
lead on, and negative once they only wander (Pflug, 1990, *Non-asymptotic confidence bounds for
stochastic approximation algorithms with constant step size*). So the step size is
``FIRST / (1 + n / HALVES)^(1/2)``. Where clearly more than half of the steps of late had a negative
slope ``n`` grows by one a step, and falls by one where not. Of a few latents in much noise one
slope says so little that steps hardly shorten: it is for networks. To count each negative slope
(Kesten, 1958) goes on to shorten steps where a long valley is left to go, for half are noise.

These are the steps of a point whose average is most of the mean (:mod:`ngvi.optim.averaging`). The
average takes out what a shorter step would, and where it does, a root is the fall that also goes
on along valleys (Polyak and Juditsky, 1992, *Acceleration of stochastic approximation by
averaging*): with ``1 / (1 + n / HALVES)`` regressions end 20 to 40 nats lower after 6,000 steps,
and digits are 13 nats higher after 400, 1 after 1,600.
"""

from __future__ import annotations

from typing import NamedTuple

from ngvi.optim.rule import TINY, Algebra, Number

#: The first step size, and the ``n`` that halves its square.
FIRST, HALVES = 0.1, 60.0
#: Of late: step ``t`` counts ``t^3``-fold, as if that many had gone before.
EARLIER, WEIGHT = 50.0, 4.0
#: Of these steps, the part that is clearly more than half.
OFTEN = 0.52
#: In standard deviations, the root of the mean square over latents: no step is longer. A ``q`` that
#: begins too wide would else be thrown far off before its precision has grown.
LONGEST = 1.0


class Turned(NamedTuple):
    """What the rule remembers."""

    often: Number = 0.0  #: the part of steps of late with a negative slope at their end
    count: Number = 0.0  #: ``n``


class Slowing(NamedTuple):
    """The step size, and its ``rho`` for factors of sites, which have no such noise."""

    algebra: Algebra
    of_factors: float = 0.03

    def judge(self, turned: Turned, slope: Number, count: Number) -> Turned:
        """After a look at the end of the last step.

        :param slope: of the bound there, along the mean's last change; 0 before the first step.
        :param count: the number of steps taken so far.
        """
        on = self.algebra
        now = on.where(slope < 0, 1.0, 0.0)
        often = turned.often + WEIGHT / (count + EARLIER) * (now - turned.often)
        more = on.where(often > OFTEN, 1.0, -1.0)
        return Turned(often, on.maximum(turned.count + more, 0.0))

    def rate(self, turned: Turned, square: Number, dim: int) -> Number:
        """The step size.

        :param square: of the direction's length in standard deviations, over all latents.
        """
        on = self.algebra
        rate = FIRST / (1.0 + turned.count / HALVES) ** 0.5
        longest = LONGEST * (dim / on.maximum(square, TINY)) ** 0.5
        return on.minimum(rate, longest)
