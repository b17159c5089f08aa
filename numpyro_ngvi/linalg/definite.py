"""Steps that stay positive definite: the Bayesian learning rule in whitened coordinates.

Let ``theta = mu + C z`` and ``A`` a symmetric estimate of ``-E[hess l]``. In the coordinates
``z`` the precision of ``q`` is ``I``, and ``P = I - C^T A C`` is what the natural gradient
knows of the curvature. The rule's new precision is

    M = I - rho P = (1 - rho) I + rho C^T A C.                                     (1)

``A`` may be indefinite: where the log density is not concave, or by the noise of a minibatch.
Then each eigenvalue ``1 + t`` of (1) that is not positive becomes one half: along a direction in
which the log density is convex ``q`` widens, as the natural gradient wants it to, but no faster
than by a factor of ``2^(1/2)`` a step. The Riemannian correction of Lin, Schmidt and Khan (2020,
*Handling the positive-definite constraint in the Bayesian learning rule*), ``1 + t + t^2 / 2``,
has the same smallest value, but grows again with a larger convexity: ``q`` narrows there step by
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

A symmetric matrix that is itself the coordinate, ``Sigma`` or ``Sigma^-1``, moves by
:func:`definite_sum`: a sum ``S + dS`` that is positive definite is left as it is. Otherwise the
eigenvalues of ``I + L^-1 dS L^-T``, with ``S = L L^T``, are corrected in the same way.
The functions are compiled, because outside of a compiled step a ``cond`` is compiled anew at
every call.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_ngvi.linalg.triangular import congruence, divide, symmetric, times

#: What an eigenvalue of the new precision becomes that is not positive.
SMALLEST = 0.5


@jax.jit
def precision_root(change: jax.Array, floor: float = 0.0) -> jax.Array:
    """The lower triangular ``R`` with ``R R^T = M``, its diagonal positive.

    :param change: ``-rho P``, symmetric, shape ``(..., k, k)``.
    :param floor: eigenvalues ``1 + t`` up to this are corrected like those that are negative.
    :return: shape ``(..., k, k)``.
    """
    eye = _eye(change)
    factor = jnp.linalg.cholesky(eye + change)
    definite = _has_root(jnp.linalg.cholesky((1.0 - floor) * eye + change), change)
    return jax.lax.cond(definite, lambda: factor, lambda: _corrected_root(change, 0.5, floor))


@jax.jit
def covariance_root(change: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The lower triangular ``R`` with ``R R^T = M^-1``, its diagonal positive, and ``R^-1``.

    With ``M = Q Q^T`` for an upper triangular ``Q``, it is ``Q^-T``.

    :param change: ``-rho P``, symmetric, shape ``(..., k, k)``.
    :return: both of shape ``(..., k, k)``.
    """
    flipped = jnp.flip(change, (-2, -1))
    factor = jnp.linalg.cholesky(_eye(change) + flipped)
    inverse = jnp.swapaxes(jnp.flip(factor, (-2, -1)), -2, -1)

    definite = _has_root(factor, flipped)
    known = jax.lax.cond(definite, lambda: inverse, lambda: _corrected_root(change, -0.5))
    other = _inverse(known)  # in neither branch, where it would be compiled twice
    return jnp.where(definite, other, known), jnp.where(definite, known, other)


class CovarianceStep(NamedTuple):
    """A step in whitened coordinates, by the root ``R`` of the new covariance.

    For a batch of blocks it is one step of all of them.
    """

    root: jax.Array  #: ``R`` with ``R R^T = M^-1``, lower triangular, shape ``(..., k, k)``
    inverse: jax.Array  #: ``R^-1``
    shift: jax.Array  #: ``s``, shape ``(..., k)``

    @classmethod
    def along(cls, rho: jax.Array | float, change: jax.Array, shift: jax.Array) -> CovarianceStep:
        """The step to ``M = I + rho change``, from ``change = -P`` and ``shift = w``."""
        root, inverse = covariance_root(rho * change)
        return cls(root, inverse, rho * times(root, times(jnp.swapaxes(root, -2, -1), shift)))

    def kl(self) -> jax.Array:
        """``KL(new || old)`` in nats, by (2)."""
        size = jnp.sum(self.root**2) + jnp.sum(self.shift**2) - self.shift.size
        return 0.5 * size - jnp.sum(jnp.log(_diagonal(self.root)))

    def backward_kl(self) -> jax.Array:
        """``KL(old || new)`` in nats, by (2)."""
        shift = times(self.inverse, self.shift)
        size = jnp.sum(self.inverse**2) + jnp.sum(shift**2) - shift.size
        return 0.5 * size + jnp.sum(jnp.log(_diagonal(self.root)))


