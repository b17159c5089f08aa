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

The factor is stored as a full ``(d, d)`` tensor with zeros above the diagonal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ngvi.path import WhitenedPath
from pyro_ngvi.families.dense import DenseFamily
from pyro_ngvi.linalg.definite import CovarianceStep
from pyro_ngvi.linalg.triangular import (
    halve_diagonal,
    keep_off_zero,
    log_abs_det,
    positive_diagonal,
    prefer_one_product,
    solve_lower,
)


@dataclasses.dataclass(frozen=True, eq=False)
class CovarianceCholesky(DenseFamily):
    """Gaussian with a dense covariance, by its lower Cholesky factor.

    :param loc: mean, shape ``(d,)``.
    :param scale_tril: ``C``, shape ``(d, d)``, zero above the diagonal. The sign of a
        column is free: it changes nothing about ``Sigma``.
    """

    loc: Tensor | None = None
    scale_tril: Tensor | None = None

    name: ClassVar[str] = "covariance_cholesky"
    relative_scale_step: ClassVar[float] = 0.01

    def initial(self, loc: Tensor, scale: float | Tensor) -> CovarianceCholesky:
        return CovarianceCholesky(loc, torch.diag(scale * torch.ones_like(loc)))

    @property
    def stddev(self) -> Tensor:
        return torch.linalg.vector_norm(self._bound().scale_tril, dim=-1)

    @property
    def covariance_matrix(self) -> Tensor:
        return self._bound().scale_tril @ self.scale_tril.mT

    @property
    def lower_factor(self) -> Tensor:
        return positive_diagonal(self._bound().scale_tril)

    def log_det_scale(self) -> Tensor:
        return log_abs_det(self._bound().scale_tril)

    def whiten(self, value: Tensor) -> Tensor:
        columns = (value - self._bound().loc).reshape(-1, self.dim).mT
        return self._solve(columns).mT.reshape(value.shape)

    def sample(self, noise: Tensor) -> Tensor:
        return self._bound().loc + noise @ self.scale_tril.mT

    def displacement(self, change: CovarianceCholesky, noise: Tensor) -> Tensor:
        tril = self._bound().scale_tril
        if prefer_one_product(noise):
            of_scale = noise @ halve_diagonal(tril.mT @ change.scale_tril).mT  # from (1)
        else:
            terms = change.scale_tril * noise.unsqueeze(-2)  # from (2), transposed
            # The zeros of C above its diagonal keep the gradient lower triangular.
            of_scale = (tril * torch.sub(terms.cumsum(-1), terms, alpha=0.5)).sum(-2)
        return change.loc @ tril + of_scale

    def log_det_displacement(self, change: CovarianceCholesky) -> Tensor:
        return 0.5 * (self._bound().scale_tril * change.scale_tril).sum()

    def natural_gradient(self, gradient: CovarianceCholesky) -> CovarianceCholesky:
        tril = self._bound().scale_tril
        inner = halve_diagonal(tril.mT @ gradient.scale_tril.tril())
        return CovarianceCholesky(tril @ (tril.mT @ gradient.loc), tril @ inner)

    def euclidean_gradient(self, natural_gradient: CovarianceCholesky) -> CovarianceCholesky:
        inner = self._solve(natural_gradient.scale_tril)
        loc = self._solve(self._solve(natural_gradient.loc), trans=True)
        return CovarianceCholesky(loc, self._solve(inner + inner.mT, trans=True).tril())

    def fisher_products(
        self,
        directions: Sequence[CovarianceCholesky],
        others: Sequence[CovarianceCholesky] = (),
    ) -> tuple[Tensor, Tensor]:
        # In whitened coordinates X = C^-1 dC, lower triangular, the metric of (1) is
        # <dC, dC'> = sum_ij (1 + [i = j]) X_ij X'_ij: one solve for all directions together.
        columns = [torch.column_stack([one.scale_tril, one.loc]) for one in (*directions, *others)]
        whitened = self._bound()._solve(torch.cat(columns, 1))
        whitened = whitened.reshape(self.dim, len(columns), self.dim + 1).movedim(1, 0)
        means, scales = whitened[..., -1], whitened[..., :-1].contiguous()
        scales.diagonal(dim1=-2, dim2=-1).mul_(math.sqrt(2.0))
        scales, num = scales.reshape(len(columns), -1), len(directions)
        return means[:num] @ means.mT, scales[:num] @ scales.mT

    def bonnet_price(self, gradient: Tensor, hessian: Tensor) -> CovarianceCholesky:
        tril = self._bound().scale_tril
        inner = tril.mT @ hessian @ tril + torch.eye(self.dim).to(tril)
        return CovarianceCholesky(tril @ (tril.mT @ gradient), tril @ halve_diagonal(inner))

    def along(self, direction: CovarianceCholesky) -> WhitenedPath:
        inner, shift = self._solve(direction.scale_tril), self._solve(direction.loc)
        tril = self.scale_tril

        def finish(_: Any, step: CovarianceStep) -> CovarianceCholesky:
            return CovarianceCholesky(self.loc + tril @ step.shift, tril @ step.root)

        return WhitenedPath([(-(inner + inner.mT), shift)], CovarianceStep.along, finish)

    def retract(self, step: CovarianceCholesky) -> CovarianceCholesky:
        old = self._bound().scale_tril
        new = old + step.scale_tril
        diagonal = keep_off_zero(old.diagonal(), new.diagonal())
        return CovarianceCholesky(self.loc + step.loc, torch.diagonal_scatter(new, diagonal))

    def _solve(self, rhs: Tensor, trans: bool = False) -> Tensor:
        return solve_lower(self._bound().scale_tril, rhs, trans)
