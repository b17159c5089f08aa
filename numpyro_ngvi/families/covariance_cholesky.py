"""Dense Gaussian by the Cholesky factor of its covariance, ``Sigma = C C^T``.

Let ``G = dL/dC``, and ``Phi(A)`` the lower triangle of ``A`` with its diagonal halved.
The Fisher information is block diagonal, ``Sigma^-1`` for the mean and ``J(C)`` for the
factor, and (Tan, Lemma 1 and Theorem 1(i))

    dmu = Sigma dL/dmu,        dC = C Phi(C^T tril(G)),                            (1)

with inverse ``G = tril(C^-T (X + X^T))``, ``X = C^-1 dC``. In general (1) costs two
triangular products, O(d^3). For a draw ``theta = mu + C z`` with gradient
``g = dL/dtheta`` it costs O(d^2): ``G = g z^T``, and for ``i >= j`` the triangle of
``tril`` is not felt, ``(C^T tril(g z^T))_ij = (C^T g)_i z_j``, so that with ``w = C^T g``

    dC_ij = z_j (sum_{k >= j} C_ik w_k  -  C_ij w_j / 2),                          (2)

a reversed cumulative sum along each row. :meth:`CovarianceCholesky.displacement` is the
transpose of (1) or (2). The entropy's natural gradient is ``C / 2``.

The factor is stored as a full ``(d, d)`` array with zeros above the diagonal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ngvi.path import WhitenedPath
from numpyro_ngvi.families.dense import DenseFamily
from numpyro_ngvi.linalg.definite import CovarianceStep
from numpyro_ngvi.linalg.triangular import (
    halve_diagonal,
    keep_off_zero,
    log_abs_det,
    positive_diagonal,
    prefer_one_product,
    row_cumsum,
    solve_columns,
    solve_lower,
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class CovarianceCholesky(DenseFamily):
    """Gaussian with a dense covariance, by its lower Cholesky factor.

    :param loc: mean, shape ``(d,)``.
    :param scale_tril: ``C``, shape ``(d, d)``, zero above the diagonal. The sign of a
        column is free: it changes nothing about ``Sigma``.
    """

    loc: jax.Array | None = None
    scale_tril: jax.Array | None = None

    name: ClassVar[str] = "covariance_cholesky"
    relative_scale_step: ClassVar[float] = 0.01

    def initial(self, loc: jax.Array, scale: float | jax.Array) -> CovarianceCholesky:
        return CovarianceCholesky(loc, jnp.diag(scale * jnp.ones_like(loc)))

    @property
    def stddev(self) -> jax.Array:
        return jnp.linalg.norm(self._bound().scale_tril, axis=-1)

    @property
    def covariance_matrix(self) -> jax.Array:
        return self._bound().scale_tril @ self.scale_tril.T

    @property
    def lower_factor(self) -> jax.Array:
        return positive_diagonal(self._bound().scale_tril)

    def log_det_scale(self) -> jax.Array:
        return log_abs_det(self._bound().scale_tril)

    def whiten(self, value: jax.Array) -> jax.Array:
        columns = (value - self._bound().loc).reshape(-1, self.dim).T
        return self._solve(columns).T.reshape(value.shape)

    def sample(self, noise: jax.Array) -> jax.Array:
        return self._bound().loc + noise @ self.scale_tril.T

    def displacement(self, change: CovarianceCholesky, noise: jax.Array) -> jax.Array:
        tril = self._bound().scale_tril
        if prefer_one_product(noise):
            of_scale = noise @ halve_diagonal(tril.T @ change.scale_tril).T  # from (1)
        else:
            terms = change.scale_tril * noise[..., None, :]  # from (2), transposed
            # The zeros of C above its diagonal keep the gradient lower triangular.
            of_scale = jnp.sum(tril * (row_cumsum(terms) - 0.5 * terms), -2)
        return change.loc @ tril + of_scale

    def log_det_displacement(self, change: CovarianceCholesky) -> jax.Array:
        return 0.5 * jnp.sum(self._bound().scale_tril * change.scale_tril)

    def natural_gradient(self, gradient: CovarianceCholesky) -> CovarianceCholesky:
        tril = self._bound().scale_tril
        inner = halve_diagonal(tril.T @ jnp.tril(gradient.scale_tril))
        return CovarianceCholesky(tril @ (tril.T @ gradient.loc), tril @ inner)

    def euclidean_gradient(self, natural_gradient: CovarianceCholesky) -> CovarianceCholesky:
        inner, shift = self._whitened(natural_gradient)
        found = self._solve(jnp.column_stack([inner + inner.T, shift]), trans=True)
        return CovarianceCholesky(found[:, -1], jnp.tril(found[:, :-1]))

    def fisher_products(
        self,
        directions: Sequence[CovarianceCholesky],
        others: Sequence[CovarianceCholesky] = (),
    ) -> tuple[list[list[jax.Array]], list[list[jax.Array]]]:
        # In whitened coordinates X = C^-1 dC, lower triangular, the metric of (1) is
        # <dC, dC'> = sum_ij (1 + [i = j]) X_ij X'_ij: one solve for all directions together.
        columns = [jnp.column_stack([one.scale_tril, one.loc]) for one in (*directions, *others)]
        whitened = solve_columns(self._bound().scale_tril, jnp.concatenate(columns, 1))
        whitened = jnp.split(whitened, len(columns), 1)
        weights = 1.0 + jnp.eye(self.dim, dtype=self.loc.dtype)

        def rows(product: Callable[[jax.Array, jax.Array], jax.Array]) -> list[list[jax.Array]]:
            return [[product(a, b) for b in whitened] for a in whitened[: len(directions)]]

        return (
            rows(lambda a, b: jnp.sum(a[:, -1] * b[:, -1])),
            rows(lambda a, b: jnp.sum(weights * a[:, :-1] * b[:, :-1])),
        )

    def bonnet_price(self, gradient: jax.Array, hessian: jax.Array) -> CovarianceCholesky:
        tril = self._bound().scale_tril
        inner = tril.T @ hessian @ tril + jnp.eye(self.dim, dtype=tril.dtype)
        return CovarianceCholesky(tril @ (tril.T @ gradient), tril @ halve_diagonal(inner))

    def along(self, direction: CovarianceCholesky) -> WhitenedPath:
        inner, shift = self._whitened(direction)
        tril = self.scale_tril

        def finish(_: Any, step: CovarianceStep) -> CovarianceCholesky:
            return CovarianceCholesky(self.loc + tril @ step.shift, tril @ step.root)

        return WhitenedPath([(-(inner + inner.T), shift)], CovarianceStep.along, finish)

    def retract(self, step: CovarianceCholesky) -> CovarianceCholesky:
        old, new = self._bound().scale_tril, self.scale_tril + step.scale_tril
        diagonal = keep_off_zero(jnp.diagonal(old), jnp.diagonal(new))
        on_diagonal = jnp.eye(self.dim, dtype=bool)
        return CovarianceCholesky(
            self.loc + step.loc, jnp.where(on_diagonal, diagonal[:, None], new)
        )

    def _whitened(self, direction: CovarianceCholesky) -> tuple[jax.Array, jax.Array]:
        """``C^-1 dC`` and ``C^-1 dmu``, by one solve."""
        tril = self._bound().scale_tril
        found = solve_lower(tril, jnp.column_stack([direction.scale_tril, direction.loc]))
        return found[:, :-1], found[:, -1]

    def _solve(self, rhs: jax.Array, trans: bool = False) -> jax.Array:
        return solve_lower(self._bound().scale_tril, rhs, trans)