class PrecisionStep(NamedTuple):
    """A step in whitened coordinates, by the root ``R`` of the new precision."""

    root: jax.Array  #: ``R`` with ``R R^T = M``, lower triangular, shape ``(..., k, k)``
    shift: jax.Array  #: ``s``, shape ``(..., k)``

    @classmethod
    def along(cls, rho: jax.Array | float, change: jax.Array, shift: jax.Array) -> PrecisionStep:
        """The step to ``M = I + rho change``, from ``change = -P`` and ``shift = w``."""
        root = precision_root(rho * change)
        return cls(root, rho * divide(root, shift))

    def kl(self) -> jax.Array:
        """``KL(new || old)`` in nats, by (2)."""
        size = jnp.sum(_inverse(self.root) ** 2) + jnp.sum(self.shift**2) - self.shift.size
        return 0.5 * size + jnp.sum(jnp.log(_diagonal(self.root)))

    def backward_kl(self) -> jax.Array:
        """``KL(old || new)`` in nats, by (2)."""
        shift = times(jnp.swapaxes(self.root, -2, -1), self.shift)
        size = jnp.sum(self.root**2) + jnp.sum(shift**2) - shift.size
        return 0.5 * size - jnp.sum(jnp.log(_diagonal(self.root)))


def new_variance_ratio(change: jax.Array) -> jax.Array:
    """``1 / M`` for the scalar case, elementwise."""
    return 1.0 / positive(change, change)


def is_definite(pivots: jax.Array, sizes: jax.Array) -> jax.Array:
    """Whether the pivots of Cholesky factors are more than rounding.

    A matrix that is indefinite, or singular, can pass a Cholesky factorisation by luck.

    :param pivots: the factors' diagonals; of a failed factorisation NaN.
    :param sizes: of the numbers that were added to the identity's diagonal, of the same shape.
    :return: one boolean for all.
    """
    # Of a NaN every comparison is false.
    return jnp.all(jnp.square(pivots) > rounding(sizes))


def positive(change: jax.Array, size: jax.Array, floor: float = 0.0) -> jax.Array:
    """``1 + t`` where that is positive by more than rounding, else :data:`SMALLEST`.

    :param size: the magnitude of the numbers by whose rounding ``t`` may be off.
    :param floor: values up to this are corrected like those that are negative.
    """
    plain = 1.0 + change
    # What is not finite stays so: the optimiser is to see it.
    return jnp.where(plain > floor + rounding(size), plain, SMALLEST + 0.0 * plain)


def rounding(size: jax.Array, terms: int = 4) -> jax.Array:
    """What rounding may leave of a sum of so many terms of this size, and of 1."""
    eps = float(jnp.finfo(size.dtype).eps)
    return 4 * math.sqrt(terms) * eps * jnp.maximum(1.0, jnp.abs(size))


def _has_root(factor: jax.Array, change: jax.Array) -> jax.Array:
    return is_definite(_diagonal(factor), _diagonal(change))


def _diagonal(matrix: jax.Array) -> jax.Array:
    return jnp.diagonal(matrix, axis1=-2, axis2=-1)


def _eye(like: jax.Array) -> jax.Array:
    return jnp.broadcast_to(jnp.eye(like.shape[-1], dtype=like.dtype), like.shape)


def _inverse(root: jax.Array) -> jax.Array:
    if root.shape[-1] == 1:
        return 1.0 / root
    return jax.scipy.linalg.solve_triangular(root, _eye(root), lower=True)


