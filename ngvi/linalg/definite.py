"""Steps that stay positive definite: the Bayesian learning rule in whitened coordinates.

Let ``theta = mu + C z`` and ``A`` a symmetric estimate of ``-E[hess l]``. In the coordinates
``z`` the precision of ``q`` is ``I``, and ``P = I - C^T A C`` is what the natural gradient
knows of the curvature. The rule's new precision is

    M = I - rho P = (1 - rho) I + rho C^T A C.                                     (1)

``A`` may be indefinite: where the log density is not concave, or by the noise of a minibatch.
Then each eigenvalue ``1 + t`` of (1) that is not positive becomes one half. Along a direction in
which the log density is convex ``q`` widens, as the natural gradient wants it to, but no faster
than by a factor of ``2^(1/2)`` a step. The Riemannian correction of Lin, Schmidt and Khan (2020,
*Handling the positive-definite constraint in the Bayesian learning rule*), ``1 + t + t^2 / 2``,
has the same smallest value. It grows again with a larger convexity: ``q`` narrows there step by
step until it no longer moves. On regressions with an unknown scale, far from the optimum, that
took 20 to 120 steps instead of 10 to 20. Where (1) is positive it stays as it is, exact for
conjugate models.

``M`` is wanted by its triangular roots. Where (1) is positive definite one Cholesky
factorisation gives them; where it is corrected they come from the eigenvectors by a QR
factorisation, because in float32 a Cholesky factorisation of the corrected ``M`` can fail.

A step of ``q`` is that root and the mean's shift ``s = rho M^-1 w``, with ``w = C^-1 dmu``. How far
it goes follows from them, without another solution (:class:`CovarianceStep`,
:class:`PrecisionStep`):

    KL(new || old) = (tr M^-1 - k + |s|^2 + log |M|) / 2,
    KL(old || new) = (tr M - k + s^T M s - log |M|) / 2.                            (2)
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ngvi.linalg.matrices import Array, Matrices, times


class Definite(Matrices):
    """The roots of ``M``."""

    #: What an eigenvalue of the new precision becomes that is not positive.
    smallest: float = 0.5

    def precision_root(self, change: Array, is_definite: bool = False) -> Array:
        """Return the lower triangular ``R`` with ``R R^T = M``, its diagonal positive.

        :param change: ``-rho P``, symmetric, shape ``(..., k, k)``.
        :param is_definite: whether ``M`` is known to be, so that nothing is looked at.
        :return: shape ``(..., k, k)``.
        """
        factor = self.cholesky(self.eye(change.shape[-1], change) + change)
        if is_definite:
            return factor
        definite = self.likely(self._has_root(factor, change))
        return self.cond(
            definite, lambda: factor, lambda: self._root_of(*self._eigen(change)[:2], 0.5)
        )

    def covariance_root(self, change: Array, is_definite: bool = False) -> tuple[Array, Array]:
        """Return the lower ``R`` with ``R R^T = M^-1``, its diagonal positive, and ``R^-1``.

        With ``M = Q Q^T`` for an upper triangular ``Q``, it is ``Q^-T``.

        :param change: ``-rho P``, symmetric, shape ``(..., k, k)``.
        :param is_definite: as of :meth:`precision_root`.
        :return: both of shape ``(..., k, k)``.
        """
        if is_definite:
            factor = self._inverse_root(change, self.definite_cholesky)
            return self.inverse_lower(factor), factor
        factor = self._inverse_root(change, self.cholesky)
        definite = self.likely(self._has_root(factor, change))
        known = self.cond(
            definite, lambda: factor, lambda: self._root_of(*self._eigen(change)[:2], -0.5)
        )
        other = self.inverse_lower(known)  # in neither branch, where XLA would compile it twice
        return self.select(definite, other, known), self.select(definite, known, other)

    def _inverse_root(self, change: Array, cholesky: Callable[[Array], Array]) -> Array:
        """``Q^T`` of :meth:`covariance_root`."""
        flipped = self.plus_diagonal(self.xp.flip(change, (-2, -1)), 1.0)
        return self.xp.flip(cholesky(flipped).mT, (-2, -1))

    def definite_cholesky(self, matrix: Array) -> Array:
        """Return the Cholesky factor of what has one, or is not finite."""
        return self.cholesky(matrix)

    def new_variance_ratio(self, change: Array) -> Array:
        """``1 / M`` for the scalar case, elementwise."""
        return 1.0 / self.positive(change, change)

    def damped(self, *changes: Array) -> tuple[Array, list[Array]]:
        """``-rho P`` of a curvature that is noise for the most part, so that a step is none of it.

        One draw's curvature has eigenvalues of both signs, far beyond one. Halving what would be
        negative keeps the positive ones whole: next to them all other directions widen, from step
        to step. Here they are made smaller together, ``c t`` with the largest of size one at most,
        and a precision is multiplied by ``1 + c t + (c t)^2 / 2``, whose logarithm noise does not
        move to second order (Lin, Schmidt and Khan, 2020). So it is at least half of what it was.

        :param changes: ``-rho P``, symmetric, shape ``(..., k, k)``; of several, which belong to
            one step, ``c`` is the same.
        :return: ``c``, and as many changes, by which the plain step (1) is that one.
        """
        squares = [change @ change for change in changes]
        # The fourth root of the sum of fourth powers is little above the largest eigenvalue.
        sizes = [self.xp.linalg.norm(square, axis=(-2, -1)) ** 0.5 for square in squares]
        share = 1.0 / self.at_least(functools.reduce(self.xp.maximum, sizes), 1.0)
        share = share[..., None, None]
        pairs, half = zip(changes, squares, strict=True), 0.5 * share**2
        return share, [self.combined(share, change, half, square) for change, square in pairs]

    def is_definite(self, pivots: Array, sizes: Array) -> Array:
        """Return whether the pivots of Cholesky factors are more than rounding.

        A matrix that is indefinite, or singular, can pass a Cholesky factorisation by luck.

        :param pivots: the factors' diagonals; of a failed factorisation NaN.
        :param sizes: of the numbers that were added to the identity's diagonal, of the same shape.
        :return: one boolean for all.
        """
        # Of a NaN every comparison is false.
        return self.all(pivots**2 > self.rounding(sizes), pivots)

    def positive(self, change: Array, size: Array, floor: float = 0.0) -> Array:
        """``1 + t`` where that is positive by more than rounding, else :attr:`smallest`.

        :param size: the magnitude of the numbers by whose rounding ``t`` may be off.
        :param floor: values up to this are corrected like those that are negative.
        """
        plain = 1.0 + change
        # What is not finite stays so: the optimiser is to see it.
        return self.xp.where(
            plain > floor + self.rounding(size), plain, self.smallest + 0.0 * plain
        )

    def rounding(self, size: Array, terms: int = 4) -> Array:
        """Return what rounding may leave of a sum of so many terms of this size, and of 1."""
        eps = float(self.xp.finfo(size.dtype).eps)
        return 4 * math.sqrt(terms) * eps * self.at_least(abs(size), 1.0)

    def raised_root(self, change: Array, floor: float) -> tuple[Array, Array]:
        """:meth:`precision_root`, and the projector on the eigenvectors that are not corrected.

        :param floor: eigenvalues ``1 + t`` up to this are corrected like those that are negative.
        """
        if change.shape[-1] == 1:  # of numbers, LAPACK would be called for each
            value = self.positive(change, change, floor)
            kept = self.xp.where(value == 1.0 + change, self.xp.ones_like(change), 0.0)
            return self.xp.sqrt(value), kept
        values, vectors, kept = self._eigen(change, floor)
        projector = (vectors * kept[..., None, :]) @ vectors.mT
        return self._root_of(values, vectors, 0.5), projector

    def _has_root(self, factor: Array, change: Array) -> Array:
        return self.is_definite(self.diagonals(factor), self.diagonals(change))

    def _eigen(self, change: Array, floor: float = 0.0) -> tuple[Array, Array, Array]:
        """Eigenvalues of ``M``, corrected, its eigenvectors, and which are not corrected."""
        size = _size(self.xp, change)
        plain, vectors = self.eigh(change / size)
        plain, size = plain * size[..., 0], size[..., 0]
        values = self.positive(plain, size, floor)
        return values, vectors, values == 1.0 + plain

    def _root_of(self, values: Array, vectors: Array, power: float) -> Array:
        """Return the lower triangular ``R`` with ``R R^T = M^(2 power)``, from the eigenvectors."""
        root = vectors * values[..., None, :] ** power
        lower = self.positive_diagonal(self.upper_factor(root.mT).mT)
        # Rounding may leave a zero on the diagonal of a root of very unequal columns.
        eps = float(self.xp.finfo(root.dtype).eps)
        sizes = self.diagonals(lower)
        floor = eps * self.row_products(sizes, self.xp.ones_like(sizes))[..., None]
        missing = self.at_least(floor - sizes, 0.0)
        return self.lower(lower + missing[..., None] * self.eye(root.shape[-1], root))


class CovarianceStep(NamedTuple):
    """A step in whitened coordinates, by the root ``R`` of the new covariance.

    For a batch of blocks it is one step of all of them.
    """

    root: Array  #: ``R`` with ``R R^T = M^-1``, lower triangular, shape ``(..., k, k)``.
    inverse: Array  #: ``R^-1``.
    shift: Array  #: ``s``, shape ``(..., k)``.

    def metric(self, whitened: Array) -> Array:
        """``M^-1 w``, shape ``(..., k)``."""
        return _square_times(self.root, whitened)


@dataclasses.dataclass(frozen=True)
class DenseSteps:
    """Steps of dense blocks along a direction."""

    ops: Definite
    are_definite: bool = False  #: True if all precisions are known to be positive definite.

    def damped(self, rho: Array | float, change: Array) -> Array:
        """Return the change whose step of ``rho`` is :meth:`Definite.damped`."""
        return self.ops.damped(rho * change)[1][0] / rho

    def _log(self, root: Array) -> Array:
        return self.ops.xp.log(self.ops.diagonals(root))


class CovarianceSteps(DenseSteps):
    """The :class:`CovarianceStep` of every size along a direction."""

    def along(self, rho: Array | float, change: Array, shift: Array) -> CovarianceStep:
        """Return the step to ``M = I + rho change``, from ``change = -P`` and ``shift = w``."""
        root, inverse = self.ops.covariance_root(rho * change, self.are_definite)
        return CovarianceStep(root, inverse, rho * _square_times(root, shift))

    def kl(self, step: CovarianceStep) -> Array:
        """``KL(new || old)`` in nats, by (2)."""
        return _divergence(self.ops, step.root, step.shift, self._log(step.root))

    def backward_kl(self, step: CovarianceStep) -> Array:
        """``KL(old || new)`` in nats, by (2)."""
        shift = times(step.inverse, step.shift)
        return _divergence(self.ops, step.inverse, shift, -self._log(step.root))


class PrecisionStep(NamedTuple):
    """A step in whitened coordinates, by the root ``R`` of the new precision."""

    root: Array  #: ``R`` with ``R R^T = M``, lower triangular, shape ``(..., k, k)``.
    shift: Array  #: ``s``, shape ``(..., k)``.


class PrecisionSteps(DenseSteps):
    """The :class:`PrecisionStep` of every size along a direction."""

    def along(self, rho: Array | float, change: Array, shift: Array) -> PrecisionStep:
        """Return the step to ``M = I + rho change``, from ``change = -P`` and ``shift = w``."""
        root = self.ops.precision_root(rho * change, self.are_definite)
        return PrecisionStep(root, rho * self.ops.divide(root, shift))

    def kl(self, step: PrecisionStep) -> Array:
        """``KL(new || old)`` in nats, by (2)."""
        inverse = self.ops.inverse_lower(step.root)
        return _divergence(self.ops, inverse, step.shift, -self._log(step.root))

    def backward_kl(self, step: PrecisionStep) -> Array:
        """``KL(old || new)`` in nats, by (2)."""
        return _divergence(
            self.ops, step.root, times(step.root.mT, step.shift), self._log(step.root)
        )


def _square_times(root: Array, vector: Array) -> Array:
    """``R R^T x``."""
    return times(root, (vector[..., None, :] @ root)[..., 0, :])


def _divergence(ops: Matrices, root: Array, shift: Array, log_diagonal: Array) -> Array:
    """``(tr R R^T - k + |s|^2) / 2 - log |R|``, of all blocks together."""
    # One sum of what each coordinate adds, which is next to nothing in a short step.
    return ops.total(0.5 * (ops.row_products(root, root) - 1.0 + shift**2) - log_diagonal)


def _size(xp: Any, matrix: Array) -> Array:
    """Return a divisor: LAPACK's float32 eigensolver can fail distant from unit size."""
    size = xp.amax(abs(matrix), axis=(-2, -1), keepdims=True)
    return xp.where(size > 0, size, 1.0)
