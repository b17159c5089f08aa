"""Latents of groups that a minibatch contains only some of: each step moves a few of them.

A direction is zero at the latents outside the minibatch (:mod:`ngvi.guide.subsampled_latents`),
which is how a rule recognises them. Adaptive steps (:mod:`~ngvi.optim.trust_region`) differ in
three ways.

- A latent that moves in one of ``N / B`` steps sees a fraction ``B / N`` of the ``n`` sign changes
  caused by noise, so its step size counts ``n B / N`` of them. If it counted all ``n``, groups in
  their tenth minibatch would hardly move. For concave log densities the new precision stays
  positive definite: the globals' precision counts each element of the minibatch ``N / B`` times,
  more than the ratio of step sizes, ``(1 + a n) / (1 + a n B / N)``.
- The slope at the end of a step comes from another minibatch, which has a fraction ``B / N`` of the
  elements that moved. Only that fraction of the slope at the beginning is compared with it.
- The momentum of a mean covers only the latents that move in this step.

Models without such latents are not affected.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ngvi.families.steps import has_parts, moved_latents, weighted
from ngvi.optim.rule import Algebra, Array, Families, Number


class MoveCounts(NamedTuple):
    """Number of steps of each latent."""

    steps: Any  #: Number of all steps, as a state holds it.
    counts: Array  #: Steps of each latent of all families, one after another.


def none_yet(on: Algebra, families: Families) -> MoveCounts | None:
    """Return the counts before the first step; None if no family has parts of latents."""
    if not any(map(has_parts, families)):
        return None
    return MoveCounts(on.kept((0.0,), families), 0.0 * on.means(families))


class SubsampledLatents:
    """Part of the steps, this one among them, that each latent takes part in.

    :ivar counts: after this step.
    """

    def __init__(
        self, on: Algebra, counts: MoveCounts | None, families: Families, directions: Families
    ) -> None:
        self.counts = counts
        if counts is None:
            return
        self._cond = families[0].ops.cond
        steps = self._steps = counts.steps[0] + 1.0
        pairs = zip(families, directions, strict=True)
        self._moved = [moved_latents(family, one) for family, one in pairs]
        moved = counts.counts + on.joined(self._moved)
        self.counts = MoveCounts(on.kept((steps,), families), moved)
        self._parts = on.by_family(moved / steps, families)
        self._are_some = on.later((moved < steps).any())  # read with what else the step reads

    def of_next(self, families: Families, change: Families) -> Families:
        """Return the part of a change that the next direction is expected to see."""
        return self._weighted(families, change, lambda part, moved: (part, part))

    def of_moved(self, families: Families, change: Families) -> Families:
        """Return the part of a change that is of latents which move now."""
        return self._weighted(families, change, lambda part, moved: (moved, moved))

    def with_step_sizes(
        self, families: Families, directions: Families, of_mean: Number, of_scale: Number
    ) -> Families:
        """Directions at which the step size of all latents makes steps of their own sizes.

        :param of_mean: by what a mean's step size falls: after ``n`` sign changes it is
            ``1 / (1 + of_mean)``.
        :param of_scale: that of all other coordinates.
        """

        def sizes(part: Array, moved: Array) -> tuple[Array, Array]:
            return _larger(of_mean, part), _larger(of_scale, part)

        return self._weighted(families, directions, sizes)

    def step_sizes(self, of_mean: Number) -> Array | float:
        """Return the means' step sizes, by that of a latent which always moves."""
        if self.counts is None:
            return 1.0
        return _larger(of_mean, self.counts.counts / self._steps)

    def _weighted(self, families: Families, directions: Families, weights: Any) -> Families:
        if self.counts is None:
            return directions

        def of_parts() -> Families:
            rows = zip(families, directions, self._parts, self._moved, strict=True)
            return [weighted(f, d, *weights(p, m)) for f, d, p, m in rows]

        return self._cond(self._are_some()[0], of_parts, lambda: directions)


def _larger(fall: Number, part: Array) -> Array:
    """Return the step size after a part of all sign changes, in units of that after all of them."""
    return (1.0 + fall) / (1.0 + fall * part)
