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

a reversed cumulative sum along each row. :meth:`CovarianceCholesky.draw_jvp` is the
transpose of (1) or (2). The entropy's natural gradient is ``C / 2``.

The factor is stored as a full ``(d, d)`` array with zeros above the diagonal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from ngvi.families.base import Array
from ngvi.families.dense import DenseFamily
from ngvi.families.path import WhitenedPath
from ngvi.families.steps import fisher_products
from ngvi.linalg.definite import CovarianceStep, CovarianceSteps


@dataclasses.dataclass(frozen=True, eq=False)
class CovarianceCholesky(DenseFamily):
    """Gaussian with a dense covariance, by its lower Cholesky factor.

    >>> q = families.CovarianceCholesky().initial(y, 0.1)
    >>> f"{float(q.entropy()):.2f}"
    '-2.65'

    :param loc: mean, shape ``(d,)``.
    :param scale_tril: ``C``, shape ``(d, d)``, zero above the diagonal. The sign of a
        column is free: it changes nothing about ``Sigma``.
    """

    loc: Array = None
    scale_tril: Array = None

    name: ClassVar[str] = "covariance_cholesky"

    def initial(self, loc: Array, scale: float | Array) -> Self:
        return type(self)(loc, self.xp.diag(scale * self.xp.ones_like(loc)))

    @property
    def stddev(self) -> Array:
        return self.xp.linalg.norm(self._bound().scale_tril, axis=-1)

    @property
    def covariance_matrix(self) -> Array:
        return self._bound().scale_tril @ self.scale_tril.mT

    @property
    def lower_factor(self) -> Array:
        return self.ops.positive_diagonal(self._bound().scale_tril)

    def log_det_scale(self) -> Array:
        return self.ops.log_abs_det(self._bound().scale_tril)

    def whiten(self, value: Array) -> Array:
        return self.ops.solve_rows(self._bound().scale_tril, value - self.loc)

    def sample(self, noise: Array) -> Array:
        return self._bound().loc + noise @ self.scale_tril.mT

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        tril = self._bound().scale_tril
        if self.ops.prefer_one_product(noise):
            of_scale = noise @ self.ops.halve_diagonal(tril.mT @ change.scale_tril).mT  # from (1)
        else:
            terms = change.scale_tril * noise[..., None, :]  # from (2), transposed
            # The zeros of C above its diagonal keep the gradient lower triangular.
            of_scale = (tril * self.ops.centred_cumsum(terms)).sum(-2)
        return change.loc @ tril + of_scale

    def log_det_jvp(self, change: Self) -> Array:
        return 0.5 * (self._bound().scale_tril * change.scale_tril).sum()

    def natural_gradient(self, gradient: Self) -> Self:
        tril = self._bound().scale_tril
        inner = self.ops.halve_diagonal(tril.mT @ self.ops.lower(gradient.scale_tril))
        return type(self)(tril @ (tril.mT @ gradient.loc), tril @ inner)

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        (inner, shift), tril = self._whitened(natural_gradient), self.scale_tril
        # Of C^-T X^T, upper triangular, tril leaves the diagonal: as of X's own, once more.
        doubled = (1.0 + self.ops.eye(self.dim, self.loc)) * inner
        of_mean, of_scale = (self.ops.solve_lower(tril, x, trans=True) for x in (shift, doubled))
        return type(self)(of_mean, self.ops.lower(of_scale))

    def bonnet_price(self, gradient: Array, hessian: Array) -> Self:
        tril = self._bound().scale_tril
        return self.natural_gradient_from_whitened(tril.mT @ gradient, tril.mT @ hessian @ tril)

    def whitened_rows(self, gradients: Array) -> Array:
        return gradients @ self._bound().scale_tril

    def natural_gradient_from_whitened(self, gradient: Array, hessian: Array) -> Self:
        tril, inner = self._bound().scale_tril, hessian + self.ops.eye(self.dim, self.loc)
        return type(self)(tril @ gradient, tril @ self.ops.halve_diagonal(inner))

    def along(self, direction: Self, of_mean: Array | float = 1.0) -> WhitenedPath:
        (inner, shift), tril = self._whitened(direction), self.scale_tril
        block = -(inner + inner.mT), of_mean * shift

        def finish(_: Any, step: CovarianceStep) -> Any:
            return type(self)(self.loc + tril @ step.shift, tril @ step.root)

        return WhitenedPath([block], CovarianceSteps(self.ops), finish)

    def retract(self, step: Self) -> Self:
        new = self.ops.add_off_zero(self._bound().scale_tril, step.scale_tril)
        return type(self)(self.loc + step.loc, new)

    def _whitened(self, direction: Self) -> tuple[Array, Array]:
        """``X = C^-1 dC``, and ``C^-1 dmu``."""
        # Two solves: to join the columns for one would be another kernel for JAX to compile.
        tril, solve = self._bound().scale_tril, self.ops.solve_lower
        return solve(tril, direction.scale_tril), solve(tril, direction.loc)


@fisher_products.register(CovarianceCholesky)
def _(family: CovarianceCholesky, directions: Sequence[Any], others: Sequence[Any] = ()) -> Any:
    # In whitened coordinates X = C^-1 dC, lower triangular, the metric of (1) is
    # <dC, dC'> = sum_ij (1 + [i = j]) X_ij X'_ij: one solve for all directions together.
    every = [*directions, *others]
    columns = [x for one in every for x in (one.scale_tril, one.loc[:, None])]
    tril, num = family._bound().scale_tril, len(directions)
    whitened = family.ops.solve_lower(tril, family.xp.concatenate(columns, 1))
    pieces = family.ops.split(whitened, [family.dim, 1] * len(every))
    weights = family.xp.sqrt(1.0 + family.ops.eye(family.dim, family.loc))
    means, scales = [[x] for x in pieces[1::2]], [[weights * x] for x in pieces[::2]]
    return family.ops.products(means[:num], means), family.ops.products(scales[:num], scales)
