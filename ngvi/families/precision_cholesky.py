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
from typing import Any, ClassVar, Self

from ngvi.families.base import Array
from ngvi.families.dense import DenseFamily
from ngvi.families.path import WhitenedPath
from ngvi.linalg.definite import PrecisionStep, PrecisionSteps


@dataclasses.dataclass(frozen=True, eq=False)
class PrecisionCholesky(DenseFamily):
    """Gaussian with a dense covariance, by the lower Cholesky factor of its inverse.

    >>> q = families.PrecisionCholesky().initial(y, 0.1)
    >>> f"{float(q.entropy()):.2f}"
    '-2.65'

    :param loc: mean, shape ``(d,)``.
    :param precision_tril: ``T``, shape ``(d, d)``, zero above the diagonal. The sign of a
        column is free: it changes nothing about ``Sigma``.
    """

    loc: Array = None
    precision_tril: Array = None

    name: ClassVar[str] = "precision_cholesky"

    def initial(self, loc: Array, scale: float | Array) -> Self:
        return type(self)(loc, self.xp.diag(self.xp.ones_like(loc) / scale))

    @property
    def stddev(self) -> Array:
        return self.xp.linalg.norm(self.ops.inverse_lower(self._bound().precision_tril), axis=-2)

    @property
    def precision_matrix(self) -> Array:
        return self._bound().precision_tril @ self.precision_tril.mT

    @property
    def lower_factor(self) -> Array:
        return self.ops.root_of_inverse(self._bound().precision_tril)

    def log_det_scale(self) -> Array:
        return -self.ops.log_abs_det(self._bound().precision_tril)

    def whiten(self, value: Array) -> Array:
        return (value - self._bound().loc) @ self.precision_tril

    def sample(self, noise: Array) -> Array:
        return self._bound().loc + self.ops.solve_rows(self.precision_tril, noise, trans=True)

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        tril = self._bound().precision_tril
        if self.ops.prefer_one_product(noise):
            of_scale = noise @ self.ops.halve_diagonal(tril.mT @ change.precision_tril)  # from (1)
        else:
            terms = tril * noise[..., None, :]  # from (2)
            # The zeros of T above its diagonal keep the gradient lower triangular.
            sums = self.xp.flip(self.ops.centred_cumsum(self.xp.flip(terms, (-1,))), (-1,))
            of_scale = (change.precision_tril * sums).sum(-2)
        return self._solve(change.loc) - of_scale

    def log_det_jvp(self, change: Self) -> Array:
        return -0.5 * (self._bound().precision_tril * change.precision_tril).sum()

    def natural_gradient(self, gradient: Self) -> Self:
        tril = self._bound().precision_tril
        inner = self.ops.halve_diagonal(tril.mT @ self.xp.tril(gradient.precision_tril))
        loc = self._solve(self._solve(gradient.loc), trans=True)
        return type(self)(loc, tril @ inner)

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        inner = self._solve(natural_gradient.precision_tril)
        loc = self.precision_tril @ (self.precision_tril.mT @ natural_gradient.loc)
        return type(self)(loc, self.xp.tril(self._solve(inner + inner.mT, trans=True)))

    def bonnet_price(self, gradient: Array, hessian: Array) -> Self:
        inverse = self.ops.inverse_lower(self._bound().precision_tril)
        return self.natural_gradient_from_whitened(
            inverse @ gradient, inverse @ hessian @ inverse.mT
        )

    def whitened_rows(self, gradients: Array) -> Array:
        return self.ops.solve_rows(self._bound().precision_tril, gradients)

    def natural_gradient_from_whitened(self, gradient: Array, hessian: Array) -> Self:
        inner = self.ops.halve_diagonal(hessian + self.ops.eye(self.dim, self.loc))
        return type(self)(self._solve(gradient, trans=True), -self.precision_tril @ inner)

    def along(self, direction: Self, of_mean: Array | float = 1.0) -> WhitenedPath:
        inner, tril = self._solve(direction.precision_tril), self.precision_tril  # -Phi(P)
        block = inner + inner.mT, of_mean * (direction.loc @ tril)

        def finish(_: Any, step: PrecisionStep) -> Any:
            return type(self)(self.loc + self._solve(step.shift, trans=True), tril @ step.root)

        return WhitenedPath([block], PrecisionSteps(self.ops), finish)

    def retract(self, step: Self) -> Self:
        old = self._bound().precision_tril
        new = self.ops.add_off_zero(old, step.precision_tril)
        # A column that has changed its sign is the same T, but would turn the mean's step.
        signs = self.xp.sign(new.diagonal()) * self.xp.sign(old.diagonal())
        shift = self.ops.solve_lower(new, signs * (step.loc @ old), trans=True)  # (3)
        return type(self)(self.loc + shift, new)

    def _solve(self, rhs: Array, trans: bool = False) -> Array:
        return self.ops.solve_lower(self._bound().precision_tril, rhs, trans)
