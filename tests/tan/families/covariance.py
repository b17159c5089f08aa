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
from typing import Any, ClassVar, Self

from ngvi.families import steps
from ngvi.families.base import Array
from ngvi.families.dense import DenseFamily
from ngvi.families.gaussian import noise_log_prob
from ngvi.families.path import WhitenedPath
from ngvi.linalg.definite import CovarianceStep, CovarianceSteps
from ngvi.linalg.matrices import symmetric

from .symmetric import definite_square, definite_sum


@dataclasses.dataclass(frozen=True, eq=False)
class Covariance(DenseFamily):
    """Gaussian with a dense covariance, by the covariance itself.

    :param loc: mean, shape ``(d,)``.
    :param covariance: ``Sigma``, symmetric positive definite, shape ``(d, d)``.
    """

    loc: Array = None
    covariance: Array = None

    name: ClassVar[str] = "covariance"

    def initial(self, loc: Array, scale: float | Array) -> Self:
        return type(self)(loc, self.xp.diag(scale**2 * self.xp.ones_like(loc)))

    @property
    def stddev(self) -> Array:
        return self.xp.sqrt(self.variance)

    @property
    def variance(self) -> Array:
        return self._bound().covariance.diagonal()

    @property
    def covariance_matrix(self) -> Array:
        return symmetric(self._bound().covariance)

    @property
    def lower_factor(self) -> Array:
        return self.ops.cholesky(self.covariance_matrix)

    def log_det_scale(self) -> Array:
        return self.ops.log_abs_det(self.lower_factor)

    def whiten(self, value: Array) -> Array:
        return self.ops.solve_rows(self.lower_factor, value - self._bound().loc)

    def sample(self, noise: Array) -> Array:
        return self._bound().loc + noise @ self.lower_factor.mT

    def log_prob(self, value: Array) -> Array:
        root = self.lower_factor
        noise = self.ops.solve_rows(root, value - self.loc)
        return noise_log_prob(self, noise) - self.ops.log_abs_det(root)

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        root = self.lower_factor
        inner = root.mT @ (change.covariance + change.covariance.mT) @ root
        return change.loc @ root + noise @ self.ops.halve_diagonal(inner).mT

    def log_det_jvp(self, change: Self) -> Array:
        return (symmetric(self._bound().covariance) * change.covariance).sum()

    def natural_gradient(self, gradient: Self) -> Self:
        matrix = self.covariance_matrix
        inner = gradient.covariance + gradient.covariance.mT
        return type(self)(matrix @ gradient.loc, symmetric(matrix @ inner @ matrix))

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        root = self.lower_factor
        half = self.ops.divide(root, symmetric(natural_gradient.covariance))
        covariance = 0.5 * symmetric(self.ops.divide(root, half.mT))
        return type(self)(self.ops.divide(root, natural_gradient.loc), covariance)

    def bonnet_price(self, gradient: Array, hessian: Array) -> Self:
        matrix = self.covariance_matrix
        curvature = symmetric(matrix @ hessian @ matrix)
        return type(self)(matrix @ gradient, curvature + matrix)

    def whitened_rows(self, gradients: Array) -> Array:
        return gradients @ self.lower_factor

    def natural_gradient_from_whitened(self, gradient: Array, hessian: Array) -> Self:
        root = self.lower_factor
        curvature = symmetric(root @ hessian @ root.mT)
        return type(self)(root @ gradient, curvature + self.covariance_matrix)

    def along(self, direction: Self, of_mean: Array | float = 1.0) -> WhitenedPath:
        root = self.lower_factor
        block = (
            -self.ops.congruence(root, direction.covariance),
            of_mean * self.ops.solve_lower(root, direction.loc),
        )

        def finish(_: Any, step: CovarianceStep) -> Any:
            return self._end(self.loc + root @ step.shift, root @ step.root)

        return WhitenedPath([block], CovarianceSteps(self.ops), finish)

    def retract(self, step: Self) -> Self:
        """:class:`Family`'s; an indefinite ``Sigma + dSigma`` is corrected."""
        covariance, _ = definite_sum(
            self.ops, self.covariance_matrix, step.covariance, self.ops.min_shrinkage**2
        )
        return type(self)(self.loc + step.loc, covariance)

    def _end(self, loc: Array, root: Array) -> Self:
        """``N(loc, R R^T)`` after a step from here."""
        return type(self)(loc, definite_square(self.ops, root, self.covariance_matrix)[0])


@steps.free_coordinates.register(Covariance)
def _(family: Covariance) -> list[Array]:
    return [family._bound().loc, family.xp.tril(symmetric(family.covariance))]
