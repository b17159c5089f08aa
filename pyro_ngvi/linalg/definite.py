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
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_ngvi.linalg.triangular import cholesky, congruence, divide, symmetric, times

#: What an eigenvalue of the new precision becomes that is not positive.
SMALLEST = 0.5


def precision_root(change: Tensor, floor: float = 0.0) -> Tensor:
    """The lower triangular ``R`` with ``R R^T = M``, its diagonal positive.

    :param change: ``-rho P``, symmetric, shape ``(..., k, k)``.
    :param floor: eigenvalues ``1 + t`` up to this are corrected like those that are negative.
    :return: shape ``(..., k, k)``.
    """
    eye = _eye(change)
    factor = cholesky(eye + change)
    of_rest = factor if floor == 0.0 else cholesky((1.0 - floor) * eye + change)
    return factor if _has_root(of_rest, change) else _corrected_root(change, 0.5, floor)


def covariance_root(change: Tensor) -> tuple[Tensor, Tensor]:
    """The lower triangular ``R`` with ``R R^T = M^-1``, its diagonal positive, and ``R^-1``.

    With ``M = Q Q^T`` for an upper triangular ``Q``, it is ``Q^-T``.

    :param change: ``-rho P``, symmetric, shape ``(..., k, k)``.
    :return: both of shape ``(..., k, k)``.
    """
    flipped = change.flip(-2, -1)
    factor = cholesky(_eye(change) + flipped)
    if _has_root(factor, flipped):
        inverse = factor.flip(-2, -1).mT
        return _inverse(inverse), inverse
    root = _corrected_root(change, -0.5)
    return root, _inverse(root)


class CovarianceStep(NamedTuple):
    """A step in whitened coordinates, by the root ``R`` of the new covariance.

    For a batch of blocks it is one step of all of them.
    """

    root: Tensor  #: ``R`` with ``R R^T = M^-1``, lower triangular, shape ``(..., k, k)``
    inverse: Tensor  #: ``R^-1``
    shift: Tensor  #: ``s``, shape ``(..., k)``

    @classmethod
    def along(cls, rho: Tensor | float, change: Tensor, shift: Tensor) -> CovarianceStep:
        """The step to ``M = I + rho change``, from ``change = -P`` and ``shift = w``."""
        root, inverse = covariance_root(rho * change)
        return cls(root, inverse, rho * times(root, times(root.mT, shift)))

    def kl(self) -> Tensor:
        """``KL(new || old)`` in nats, by (2)."""
        size = self.root.square().sum() + self.shift.square().sum() - self.shift.numel()
        return 0.5 * size - _diagonal(self.root).log().sum()

    def backward_kl(self) -> Tensor:
        """``KL(old || new)`` in nats, by (2)."""
        shift = times(self.inverse, self.shift)
        size = self.inverse.square().sum() + shift.square().sum() - shift.numel()
        return 0.5 * size + _diagonal(self.root).log().sum()


class PrecisionStep(NamedTuple):
    """A step in whitened coordinates, by the root ``R`` of the new precision."""

    root: Tensor  #: ``R`` with ``R R^T = M``, lower triangular, shape ``(..., k, k)``
    shift: Tensor  #: ``s``, shape ``(..., k)``

    @classmethod
    def along(cls, rho: Tensor | float, change: Tensor, shift: Tensor) -> PrecisionStep:
        """The step to ``M = I + rho change``, from ``change = -P`` and ``shift = w``."""
        root = precision_root(rho * change)
        return cls(root, rho * divide(root, shift))

    def kl(self) -> Tensor:
        """``KL(new || old)`` in nats, by (2)."""
        size = _inverse(self.root).square().sum() + self.shift.square().sum() - self.shift.numel()
        return 0.5 * size + _diagonal(self.root).log().sum()

    def backward_kl(self) -> Tensor:
        """``KL(old || new)`` in nats, by (2)."""
        shift = times(self.root.mT, self.shift)
        size = self.root.square().sum() + shift.square().sum() - shift.numel()
        return 0.5 * size - _diagonal(self.root).log().sum()


def new_variance_ratio(change: Tensor) -> Tensor:
    """``1 / M`` for the scalar case, elementwise."""
    return 1.0 / positive(change, change)


def is_definite(pivots: Tensor, sizes: Tensor) -> bool:
    """Whether the pivots of Cholesky factors are more than rounding.

    A matrix that is indefinite, or singular, can pass a Cholesky factorisation by luck.

    :param pivots: the factors' diagonals; of a failed factorisation NaN.
    :param sizes: of the numbers that were added to the identity's diagonal, of the same shape.
    :return: one boolean for all.
    """
    # Of a NaN every comparison is false.
    return bool((pivots.square() > rounding(sizes)).all())


