"""Mean field: ``Sigma = diag(scale^2)``.

With ``G = dL/dscale`` the Fisher information is ``diag(1 / scale^2)`` for the mean and
``diag(2 / scale^2)`` for the scale, whence ``dscale = scale^2 G / 2`` (Tan, below
Theorem 1). Every operation costs O(d).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_ngvi.families.base import Family
from numpyro_ngvi.linalg.definite import new_variance_ratio
from numpyro_ngvi.linalg.triangular import keep_off_zero


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Diagonal(Family):
    """Independent Gaussians.

    :param loc: mean, shape ``(d,)``.
    :param scale: standard deviations, shape ``(d,)``. The sign is free.
    """

    loc: jax.Array | None = None
    scale: jax.Array | None = None

    name: ClassVar[str] = "diagonal"
    relative_scale_step: ClassVar[float] = 0.1
    leaves_out_correlations: ClassVar[bool] = True

    def initial(self, loc: jax.Array, scale: float | jax.Array) -> Diagonal:
        return Diagonal(loc, scale * jnp.ones_like(loc))

    def couples(self) -> str:
        return "none"

    def describe(self) -> str:
        """The structure in words."""
        return "independent latents"

    @property
    def num_parameters(self) -> int:
        return 2 * self.dim

    @property
    def stddev(self) -> jax.Array:
        return jnp.abs(self._bound().scale)

    @property
    def covariance_matrix(self) -> jax.Array:
        return jnp.diag(self._bound().scale ** 2)

    @property
    def precision_matrix(self) -> jax.Array:
        return jnp.diag(self._bound().scale ** -2)

    def log_det_scale(self) -> jax.Array:
        return jnp.sum(jnp.log(jnp.abs(self._bound().scale)))

    def whiten(self, value: jax.Array) -> jax.Array:
        return (value - self._bound().loc) / self.scale

    def sample(self, noise: jax.Array) -> jax.Array:
        return self._bound().loc + self.scale * noise

    def displacement(self, change: Diagonal, noise: jax.Array) -> jax.Array:
        return self._bound().scale * (change.loc + 0.5 * change.scale * noise)

    def log_det_displacement(self, change: Diagonal) -> jax.Array:
        return jnp.sum(0.5 * self.scale * change.scale)

    def natural_gradient(self, gradient: Diagonal) -> Diagonal:
        variance = self._bound().scale ** 2
        return Diagonal(variance * gradient.loc, 0.5 * variance * gradient.scale)

    def euclidean_gradient(self, natural_gradient: Diagonal) -> Diagonal:
        variance = self._bound().scale ** 2
        return Diagonal(natural_gradient.loc / variance, 2.0 * natural_gradient.scale / variance)

    def hessian_probes(self) -> np.ndarray:
        return np.arange(self.dim)

    def assemble_hessian(self, products: jax.Array) -> jax.Array:
        return jnp.diagonal(products)

    def outer_products(self, left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.sum(left * right, 0)

    def bonnet_price(self, gradient: jax.Array, hessian: jax.Array) -> Diagonal:
        variance = self._bound().scale ** 2
        return Diagonal(variance * gradient, 0.5 * self.scale * (variance * hessian + 1.0))

    def natural_step(self, direction: Diagonal, step_size: jax.Array | float) -> Diagonal:
        scale = self._bound().scale
        ratio = new_variance_ratio(-2.0 * step_size * direction.scale / scale)
        loc = self.loc + step_size * ratio * direction.loc
        return Diagonal(loc, scale * jnp.sqrt(ratio))

    def kl_divergence(self, other: Diagonal) -> jax.Array:
        ratio = self._bound().scale / other.scale
        shift = (self.loc - other.loc) / other.scale
        return jnp.sum(0.5 * (ratio**2 - 1.0 + shift**2) - jnp.log(jnp.abs(ratio)))

    def retract(self, step: Diagonal) -> Diagonal:
        scale = keep_off_zero(self._bound().scale, self.scale + step.scale)
        return Diagonal(self.loc + step.loc, scale)
