"""What rules ask of a family: steps of every size, distances, and the Fisher metric."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self, cast

from ngvi.families.gaussian import Array, Gaussian
from ngvi.families.path import Path, WhitenedPath


class ForRules(Gaussian):
    """Steps along natural gradients. A family writes ``natural_step`` or ``along``."""

    #: A learning rate for the scale relative to that of the mean that keeps plain
    #: natural-gradient descent stable (Tan, section 6, on Nagm).
    relative_scale_step: ClassVar[float] = 0.01
    #: Whether the precision leaves out correlations that the log density may have.
    leaves_out_correlations: ClassVar[bool] = False

    # -- steps ------------------------------------------------------------------------

    def natural_step(self, direction: Self, step_size: Array | float) -> Self:
        """A step of the Bayesian learning rule along a natural gradient of the bound.

        With ``g = E[grad l]`` and ``A = -E[hess l]``, both of which the natural gradient
        determines (Khan, eq. 29 and 30; Tan, Table 1)::

            S_new = (1 - rho) S + rho A,        mu_new = mu + rho S_new^-1 g

        so that ``rho = 1`` is exact for a conjugate model, and Newton's method if ``g`` and
        ``A`` are taken at the mean. Where ``A`` leaves ``S_new`` indefinite, see
        :mod:`ngvi.linalg.definite`: the result is a Gaussian for any symmetric ``A``.

        :param direction: ``F^-1 dL/dlambda``, as ``bonnet_price`` gives it.
        :param step_size: ``rho``, in (0, 1].
        """
        path = self.along(direction)
        return path.end(path.at(step_size))

    def along(self, direction: Self, of_mean: Array | float = 1.0) -> Path | WhitenedPath:
        """The steps of :meth:`natural_step`, of every size (:mod:`~ngvi.families.path`).

        :param of_mean: how many times as far the mean moves as the direction says.
        """
        changed: Any = direction
        direction = dataclasses.replace(changed, loc=of_mean * changed.loc)
        return Path(self, lambda step_size: self.natural_step(direction, step_size))

    def attempts_are_costly(self) -> bool:
        """Whether an attempt at a step (:class:`~ngvi.families.path.Path`) is most of the step."""
        return False

    def corrected(self, direction: Self, step_size: Array | float) -> Self:
        """The direction whose step multiplies precisions by ``1 + t + t^2 / 2``, not by ``1 + t``.

        The correction of Lin, Schmidt and Khan (2020), of a mean field; most others correct their
        steps (:meth:`ngvi.families.path.WhitenedPath.damped`).
        """
        return direction

    def bounded(self, direction: Self, step_size: Array | float, most: float) -> Self:
        """The direction whose step changes a mean field's precisions by ``most`` of them at most.

        Curvatures that are heavier than the average so far then count as a bound on them does. Of
        other families it is the direction.
        """
        if self.couples() != "none":
            return direction
        limit, changed = 0.5 * most / step_size * self.stddev, cast(Any, direction)
        scale = self.xp.clip(changed.scale, -limit, limit)
        return dataclasses.replace(changed, scale=scale)

    # -- steps of some latents alone ----------------------------------------------------

    def has_parts(self) -> bool:
        """Whether single latents, or blocks of them, have coordinates of their own."""
        return False

    def moved_latents(self, direction: Self) -> Array:
        """1 for the latents whose own coordinates a direction changes, else 0; shape ``(d,)``."""
        return self.xp.ones_like(direction.loc)

    def weighted(self, direction: Self, of_mean: Array, of_scale: Array) -> Self:
        """A direction, with each latent's own part times a weight.

        What latents above it, on which its mean depends, make of its mean is no part of that.

        :param of_mean: shape ``(d,)``, equal within each block.
        :param of_scale: the same, of all coordinates but the mean.
        """
        return direction

    # -- distances and the Fisher metric ------------------------------------------------

    def kl_divergence(self, other: Self) -> Array:
        """``KL(self || other)`` in nats, a scalar.

        :param other: a Gaussian of the same family and dimension.
        """
        size = 0.5 * (self._trace_ratio(other) - self.dim)
        shift = (other.whiten(self.loc) ** 2).sum()
        return size + 0.5 * shift - self.log_det_scale() + other.log_det_scale()

    def _trace_ratio(self, other: Self) -> Array:
        """``tr(S' Sigma)``, with the other's precision."""
        columns = self.centred().sample(self.ops.eye(self.dim, self.loc))
        return (other.centred().whiten(columns) ** 2).sum()

    def covariance_times(self, vector: Array) -> Array:
        """``Sigma x``, the natural gradient of the mean; shape ``(d,)``."""
        still: Any = self.map(self.xp.zeros_like)
        return self.natural_gradient(dataclasses.replace(still, loc=vector)).loc

    def gradient_of_mean(self, natural_gradient: Self) -> Array:
        """The mean's part of ``euclidean_gradient``, shape ``(d,)``."""
        return self.euclidean_gradient(natural_gradient).loc

    def mean_products(self, natural_gradient: Self, change: Array) -> tuple[Array, Array]:
        """Products of :meth:`gradient_of_mean` with a change of the mean, and with its own.

        :param change: shape ``(d,)``.
        :return: two scalars, the second of which is the square of the mean's step in standard
            deviations.
        """
        gradient = self.gradient_of_mean(natural_gradient)
        return (gradient * change).sum(), (gradient * natural_gradient.loc).sum()

    def inner(self, left: Self, right: Self) -> Array:
        """``left^T F right``, the Fisher inner product of two directions, in nats."""
        gradient = self.euclidean_gradient(left)
        pairs = zip(gradient.coordinates().values(), right.coordinates().values(), strict=True)
        return sum((a * b).sum() for a, b in pairs)

    def fisher_products(self, directions: Sequence[Self], others: Sequence[Self] = ()) -> Any:
        """Fisher inner products of ``k`` directions with each other and with ``n`` others.

        :return: of their means and of all their other coordinates, which are orthogonal; both
            ``k`` rows of ``k + n`` numbers, in nats.
        """
        duals = [self.euclidean_gradient(one) for one in directions]
        rows = [
            [list(x.coordinates().values()) for x in xs] for xs in (duals, [*directions, *others])
        ]
        of_means = self.ops.products(*([x[:1] for x in xs] for xs in rows))
        return of_means, self.ops.products(*([x[1:] for x in xs] for xs in rows))
