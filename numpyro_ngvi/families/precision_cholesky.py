"""Dense Gaussian by the Cholesky factor of its precision, ``Sigma^-1 = T T^T``.

Let ``G = dL/dT``, and ``Phi(A)`` the lower triangle of ``A`` with its diagonal halved. The
Fisher information has the form of :class:`CovarianceCholesky`'s (Tan, Theorem 1(ii)),

    dmu = Sigma dL/dmu,        dT = T Phi(T^T tril(G)),                            (1)

with inverse ``G = tril(T^-T (X + X^T))``, ``X = T^-1 dT``. A draw is ``theta = mu + T^-T z``,
and along (1) it moves by ``T^-T (T^-1 dL/dmu - Phi^T z)``. For one draw the last product costs
O(d^2),

    (Phi(T^T X)^T z)_j = sum_k X_kj (sum_{i >= j} T_ki z_i - T_kj z_j / 2),        (2)

a reversed cumulative sum along each row. The entropy's natural gradient is ``-T / 2``.

Steps follow Corollary 1: in the coordinates ``(T^T mu, T)``, which have the same natural
gradient, a step is ``T_new = T + rho dT`` and

    mu_new = mu + rho T_new^-T T^-1 dL/dmu = mu + T_new^-T T^T (rho dmu),          (3)

so that the new factor moves the mean: where the posterior is found to be narrower than ``q``
the mean moves less. The paper's Figure 2 shows that it takes larger steps.

The factor is stored as a full ``(d, d)`` array with zeros above the diagonal.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ngvi.path import WhitenedPath
from numpyro_ngvi.families.dense import DenseFamily
from numpyro_ngvi.linalg.definite import PrecisionStep
from numpyro_ngvi.linalg.triangular import (
    halve_diagonal,
    keep_off_zero,
    log_abs_det,
    prefer_one_product,
    root_of_inverse,
    row_cumsum,
    solve_lower,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class PrecisionCholesky(DenseFamily):
    """Gaussian with a dense covariance, by the lower Cholesky factor of its inverse.

    :param loc: mean, shape ``(d,)``.
    :param precision_tril: ``T``, shape ``(d, d)``, zero above the diagonal. The sign of a
        column is free: it changes nothing about ``Sigma``.
    """

    loc: jax.Array | None = None
    precision_tril: jax.Array | None = None

    name: ClassVar[str] = "precision_cholesky"
    relative_scale_step: ClassVar[float] = 0.01

    def initial(self, loc: jax.Array, scale: float | jax.Array) -> PrecisionCholesky:
        return PrecisionCholesky(loc, jnp.diag(jnp.ones_like(loc) / scale))

    @property
    def stddev(self) -> jax.Array:
        return jnp.linalg.norm(self._inverse(), axis=-2)

    @property
    def precision_matrix(self) -> jax.Array:
        return self._bound().precision_tril @ self.precision_tril.T

    @property
    def lower_factor(self) -> jax.Array:
        return root_of_inverse(self._bound().precision_tril)

    def log_det_scale(self) -> jax.Array:
        return -log_abs_det(self._bound().precision_tril)

    def whiten(self, value: jax.Array) -> jax.Array:
        return (value - self._bound().loc) @ self.precision_tril

    def sample(self, noise: jax.Array) -> jax.Array:
        columns = noise.reshape(-1, self.dim).T
        return self.loc + self._solve(columns, trans=True).T.reshape(noise.shape)

    def displacement(self, change: PrecisionCholesky, noise: jax.Array) -> jax.Array:
        tril = self._bound().precision_tril
        if prefer_one_product(noise):
            of_scale = noise @ halve_diagonal(tril.T @ change.precision_tril)  # from (1)
        else:
            terms = tril * noise[..., None, :]  # from (2)
            # The zeros of T above its diagonal keep the gradient lower triangular.
            sums = jnp.flip(row_cumsum(jnp.flip(terms, -1)), -1)
            of_scale = jnp.sum(change.precision_tril * (sums - 0.5 * terms), -2)
        return self._solve(change.loc) - of_scale

    def log_det_displacement(self, change: PrecisionCholesky) -> jax.Array:
        return -0.5 * jnp.sum(self._bound().precision_tril * change.precision_tril)

    def natural_gradient(self, gradient: PrecisionCholesky) -> PrecisionCholesky:
        tril = self._bound().precision_tril
        inner = halve_diagonal(tril.T @ jnp.tril(gradient.precision_tril))
        loc = self._solve(self._solve(gradient.loc), trans=True)
        return PrecisionCholesky(loc, tril @ inner)

    def euclidean_gradient(self, natural_gradient: PrecisionCholesky) -> PrecisionCholesky:
        inner = self._solve(natural_gradient.precision_tril)
        loc = self.precision_tril @ (self.precision_tril.T @ natural_gradient.loc)
        return PrecisionCholesky(loc, jnp.tril(self._solve(inner + inner.T, trans=True)))

    def bonnet_price(self, gradient: jax.Array, hessian: jax.Array) -> PrecisionCholesky:
        inverse = self._inverse()
        inner = inverse @ hessian @ inverse.T + jnp.eye(self.dim, dtype=inverse.dtype)
        return PrecisionCholesky(
            inverse.T @ (inverse @ gradient), -self.precision_tril @ halve_diagonal(inner)
        )

    def along(self, direction: PrecisionCholesky) -> WhitenedPath:
        inner, tril = self._solve(direction.precision_tril), self.precision_tril  # -Phi(P)

        def finish(_: Any, step: PrecisionStep) -> PrecisionCholesky:
            return PrecisionCholesky(
                self.loc + self._solve(step.shift, trans=True), tril @ step.root
            )

        return WhitenedPath([(inner + inner.T, direction.loc @ tril)], PrecisionStep.along, finish)

    def retract(self, step: PrecisionCholesky) -> PrecisionCholesky:
        old, new = self._bound().precision_tril, self.precision_tril + step.precision_tril
        diagonal = keep_off_zero(jnp.diagonal(old), jnp.diagonal(new))
        new = jnp.where(jnp.eye(self.dim, dtype=bool), diagonal[:, None], new)
        # A column that has changed its sign is the same T, but would turn the mean's step.
        signs = jnp.sign(diagonal) * jnp.sign(jnp.diagonal(old))
        shift = solve_lower(new, signs * (step.loc @ old), trans=True)  # (3)
        return PrecisionCholesky(self.loc + shift, new)

    def _inverse(self) -> jax.Array:
        return self._solve(jnp.eye(self.dim, dtype=self.loc.dtype))

    def _solve(self, rhs: jax.Array, trans: bool = False) -> jax.Array:
        return solve_lower(self._bound().precision_tril, rhs, trans)
