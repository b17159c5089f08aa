"""Mean field: ``Sigma = diag(scale^2)``.

With ``G = dL/dscale`` the Fisher information is ``diag(1 / scale^2)`` for the mean and
``diag(2 / scale^2)`` for the scale, whence ``dscale = scale^2 G / 2`` (Tan, below
Theorem 1). Every operation costs O(d).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

from ngvi.families.base import Array, Family
from ngvi.families.diagonal_draws import DiagonalDraws


@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal(DiagonalDraws, Family):
    """Independent Gaussians.

    :param loc: mean, shape ``(d,)``.
    :param scale: standard deviations, shape ``(d,)``. The sign is free.
    """

    loc: Array = None
    scale: Array = None

    name: ClassVar[str] = "diagonal"
    relative_scale_step: ClassVar[float] = 0.1
    leaves_out_correlations: ClassVar[bool] = True

    def initial(self, loc: Array, scale: float | Array) -> Self:
        return type(self)(loc, scale * self.xp.ones_like(loc))

    def couples(self) -> str:
        return "none"

    @property
    def num_parameters(self) -> int:
        return 2 * self.dim

    @property
    def stddev(self) -> Array:
        return abs(self._bound().scale)

    @property
    def covariance_matrix(self) -> Array:
        return self.xp.diag(self._bound().scale ** 2)

    @property
    def precision_matrix(self) -> Array:
        return self.xp.diag(self._bound().scale ** -2)

    def natural_gradient(self, gradient: Self) -> Self:
        variance = self._bound().scale ** 2
        return type(self)(variance * gradient.loc, 0.5 * variance * gradient.scale)

    def covariance_times(self, vector: Array) -> Array:
        """``Sigma x``."""
        return self._bound().scale ** 2 * vector

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        variance = self._bound().scale ** 2
        return type(self)(natural_gradient.loc / variance, 2.0 * natural_gradient.scale / variance)

    def gradient_of_mean(self, natural_gradient: Self) -> Array:
        """``S x``."""
        return natural_gradient.loc / self._bound().scale ** 2

    def assemble_hessian(self, products: Array) -> Array:
        return products.diagonal()

    def outer_products(self, left: Array, right: Array) -> Array:
        return (left * right).sum(0)

    def bonnet_price(self, gradient: Array, hessian: Array) -> Self:
        variance = self._bound().scale ** 2
        return type(self)(variance * gradient, 0.5 * self.scale * (variance * hessian + 1.0))

    def natural_step(self, direction: Self, step_size: Array | float) -> Self:
        scale = self._bound().scale
        ratio = self.ops.new_variance_ratio(-2.0 * step_size * direction.scale / scale)
        loc = self.loc + step_size * ratio * direction.loc
        return type(self)(loc, scale * self.xp.sqrt(ratio))

    def has_parts(self) -> bool:
        """Each latent has a scale of its own."""
        return True

    def moved_latents(self, direction: Self) -> Array:
        moves = (direction.loc != 0) | (direction.scale != 0)
        return self.xp.where(moves, self.xp.ones_like(self.loc), self.xp.zeros_like(self.loc))

    def weighted(self, direction: Self, of_mean: Array, of_scale: Array) -> Self:
        return type(self)(of_mean * direction.loc, of_scale * direction.scale)

    def corrected(self, direction: Self, step_size: Array | float) -> Self:
        change = -2.0 * step_size * direction.scale / self._bound().scale
        return dataclasses.replace(direction, scale=direction.scale * (1.0 + 0.5 * change))

    def kl_divergence(self, other: Self) -> Array:
        ratio = self._bound().scale / other.scale
        shift = (self.loc - other.loc) / other.scale
        return (0.5 * (ratio**2 - 1.0 + shift**2) - self.xp.log(abs(ratio))).sum()

    def retract(self, step: Self) -> Self:
        scale = self.ops.keep_off_zero(self._bound().scale, self.scale + step.scale)
        return type(self)(self.loc + step.loc, scale)
