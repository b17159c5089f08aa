"""A mean that is an average over the steps so far: what momentum is where ``"auto"`` slows.

Beside the mean ``y`` of ``q``, where gradients are taken, a *fast* point ``z`` takes the steps, and
``x`` is its average, of which step ``t`` counts ``t^2``-fold::

    z <- z + step(y),        x <- (1 - c) x + c z,        y = (1 - beta1) z + beta1 x

which is Schedule-Free by Defazio et al. (2024, *The road less scheduled*). The mean of ``q`` has a
tenth of the way that ``z`` wanders, for ``beta1`` = 0.9, and is what everybody reads, at any time:
no second set of parameters has to be asked for, nothing has to be known of the end. What is
remembered is ``z - x`` alone, one vector, as of a momentum; and it is one, whose memory is a part
of the steps so far where that of an ordinary momentum is ten steps. ``beta1 = 0`` takes the steps.

No step moves a latent by more than its own standard deviation (:data:`LONGEST`): a rectified unit
that few rows reach has a wide posterior and, once in a while, a gradient of a hundred times what
it should be, by which it was thrown so far that no row reached it any more.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ngvi.families import direction
from ngvi.optim.rule import Algebra, Array, Families, Number
from ngvi.optim.visits import joined

#: Of the average: step ``t`` counts ``t^2``-fold, as if ten had gone before.
EARLIER, WEIGHT = 10.0, 3.0
#: In standard deviations after the step, of a latent that is independent of the others.
LONGEST = 1.0


class AveragedMean(NamedTuple):
    """How far the mean goes of a step, and what is remembered.

    :param share: ``beta1``, of the average in the mean of ``q``; in [0, 1).
    """

    algebra: Algebra
    share: float

    def begin(self, families: Families) -> Array:
        """``z - x`` before the first step, shape ``(d,)``, of all families together."""
        return 0.0 * joined(self.algebra, [family.loc for family in families])

    def step(
        self, families: Families, ends: Families, lead: Array, count: Number
    ) -> tuple[Families, Array]:
        """The families after a step, and the new ``z - x``.

        :param ends: where the step leads, with the new precisions.
        :param lead: ``z - x``, shape ``(d,)``.
        :param count: the number of steps taken so far.
        """
        on = self.algebra
        pairs = zip(families, ends, strict=True)
        ahead = lead + joined(on, [_bounded(end, end.loc - family.loc) for family, end in pairs])
        part = on.cast(WEIGHT / (count + 1.0 + EARLIER), families)
        behind = (1.0 - part) * ahead
        change = part * ahead + (1.0 - self.share) * (behind - lead)
        changes = on.split(change, [family.dim for family in families])
        means = [family.loc + one for family, one in zip(families, changes, strict=True)]
        return direction.with_means(ends, means), behind


def _bounded(end: Any, step: Array) -> Array:
    if end.couples() != "none":
        return step
    longest = LONGEST * end.stddev
    return end.xp.clip(step, -longest, longest)
