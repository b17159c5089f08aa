"""Averaging of the mean over all steps so far: the momentum of ``step_size="auto"``.

Gradients are taken at the mean ``y`` of ``q``. A *fast* point ``z`` takes the steps, and ``x`` is
its average, in which step ``t`` has the weight ``t^2``::

    z <- z + step(y),        x <- (1 - c) x + c z,        y = (1 - beta1) z + beta1 x

This is Schedule-Free (Defazio et al., 2024, *The road less scheduled*). For ``beta1 = 0.9`` the
mean of ``q`` moves a tenth as far as ``z``, and the number of steps need not be known in advance.
The only state is the vector ``z - x``, as large as a momentum. ``beta1 = 0`` turns averaging off.

No step moves a latent by more than its own standard deviation. A rectified unit that few rows
reach has a wide posterior, and occasionally a gradient a hundred times too large. The mean of ``q``
is limited in the same way, because ``z`` may have moved far while ``q`` was still wide.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ngvi.families import direction
from ngvi.optim.rule import Algebra, Array, Families, Number


class AveragedMean(NamedTuple):
    """Step of the mean towards an average, and its memory.

    :param beta1: how much of the average is in the mean of ``q``; in [0, 1).
    """

    algebra: Algebra
    beta1: float
    #: Earlier steps of the average, where step ``t`` counts ``t^(weight - 1)``-fold.
    earlier: float = 10.0
    weight: float = 3.0

    def begin(self, families: Families) -> Array:
        """``z - x`` before the first step, shape ``(d,)``, of all families together."""
        return 0.0 * self.algebra.means(families)

    def step(
        self, families: Families, ends: Families, z_minus_x: Array, count: Number
    ) -> tuple[Families, Array]:
        """Return the families after a step, and the new ``z - x``.

        :param ends: of the step of ``z``, with the new precisions.
        :param z_minus_x: shape ``(d,)``.
        :param count: the number of steps taken so far.
        """
        on = self.algebra
        pairs = zip(families, ends, strict=True)
        steps = [self._bounded(end, end.loc - family.loc) for family, end in pairs]
        moved = z_minus_x + on.joined(steps)
        part = on.cast(self.weight / (count + 1.0 + self.earlier), families)
        new = (1.0 - part) * moved
        change = part * moved + (1.0 - self.beta1) * (new - z_minus_x)
        triples = zip(families, ends, on.by_family(change, families), strict=True)
        means = [family.loc + self._bounded(end, one) for family, end, one in triples]
        return direction.with_means(ends, means), new

    def _bounded(self, end: Any, step: Array) -> Array:
        if end.couples() != "none":
            return step
        return end.xp.clip(step, -end.stddev, end.stddev)
