"""Mean field: ``Sigma = diag(scale^2)``.

With ``G = dL/dscale`` the Fisher information is ``diag(1 / scale^2)`` for the mean and
``diag(2 / scale^2)`` for the scale, whence ``dscale = scale^2 G / 2`` (Tan, below
Theorem 1). Every operation costs O(d).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

from ngvi.families import steps
from ngvi.families.base import Array, Family
from ngvi.families.draws import has_free_scales


@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal(Family):
    """Independent Gaussians.

    >>> q = families.Diagonal().initial(y, 0.1)
    >>> f"{float(q.entropy()):.2f}"
    '-2.65'

    :param loc: mean, shape ``(d,)``.
    :param scale: standard deviations, shape ``(d,)``. The sign is free.
    """

    loc: Array = None
    scale: Array = None

    name: ClassVar[str] = "diagonal"

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

    def log_det_scale(self) -> Array:
        return self.xp.log(abs(self._bound().scale)).sum()

    def whiten(self, value: Array) -> Array:
        return (value - self._bound().loc) / self.scale

    def sample(self, noise: Array) -> Array:
        return self._bound().loc + self.scale * noise

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        return self._bound().scale * (change.loc + 0.5 * change.scale * noise)

    def transposed(self, vector: Array) -> Array:
        return self._bound().scale * vector

    def draw_vjp(self, noise: Array, slope: Array) -> Self:
        slope = (self._bound().scale * slope).reshape(-1, self.dim)
        of_scale = 0.5 * (slope * noise.reshape(-1, self.dim)).sum(0)
        return type(self)(slope.sum(0), of_scale)

    def log_det_jvp(self, change: Self) -> Array:
        return (0.5 * self.scale * change.scale).sum()

    def natural_gradient(self, gradient: Self) -> Self:
        variance = self._bound().scale ** 2
        return type(self)(variance * gradient.loc, 0.5 * variance * gradient.scale)

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        variance = self._bound().scale ** 2
        return type(self)(natural_gradient.loc / variance, 2.0 * natural_gradient.scale / variance)

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

    def kl_divergence(self, other: Self) -> Array:
        ratio = self._bound().scale / other.scale
        shift = (self.loc - other.loc) / other.scale
        sizes = 0.5 * (ratio**2 - 1.0 + shift**2) - self.xp.log(abs(ratio))
        return self.ops.at_least(sizes.sum(), 0.0)

    def retract(self, step: Self) -> Self:
        scale = self.ops.keep_off_zero(self._bound().scale, self.scale + step.scale)
        return type(self)(self.loc + step.loc, scale)


has_free_scales.register(Diagonal, lambda family: True)


steps.leaves_out_correlations.register(Diagonal, lambda family: True)
steps.has_parts.register(Diagonal, lambda family: True)


@steps.covariance_times.register(Diagonal)
def _(family: Diagonal, vector: Array) -> Array:
    return family._bound().scale ** 2 * vector


@steps.gradient_of_mean.register(Diagonal)
def _(family: Diagonal, natural_gradient: Diagonal) -> Array:
    return natural_gradient.loc / family._bound().scale ** 2


@steps.moved_latents.register(Diagonal)
def _(family: Diagonal, direction: Diagonal) -> Array:
    moves = (direction.loc != 0) | (direction.scale != 0)
    return family.xp.where(moves, family.xp.ones_like(family.loc), family.xp.zeros_like(family.loc))


@steps.weighted.register(Diagonal)
def _(family: Diagonal, direction: Diagonal, of_mean: Array, of_scale: Array) -> Diagonal:
    return type(family)(of_mean * direction.loc, of_scale * direction.scale)


@steps.corrected.register(Diagonal)
def _(family: Diagonal, direction: Diagonal, step_size: Array | float) -> Diagonal:
    change = -2.0 * step_size * direction.scale / family._bound().scale
    return dataclasses.replace(direction, scale=direction.scale * (1.0 + 0.5 * change))
