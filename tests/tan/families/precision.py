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
from typing import Any, ClassVar, Self

from ngvi.families import steps
from ngvi.families.base import Array
from ngvi.families.dense import DenseFamily
from ngvi.families.gaussian import noise_log_prob
from ngvi.families.path import WhitenedPath
from ngvi.linalg.definite import PrecisionStep, PrecisionSteps
from ngvi.linalg.matrices import symmetric

from .symmetric import congruence, definite_sum


class PathOfDirection(WhitenedPath):
    """Steps whose ends are made of the direction, which the family corrects itself."""

    def damped(self, step_size: Any) -> Self:
        """As it is."""
        return self


@dataclasses.dataclass(frozen=True, eq=False)
class Precision(DenseFamily):
    """Gaussian with a dense covariance, by the inverse of it.

    :param loc: mean, shape ``(d,)``.
    :param precision: ``S``, symmetric positive definite, shape ``(d, d)``.
    """

    loc: Array = None
    precision: Array = None

    name: ClassVar[str] = "precision"

    def initial(self, loc: Array, scale: float | Array) -> Self:
        return type(self)(loc, self.xp.diag(self.xp.ones_like(loc) / scale**2))

    @property
    def stddev(self) -> Array:
        return self.xp.linalg.norm(self._inverse_root(), axis=-2)

    @property
    def precision_matrix(self) -> Array:
        return symmetric(self._bound().precision)

    @property
    def lower_factor(self) -> Array:
        return self.ops.root_of_inverse(self._root())

    def log_det_scale(self) -> Array:
        return -self.ops.log_abs_det(self._root())

    def whiten(self, value: Array) -> Array:
        return (value - self._bound().loc) @ self._root()

    def sample(self, noise: Array) -> Array:
        return self._bound().loc + self.ops.solve_rows(self._root(), noise, trans=True)

    def log_prob(self, value: Array) -> Array:
        root = self._root()
        return noise_log_prob(self, (value - self.loc) @ root) + self.ops.log_abs_det(root)

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        root = self._root()
        inner = root.mT @ (change.precision + change.precision.mT) @ root
        return self.ops.solve_lower(root, change.loc) - noise @ self.ops.halve_diagonal(inner)

    def log_det_jvp(self, change: Self) -> Array:
        return -(symmetric(self._bound().precision) * change.precision).sum()

    def natural_gradient(self, gradient: Self) -> Self:
        matrix = self.precision_matrix
        inner = gradient.precision + gradient.precision.mT
        loc = self.ops.divide(self._root(), gradient.loc)
        return type(self)(loc, symmetric(matrix @ inner @ matrix))

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        root = self._root()
        half = self.ops.divide(root, symmetric(natural_gradient.precision))
        precision = 0.5 * symmetric(self.ops.divide(root, half.mT))
        return type(self)(self.precision_matrix @ natural_gradient.loc, precision)

    def bonnet_price(self, gradient: Array, hessian: Array) -> Self:
        loc = self.ops.divide(self._root(), gradient)
        return type(self)(loc, -(symmetric(hessian) + self.precision_matrix))

    def whitened_rows(self, gradients: Array) -> Array:
        return self.ops.solve_rows(self._root(), gradients)

    def natural_gradient_from_whitened(self, gradient: Array, hessian: Array) -> Self:
        root = self._root()
        loc = self.ops.solve_lower(root, gradient, trans=True)
        return type(self)(loc, -(symmetric(root @ hessian @ root.mT) + self.precision_matrix))

    def natural_step(self, direction: Self, step_size: Array | float) -> Self:
        return self._bound()._end(direction, step_size)

    def along(self, direction: Self, of_mean: Array | float = 1.0) -> WhitenedPath:
        direction, root = type(self)(of_mean * direction.loc, direction.precision), self._root()
        block = congruence(self.ops, root, direction.precision), direction.loc @ root

        def finish(step_size: Any, _: PrecisionStep) -> Any:
            return self._end(direction, step_size)

        return PathOfDirection([block], PrecisionSteps(self.ops), finish)

    def retract(self, step: Self) -> Self:
        """:class:`Family`'s, by equation (2); an indefinite ``S + dS`` is corrected."""
        return self._end(step, 1.0, self.ops.min_shrinkage**2)

    def _end(self, direction: Self, step_size: Array | float, floor: float = 0.0) -> Self:
        old = self.precision_matrix
        new, root = definite_sum(self.ops, old, step_size * direction.precision, floor)
        shift = self.ops.divide(root, old @ direction.loc)
        return type(self)(self.loc + step_size * shift, new)  # (2)

    def _root(self) -> Array:
        return self.ops.cholesky(self.precision_matrix)

    def _inverse_root(self) -> Array:
        return self.ops.inverse_lower(self._root())


@steps.free_coordinates.register(Precision)
def _(family: Precision) -> list[Array]:
    return [family._bound().loc, family.xp.tril(symmetric(family.precision))]


@steps.corrected.register(Precision)
def _(family: Precision, direction: Precision, step_size: Array | float) -> Precision:
    root = family._root()
    change = congruence(family.ops, root, direction.precision)
    _, (change,) = family.ops.damped(step_size * change)
    change = symmetric(root @ change @ root.mT) / step_size
    return type(family)(direction.loc, change)
