"""Dense Gaussian by its covariance ``Sigma``.

A gradient with respect to ``Sigma`` is an array ``G`` with ``dL = sum_ij G_ij dSigma_ij``, as
automatic differentiation of a function of the whole array gives it; only its symmetric part
matters. The free coordinates are ``vech(Sigma)``, in which an off-diagonal element of the
gradient is ``G_ij + G_ji``. Their Fisher information is ``D^T (Sigma^-1 x Sigma^-1) D / 2``,
orthogonal to the mean's (Tan, supplement S1, parametrisation kappa), whence

    dmu = Sigma dL/dmu,        dSigma = Sigma (G + G^T) Sigma,                     (1)

with inverse ``G = Sigma^-1 dSigma Sigma^-1 / 2``. A step adds (1) to the coordinates (Tan,
Table 1, kappa); it needs smaller steps than the other families do, and is here to be compared
with. :meth:`Covariance.natural_step` is the Bayesian learning rule's all the same.

With ``Sigma = C C^T`` a draw is ``theta = mu + C z``; along (1) it moves by
``C (C^T dL/dmu + Phi(C^T (G + G^T) C) z)``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ngvi.family import standard_normal_log_prob
from ngvi.path import WhitenedPath
from numpyro_ngvi.families.dense import DenseFamily
from numpyro_ngvi.linalg.definite import CovarianceStep, definite_square, definite_sum
from numpyro_ngvi.linalg.triangular import (
    MIN_SHRINKAGE,
    congruence,
    divide,
    halve_diagonal,
    log_abs_det,
    solve_lower,
    symmetric,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Covariance(DenseFamily):
    """Gaussian with a dense covariance, by the covariance itself.

    :param loc: mean, shape ``(d,)``.
    :param covariance: ``Sigma``, symmetric positive definite, shape ``(d, d)``.
    """

    loc: jax.Array | None = None
    covariance: jax.Array | None = None

    name: ClassVar[str] = "covariance"
    relative_scale_step: ClassVar[float] = 0.01

    def initial(self, loc: jax.Array, scale: float | jax.Array) -> Covariance:
        return Covariance(loc, jnp.diag(scale**2 * jnp.ones_like(loc)))

    def free_coordinates(self) -> list[jax.Array]:
        return [self._bound().loc, jnp.tril(symmetric(self.covariance))]

    @property
    def stddev(self) -> jax.Array:
        return jnp.sqrt(self.variance)

    @property
    def variance(self) -> jax.Array:
        return jnp.diagonal(self._bound().covariance)

    @property
    def covariance_matrix(self) -> jax.Array:
        return symmetric(self._bound().covariance)

    @property
    def lower_factor(self) -> jax.Array:
        return jnp.linalg.cholesky(self._bound().covariance)

    def log_det_scale(self) -> jax.Array:
        return log_abs_det(self.lower_factor)

    def whiten(self, value: jax.Array) -> jax.Array:
        columns = (value - self._bound().loc).reshape(-1, self.dim).T
        return solve_lower(self.lower_factor, columns).T.reshape(value.shape)

    def sample(self, noise: jax.Array) -> jax.Array:
        return self._bound().loc + noise @ self.lower_factor.T

    def log_prob(self, value: jax.Array) -> jax.Array:
        root = self.lower_factor
        columns = (value - self.loc).reshape(-1, self.dim).T
        noise = solve_lower(root, columns).T.reshape(value.shape)
        return standard_normal_log_prob(noise) - log_abs_det(root)

    def displacement(self, change: Covariance, noise: jax.Array) -> jax.Array:
        root = self.lower_factor
        inner = root.T @ (change.covariance + change.covariance.T) @ root
        return change.loc @ root + noise @ halve_diagonal(inner).T

    def log_det_displacement(self, change: Covariance) -> jax.Array:
        return jnp.sum(symmetric(self._bound().covariance) * change.covariance)

    def natural_gradient(self, gradient: Covariance) -> Covariance:
        matrix = self.covariance_matrix
        inner = gradient.covariance + gradient.covariance.T
        return Covariance(matrix @ gradient.loc, symmetric(matrix @ inner @ matrix))

    def euclidean_gradient(self, natural_gradient: Covariance) -> Covariance:
        root = self.lower_factor
        half = divide(root, symmetric(natural_gradient.covariance))
        covariance = 0.5 * symmetric(divide(root, half.T))
        return Covariance(divide(root, natural_gradient.loc), covariance)

    def bonnet_price(self, gradient: jax.Array, hessian: jax.Array) -> Covariance:
        matrix = self.covariance_matrix
        curvature = symmetric(matrix @ hessian @ matrix)
        return Covariance(matrix @ gradient, curvature + matrix)

    def along(self, direction: Covariance) -> WhitenedPath:
        root = self.lower_factor
        block = -congruence(root, direction.covariance), solve_lower(root, direction.loc)

        def finish(_: Any, step: CovarianceStep) -> Covariance:
            covariance, _ = definite_square(root @ step.root, self.covariance_matrix)
            return Covariance(self.loc + root @ step.shift, covariance)

        return WhitenedPath([block], CovarianceStep.along, finish)

    def retract(self, step: Covariance) -> Covariance:
        """:class:`Family`'s; an indefinite ``Sigma + dSigma`` is corrected."""
        covariance, _ = definite_sum(self.covariance_matrix, step.covariance, MIN_SHRINKAGE**2)
        return Covariance(self.loc + step.loc, covariance)
