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

import torch
from torch import Tensor

from ngvi.family import standard_normal_log_prob
from ngvi.path import WhitenedPath
from pyro_ngvi.families.dense import DenseFamily
from pyro_ngvi.linalg.definite import CovarianceStep, definite_square, definite_sum
from pyro_ngvi.linalg.triangular import (
    MIN_SHRINKAGE,
    cholesky,
    congruence,
    divide,
    halve_diagonal,
    log_abs_det,
    solve_lower,
    symmetric,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Covariance(DenseFamily):
    """Gaussian with a dense covariance, by the covariance itself.

    :param loc: mean, shape ``(d,)``.
    :param covariance: ``Sigma``, symmetric positive definite, shape ``(d, d)``.
    """

    loc: Tensor | None = None
    covariance: Tensor | None = None

    name: ClassVar[str] = "covariance"
    relative_scale_step: ClassVar[float] = 0.01

    def initial(self, loc: Tensor, scale: float | Tensor) -> Covariance:
        return Covariance(loc, torch.diag(scale**2 * torch.ones_like(loc)))

    def free_coordinates(self) -> list[Tensor]:
        return [self._bound().loc, symmetric(self.covariance).tril()]

    @property
    def stddev(self) -> Tensor:
        return self.variance.sqrt()

    @property
    def variance(self) -> Tensor:
        return self._bound().covariance.diagonal()

    @property
    def covariance_matrix(self) -> Tensor:
        return symmetric(self._bound().covariance)

    @property
    def lower_factor(self) -> Tensor:
        return cholesky(symmetric(self._bound().covariance))

    def log_det_scale(self) -> Tensor:
        return log_abs_det(self.lower_factor)

    def whiten(self, value: Tensor) -> Tensor:
        columns = (value - self._bound().loc).reshape(-1, self.dim).mT
        return solve_lower(self.lower_factor, columns).mT.reshape(value.shape)

    def sample(self, noise: Tensor) -> Tensor:
        return self._bound().loc + noise @ self.lower_factor.mT

    def log_prob(self, value: Tensor) -> Tensor:
        root = self.lower_factor
        columns = (value - self.loc).reshape(-1, self.dim).mT
        noise = solve_lower(root, columns).mT.reshape(value.shape)
        return standard_normal_log_prob(noise) - log_abs_det(root)

    def displacement(self, change: Covariance, noise: Tensor) -> Tensor:
        root = self.lower_factor
        inner = root.mT @ (change.covariance + change.covariance.mT) @ root
        return change.loc @ root + noise @ halve_diagonal(inner).mT

    def log_det_displacement(self, change: Covariance) -> Tensor:
        return (symmetric(self._bound().covariance) * change.covariance).sum()

    def natural_gradient(self, gradient: Covariance) -> Covariance:
        matrix = self.covariance_matrix
        inner = gradient.covariance + gradient.covariance.mT
        return Covariance(matrix @ gradient.loc, symmetric(matrix @ inner @ matrix))

    def euclidean_gradient(self, natural_gradient: Covariance) -> Covariance:
        root = self.lower_factor
        half = divide(root, symmetric(natural_gradient.covariance))
        covariance = 0.5 * symmetric(divide(root, half.mT))
        return Covariance(divide(root, natural_gradient.loc), covariance)

    def bonnet_price(self, gradient: Tensor, hessian: Tensor) -> Covariance:
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