def raised_root(change: jax.Array, floor: float) -> tuple[jax.Array, jax.Array]:
    """:func:`precision_root`, and the projector on the eigenvectors that are not corrected."""
    if change.shape[-1] == 1:  # of numbers, LAPACK would be called for each
        value = positive(change, change, floor)
        return jnp.sqrt(value), (value == 1.0 + change).astype(change.dtype)
    values, vectors, kept = _eigen(change, floor)
    projector = vectors * kept[..., None, :] @ jnp.swapaxes(vectors, -2, -1)
    return _root_of(values, vectors, 0.5), projector


def _corrected_root(change: jax.Array, power: float, floor: float = 0.0) -> jax.Array:
    return _root_of(*_eigen(change, floor)[:2], power)


def _eigen(change: jax.Array, floor: float) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Eigenvalues of ``M``, corrected, its eigenvectors, and which are not corrected."""
    size = jnp.max(jnp.abs(change), (-2, -1), keepdims=True)
    size = jnp.where(size > 0, size, 1.0)
    # LAPACK's float32 eigensolver can fail on a matrix far from unit size.
    plain, vectors = jnp.linalg.eigh(change / size)
    plain = plain * size[..., 0]
    values = positive(plain, size[..., 0], floor)
    return values, vectors, values == 1.0 + plain


def _root_of(values: jax.Array, vectors: jax.Array, power: float) -> jax.Array:
    """The lower triangular ``R`` with ``R R^T = M^(2 power)`` from the eigenvectors of ``M``."""
    upper = jnp.linalg.qr(values[..., :, None] ** power * jnp.swapaxes(vectors, -2, -1), "r")
    diagonal = _diagonal(upper)
    lower = jnp.swapaxes(upper * jnp.where(diagonal < 0, -1.0, 1.0)[..., :, None], -2, -1)
    # Rounding may leave a zero on the diagonal of a root of very unequal columns.
    floor = jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(diagonal), -1)[..., None]
    missing = jnp.maximum(floor - jnp.abs(diagonal), 0.0)
    return jnp.tril(lower + missing[..., None] * _eye(vectors))


@jax.jit
def definite_sum(
    matrix: jax.Array, change: jax.Array, floor: float = 0.0
) -> tuple[jax.Array, jax.Array]:
    """``S + dS``, corrected where it is not positive definite, and its lower Cholesky factor.

    :param matrix: ``S``, symmetric positive definite, shape ``(d, d)``.
    :param change: ``dS``, shape ``(d, d)``.
    :param floor: the fraction of ``S`` that is kept in every direction.
    """
    total = symmetric(matrix + change)
    factor = jnp.linalg.cholesky(total)
    margin = floor * matrix + jnp.diag(_rounding_of_sum(matrix, total))
    definite = jnp.all(jnp.isfinite(jnp.linalg.cholesky(total - margin)))

    def corrected() -> tuple[jax.Array, jax.Array]:
        root = jnp.linalg.cholesky(matrix)
        new_root = root @ precision_root(congruence(root, change), floor)
        return definite_square(new_root, matrix)

    return jax.lax.cond(definite, lambda: (total, factor), corrected)


@jax.jit
def definite_square(root: jax.Array, old: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``R R^T``, its diagonal raised where rounding could cost it an eigenvalue, and its factor.

    :param root: ``R``, lower triangular, shape ``(d, d)``.
    :param old: the matrix before the step, shape ``(d, d)``.
    """
    square = root @ root.T
    factor = jnp.linalg.cholesky(square)
    margin = jnp.diag(_rounding_of_sum(old, square))
    definite = jnp.all(jnp.isfinite(jnp.linalg.cholesky(square - margin)))

    def raised() -> tuple[jax.Array, jax.Array]:
        higher = square + 2 * margin
        return higher, jnp.linalg.cholesky(higher)

    return jax.lax.cond(definite, lambda: (square, factor), raised)


def _rounding_of_sum(old: jax.Array, new: jax.Array) -> jax.Array:
    # Of either: an optimiser that adds the difference of the two to the old one, as optax
    # does, leaves the rounding of the larger.
    largest = jnp.maximum(jnp.diagonal(old), jnp.diagonal(new))
    return largest * rounding(jnp.ones_like(largest), old.shape[-1])
