"""Dense Gaussian by its precision ``S = Sigma^-1``: the coordinates of the Bayesian learning rule.

A gradient with respect to ``S`` is an array ``G`` with ``dL = sum_ij G_ij dS_ij``, as automatic
differentiation of a function of the whole array gives it; only its symmetric part matters.
The free coordinates are ``vech(S)``, in which an off-diagonal element of the gradient is
``G_ij + G_ji``. Their Fisher information is ``D^T (Sigma x Sigma) D / 2``, orthogonal to the
mean's (Tan, supplement S1, parametrisation xi), whence

    dmu = Sigma dL/dmu,        dS = S (G + G^T) S,                                 (1)

with inverse ``G = Sigma dS Sigma / 2``. In terms of the moments ``dS = -2 dL/dSigma``, which by
Price's theorem is ``-(E[hess l] + S)``.

A step is taken in the natural parameters ``(S mu, S)``, which have the same natural gradient
(Tan, Table 1, lambda; Khan, eq. 29 and 30): ``S_new = S + rho dS``, and the new ``S`` moves
the mean,

    mu_new = mu + rho S_new^-1 dL/dmu = mu + S_new^-1 S (rho dmu).                 (2)

With ``S = L L^T`` a draw is ``theta = mu + L^-T z``; along (1) it moves by
``L^-T (L^-1 dL/dmu - Phi(L^T (G + G^T) L)^T z)``.

Where ``S`` is ill-conditioned :class:`PrecisionCholesky` is the more accurate family: it works
with the square root of the condition number.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor

from ngvi.family import standard_normal_log_prob
from ngvi.path import WhitenedPath
from pyro_ngvi.families.dense import DenseFamily
from pyro_ngvi.linalg.definite import PrecisionStep, definite_sum
from pyro_ngvi.linalg.triangular import (
    MIN_SHRINKAGE,
    cholesky,
    congruence,
    divide,
    halve_diagonal,
    log_abs_det,
    root_of_inverse,
    solve_lower,
    symmetric,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Precision(DenseFamily):
    """Gaussian with a dense covariance, by the inverse of it.

    :param loc: mean, shape ``(d,)``.
    :param precision: ``S``, symmetric positive definite, shape ``(d, d)``.
    """

    loc: Tensor | None = None
    precision: Tensor | None = None

    name: ClassVar[str] = "precision"
    relative_scale_step: ClassVar[float] = 0.01

    def initial(self, loc: Tensor, scale: float | Tensor) -> Precision:
        return Precision(loc, torch.diag(torch.ones_like(loc) / scale**2))

    def free_coordinates(self) -> list[Tensor]:
        return [self._bound().loc, symmetric(self.precision).tril()]

    @property
    def stddev(self) -> Tensor:
        return torch.linalg.vector_norm(self._inverse_root(), dim=-2)

    @property
    def precision_matrix(self) -> Tensor:
        return symmetric(self._bound().precision)

    @property
    def lower_factor(self) -> Tensor:
        return root_of_inverse(self._root())

    def log_det_scale(self) -> Tensor:
        return -log_abs_det(self._root())

    def whiten(self, value: Tensor) -> Tensor:
        return (value - self._bound().loc) @ self._root()

    def sample(self, noise: Tensor) -> Tensor:
        columns = noise.reshape(-1, self.dim).mT
        shift = solve_lower(self._root(), columns, trans=True)
        return self.loc + shift.mT.reshape(noise.shape)

    def log_prob(self, value: Tensor) -> Tensor:
        root = self._root()
        return standard_normal_log_prob((value - self.loc) @ root) + log_abs_det(root)

    def displacement(self, change: Precision, noise: Tensor) -> Tensor:
        root = self._root()
        inner = root.mT @ (change.precision + change.precision.mT) @ root
        return solve_lower(root, change.loc) - noise @ halve_diagonal(inner)

    def log_det_displacement(self, change: Precision) -> Tensor:
        return -(symmetric(self._bound().precision) * change.precision).sum()

    def natural_gradient(self, gradient: Precision) -> Precision:
        matrix = self.precision_matrix
        inner = gradient.precision + gradient.precision.mT
        loc = divide(self._root(), gradient.loc)
        return Precision(loc, symmetric(matrix @ inner @ matrix))

    def euclidean_gradient(self, natural_gradient: Precision) -> Precision:
        root = self._root()
        half = divide(root, symmetric(natural_gradient.precision))
        precision = 0.5 * symmetric(divide(root, half.mT))
        return Precision(self.precision_matrix @ natural_gradient.loc, precision)

    def bonnet_price(self, gradient: Tensor, hessian: Tensor) -> Precision:
        return Precision(
            divide(self._root(), gradient), -(symmetric(hessian) + self.precision_matrix)
        )

    def natural_step(self, direction: Precision, step_size: Tensor | float) -> Precision:
        return self._bound()._moved(direction, step_size)

    def along(self, direction: Precision) -> WhitenedPath:
        root = self._root()
        block = congruence(root, direction.precision), direction.loc @ root

        def finish(step_size: Any, _: PrecisionStep) -> Precision:
            return self._moved(direction, step_size)

        return WhitenedPath([block], PrecisionStep.along, finish)

    def retract(self, step: Precision) -> Precision:
        """:class:`Family`'s, by equation (2); an indefinite ``S + dS`` is corrected."""
        return self._moved(step, 1.0, MIN_SHRINKAGE**2)

    def _moved(
        self, direction: Precision, step_size: Tensor | float, floor: float = 0.0
    ) -> Precision:
        old = self.precision_matrix
        new, root = definite_sum(old, step_size * direction.precision, floor)
        return Precision(self.loc + step_size * divide(root, old @ direction.loc), new)  # (2)

    def _root(self) -> Tensor:
        return cholesky(symmetric(self._bound().precision))

    def _inverse_root(self) -> Tensor:
        root = self._root()
        return solve_lower(root, torch.eye(self.dim).to(root))
