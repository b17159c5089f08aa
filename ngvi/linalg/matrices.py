"""Products, solutions and roots of triangles."""

from __future__ import annotations

import math

from ngvi.linalg.library import Array as Array
from ngvi.linalg.library import Library

#: Products and quotients of larger triangles are taken in halves on a CPU.
SMALL_TRIANGLE = 128


def symmetric(matrix: Array) -> Array:
    """Return the symmetric part. Keeping a triangle instead would drop half of the information."""
    return 0.5 * (matrix + matrix.mT)


def times(matrix: Array, vector: Array) -> Array:
    """Return ``A x`` for each of a batch, ``(..., p, q)`` times ``(..., q)``."""
    return (matrix @ vector[..., None])[..., 0]


class Matrices(Library):
    """Operations on matrices, made of those that a package writes."""

    #: From this many draws in one call on, or up to this dimension, one O(d^3) product for all
    #: draws is cheaper than O(d^2) memory traffic for each.
    many_draws: int = 4
    small_dim: int = 0
    #: The fraction of a standard deviation (or Cholesky diagonal) that a step leaves at least.
    min_shrinkage: float = 0.01

    def halve_diagonal(self, matrix: Array) -> Array:
        """``Phi``: the lower triangle with its diagonal halved (Tan, Lemma 1)."""
        return self.xp.tril(matrix) - 0.5 * self.xp.diag(matrix.diagonal())

    def half_lower(self, matrix: Array, of_trace: float) -> Array:
        """``Phi(A) + c tr A I``.

        :param of_trace: ``c``.
        """
        eye = self.eye(len(matrix), matrix)
        # Products with masks: the derivative of a diagonal is a slow scatter in XLA.
        weights = self.xp.tril(self.xp.ones_like(matrix)) - 0.5 * eye
        return weights * matrix + of_trace * (eye * matrix).sum() * eye

    def plus_diagonal(
        self, matrix: Array, amount: Array | float, times: Array | float = 1.0
    ) -> Array:
        """``t A + c I``.

        :param amount: ``c``, a number.
        :param times: ``t``, a number.
        """
        return times * matrix + amount * self.eye(matrix.shape[-1], matrix)

    def divide(self, root: Array, rhs: Array) -> Array:
        """``(R R^T)^-1 b``."""
        return self.solve_lower(root, self.solve_lower(root, rhs), trans=True)

    def solve_symmetric(self, tril: Array, matrix: Array) -> Array:
        """``T^-T A`` for a symmetric ``A``, shape ``(d, d)``."""
        return self.solve_lower(tril, matrix, trans=True)

    def on_cpu(self, tensor: Array) -> bool:
        """Return whether a CPU computes with it, where a call takes little time."""
        return True

    def halves(self, tril: Array) -> bool:
        """Return whether to spare the zeros of a triangle, by a few calls more."""
        return tril.shape[-1] > SMALL_TRIANGLE and self.on_cpu(tril)

    def lower_product(self, left: Array, right: Array) -> Array:
        """Return the product of two lower triangles, in halves, without their zeros."""
        size = len(left)
        if not self.halves(left):
            return left @ right
        half = size // 2
        top, bottom = slice(half), slice(half, None)
        below = left[bottom] @ right[:, top]
        first = self.lower_product(left[top, top], right[top, top])
        last = self.lower_product(left[bottom, bottom], right[bottom, bottom])
        return self._lower_blocks(first, below, last)

    def lower_quotient(self, tril: Array, right: Array) -> Array:
        """``T^-1 B`` for a lower triangle ``B``, in halves as well."""
        size = len(tril)
        if not self.halves(tril):
            return self.solve_lower(tril, right)
        half = size // 2
        top, bottom = slice(half), slice(half, None)
        first = self.lower_quotient(tril[top, top], right[top, top])
        rest = right[bottom, top] - tril[bottom, top] @ first
        below = self.solve_lower(tril[bottom, bottom], rest)
        last = self.lower_quotient(tril[bottom, bottom], right[bottom, bottom])
        return self._lower_blocks(first, below, last)

    def inverse_lower(self, tril: Array) -> Array:
        """``T^-1`` of lower triangles ``(..., k, k)``, in halves as well."""
        size = tril.shape[-1]
        if not self.halves(tril):
            return self.inverse_small(tril)
        half = size // 2
        top, bottom = slice(half), slice(half, None)
        first = self.inverse_lower(tril[..., top, top])
        last = self.inverse_lower(tril[..., bottom, bottom])
        below = -last @ tril[..., bottom, top] @ first
        return self._lower_blocks(first, below, last)

    def _lower_blocks(self, first: Array, below: Array, last: Array) -> Array:
        zeros = self.xp.zeros_like(below).mT
        rows = [self.xp.concatenate(row, -1) for row in ([first, zeros], [below, last])]
        return self.xp.concatenate(rows, -2)

    def solve_rows(self, tril: Array, rows: Array, trans: bool = False) -> Array:
        """``T^-1`` (or its transpose) times each row, shape ``(..., d)``."""
        columns = rows.reshape(-1, rows.shape[-1]).mT
        return self.solve_lower(tril, columns, trans=trans).mT.reshape(rows.shape)

    def prefer_one_product(self, noise: Array) -> bool:
        """Return whether one O(d^3) product for all of these draws is the cheaper way."""
        *batch, dim = noise.shape
        return dim <= self.small_dim or math.prod(batch) >= self.many_draws

    def root_of_inverse(self, tril: Array) -> Array:
        """Return the lower triangular ``C`` with ``C C^T = (T T^T)^-1``, its diagonal positive.

        By a QR factorisation of ``T^-1``, because ``T T^T`` would square the condition number.

        :param tril: ``T``, lower triangular, shape ``(d, d)``.
        """
        return self.positive_diagonal(self.upper_factor(self.inverse_lower(tril)).mT)

    def positive_diagonal(self, tril: Array) -> Array:
        """Return the factor with a positive diagonal: signs of columns are free."""
        return self.xp.where(self.diagonals(tril)[..., None, :] < 0, -tril, tril)

    def lower(self, matrix: Array) -> Array:
        """Matrices ``(..., k, k)`` with zeros above the diagonal."""
        return self.xp.tril(matrix)

    def diagonals(self, matrix: Array) -> Array:
        """Return those of matrices ``(..., k, k)``, shape ``(..., k)``."""
        return matrix.diagonal(0, -2, -1)

    def log_abs_det(self, tril: Array) -> Array:
        """``log |det T|`` of a triangular matrix."""
        return self.total(self.xp.log(abs(self.diagonals(tril))))

    def all(self, flags: Array, like: Array) -> Array:
        """Return whether all of them are true.

        :param like: numbers of the same shape.
        """
        return flags.all()

    def total(self, tensor: Array) -> Array:
        """Return the sum of all entries."""
        return tensor.sum()

    def row_products(self, left: Array, right: Array) -> Array:
        """Return the sums of products along the last axis."""
        return (left * right).sum(-1)

    def rows_of(self, inner: Array, factor: Array) -> Array:
        """``inner @ factor.T``, shape ``(..., d)``."""
        return inner @ factor.mT

    def sum_rows(self, matrix: Array) -> Array:
        """Return the sums of the rows of matrices, ``(..., n, d)`` to ``(..., d)``."""
        return matrix.sum(-2)

    def add_off_zero(self, tril: Array, step: Array) -> Array:
        """Return the sum of triangles, its diagonal as :meth:`keep_off_zero` has it."""
        new = tril + step
        return self.with_diagonal(new, self.keep_off_zero(tril.diagonal(), new.diagonal()))

    def keep_off_zero(self, old: Array, new: Array) -> Array:
        """Return ``new``, or ``min_shrinkage * |old|`` with its sign where it is smaller than that.

        At zero ``q`` degenerates, and only there: beyond it lies its mirror image. A rule that
        keeps the sign would halve the coordinate at every step for as long as a momentum points
        at zero, which lasts longer than floating point numbers do.
        """
        floor = self.min_shrinkage * abs(old)
        return self.xp.where(abs(new) < floor, self.xp.copysign(floor, new), new)