def positive(change: Tensor, size: Tensor, floor: float = 0.0) -> Tensor:
    """``1 + t`` where that is positive by more than rounding, else :data:`SMALLEST`.

    :param size: the magnitude of the numbers by whose rounding ``t`` may be off.
    :param floor: values up to this are corrected like those that are negative.
    """
    plain = 1.0 + change
    # What is not finite stays so: the optimiser is to see it.
    return torch.where(plain > floor + rounding(size), plain, SMALLEST + 0.0 * plain)


def rounding(size: Tensor, terms: int = 4) -> Tensor:
    """What rounding may leave of a sum of so many terms of this size, and of 1."""
    return 4 * math.sqrt(terms) * torch.finfo(size.dtype).eps * size.abs().clamp(min=1.0)


def _has_root(factor: Tensor, change: Tensor) -> bool:
    return is_definite(_diagonal(factor), _diagonal(change))


def _diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device).expand(like.shape)


def _inverse(root: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(root, _eye(root), upper=False)


def raised_root(change: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """:func:`precision_root`, and the projector on the eigenvectors that are not corrected."""
    if change.shape[-1] == 1:  # of numbers, LAPACK would be called for each
        value = positive(change, change, floor)
        return value.sqrt(), (value == 1.0 + change).to(change)
    values, vectors, kept = _eigen(change, floor)
    return _root_of(values, vectors, 0.5), (vectors * kept.unsqueeze(-2)) @ vectors.mT


def _corrected_root(change: Tensor, power: float, floor: float = 0.0) -> Tensor:
    return _root_of(*_eigen(change, floor)[:2], power)


def _eigen(change: Tensor, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues of ``M``, corrected, its eigenvectors, and which are not corrected."""
    size = change.abs().amax((-2, -1), keepdim=True)
    if not size.isfinite().all():
        # torch.linalg.eigh would raise; a NaN is for the optimiser to see and skip.
        nan = torch.full_like(change, torch.nan)
        return nan[..., 0], nan, nan[..., 0]
    size = torch.where(size > 0, size, 1.0)
    # LAPACK's float32 eigensolver can fail on a matrix far from unit size.
    plain, vectors = torch.linalg.eigh(change / size)
    plain = plain * size[..., 0]
    values = positive(plain, size[..., 0], floor)
    return values, vectors, values == 1.0 + plain


def _root_of(values: Tensor, vectors: Tensor, power: float) -> Tensor:
    """The lower triangular ``R`` with ``R R^T = M^(2 power)`` from the eigenvectors of ``M``."""
    upper = torch.linalg.qr(values.unsqueeze(-1) ** power * vectors.mT, mode="r").R
    diagonal = _diagonal(upper)
    lower = (upper * torch.where(diagonal < 0, -1.0, 1.0).to(upper).unsqueeze(-1)).mT
    # Rounding may leave a zero on the diagonal of a root of very unequal columns.
    floor = torch.finfo(values.dtype).eps * diagonal.abs().amax(-1, keepdim=True)
    missing = (floor - diagonal.abs()).clamp(min=0.0)
    return (lower + missing.unsqueeze(-1) * _eye(vectors)).tril()


def definite_sum(matrix: Tensor, change: Tensor, floor: float = 0.0) -> tuple[Tensor, Tensor]:
    """``S + dS``, corrected where it is not positive definite, and its lower Cholesky factor.

    :param matrix: ``S``, symmetric positive definite, shape ``(d, d)``.
    :param change: ``dS``, shape ``(d, d)``.
    :param floor: the fraction of ``S`` that is kept in every direction.
    """
    total = symmetric(matrix + change)
    margin = floor * matrix + _rounding_of_sum(matrix, total).diag()
    if cholesky(total - margin).isfinite().all():
        return total, cholesky(total)
    root = cholesky(matrix)
    new_root = root @ precision_root(congruence(root, change), floor)
    return definite_square(new_root, matrix)


def definite_square(root: Tensor, old: Tensor) -> tuple[Tensor, Tensor]:
    """``R R^T``, its diagonal raised where rounding could cost it an eigenvalue, and its factor.

    :param root: ``R``, lower triangular, shape ``(d, d)``.
    :param old: the matrix before the step, shape ``(d, d)``.
    """
    square = root @ root.mT
    margin = _rounding_of_sum(old, square).diag()
    if cholesky(square - margin).isfinite().all():
        return square, cholesky(square)
    higher = square + 2 * margin
    return higher, cholesky(higher)


def _rounding_of_sum(old: Tensor, new: Tensor) -> Tensor:
    # Of either: an optimiser that adds the difference of the two to the old one, as optax
    # does, leaves the rounding of the larger.
    largest = torch.maximum(old.diagonal(), new.diagonal())
    return largest * rounding(torch.ones_like(largest), old.shape[-1])
