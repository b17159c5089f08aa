"""Products, solutions and roots of triangles, and what they need of a tensor library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: A tensor of whichever library.
Array = Any

#: The fraction of a standard deviation (or Cholesky diagonal) that a step leaves at least.
MIN_SHRINKAGE = 0.01

#: Products and quotients of larger triangles are taken in halves.
SMALL_TRIANGLE = 128


def symmetric(matrix: Array) -> Array:
    """The symmetric part. Keeping a triangle instead would drop half of the information."""
    return 0.5 * (matrix + matrix.mT)


def times(matrix: Array, vector: Array) -> Array:
    """``A x`` for each of a batch, ``(..., p, q)`` times ``(..., q)``."""
    return (matrix @ vector[..., None])[..., 0]


class Matrices:
    """What is done with matrices.

    A package writes what raises ``NotImplementedError`` here; the rest follows.
    """

    xp: Any  #: torch or ``jax.numpy``
    #: From this many draws in one call on, or up to this dimension, one O(d^3) product for all
    #: draws is cheaper than O(d^2) memory traffic for each.
    many_draws: int = 4
    small_dim: int = 0

    # -- what a package writes --------------------------------------------------------

    def tensor(self, values: Any, like: Array) -> Array:
        """Numbers as a tensor of the dtype and device of ``like``."""
        raise NotImplementedError

    def scatter(self, size: int, places: np.ndarray, values: Array) -> Array:
        """A vector that is zero but for ``values``."""
        raise NotImplementedError

    def eye(self, size: int, like: Array) -> Array:
        """The identity of the dtype and device of ``like``."""
        raise NotImplementedError

    def scaled(self, factor: Array | float, tensor: Array) -> Array:
        """``factor * tensor``, whose dtype stays."""
        raise NotImplementedError

    def combined(
        self, amount: Array | float, one: Array, other_amount: Array | float, other: Array
    ) -> Array:
        """``amount * one + other_amount * other``, in the dtype of ``one``."""
        raise NotImplementedError

    def norm(self, tensors: Sequence[Array]) -> Any:
        """Euclidean norm of all elements of all tensors, where their squares overflow too."""
        raise NotImplementedError

    def products(self, left: Sequence[Sequence[Array]], right: Sequence[Sequence[Array]]) -> Any:
        """Of each of ``k`` lists of tensors with each of ``n``, the sum of all products.

        :return: ``k`` rows of ``n`` numbers.
        """
        raise NotImplementedError

    def at_least(self, values: Array, floor: float) -> Array:
        """``values``, none below ``floor``."""
        raise NotImplementedError

    def select(self, flag: Any, yes: Array, no: Array) -> Array:
        """One of two tensors, both of which are known, by a boolean of no dimensions."""
        raise NotImplementedError

    def likely(self, flag: Array) -> Any:
        """A boolean that is nearly always true, for :meth:`select` and :meth:`cond`.

        A library that has to read it may take it to be true until it reads something else.
        """
        raise NotImplementedError

    def cond(self, flag: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """The result of one of two functions, of the same shapes; only that one is called."""
        raise NotImplementedError

    def while_loop(self, test: Callable, body: Callable, state: tuple) -> tuple:
        """``body`` of ``body`` of ... ``state``, as long as ``test`` of it holds."""
        raise NotImplementedError

    def split(self, tensor: Array, sizes: list[int]) -> Sequence[Array]:
        """The last axis cut into pieces."""
        raise NotImplementedError

    def with_diagonal(self, matrix: Array, diagonal: Array) -> Array:
        """``matrix`` with another diagonal."""
        raise NotImplementedError

    def centred_cumsum(self, matrix: Array) -> Array:
        """The cumulative sums along each row, less half of the entry itself."""
        raise NotImplementedError

    def cholesky(self, matrix: Array) -> Array:
        """The lower Cholesky factor, NaN where there is none.

        :param matrix: symmetric, shape ``(..., k, k)``.
        """
        raise NotImplementedError

    def eigh(self, matrix: Array) -> tuple[Array, Array]:
        """Eigenvalues and eigenvectors of symmetric matrices, NaN where there are none."""
        raise NotImplementedError

    def svd(self, matrix: Array) -> tuple[Array, Array]:
        """``U`` and ``V^T`` of a singular value decomposition, NaN where there is none."""
        raise NotImplementedError

    def upper_factor(self, matrix: Array) -> Array:
        """The triangle ``R`` of ``Q R``, shape ``(..., k, k)``."""
        raise NotImplementedError

    def solve_lower(self, tril: Array, rhs: Array, trans: bool = False) -> Array:
        """``T^-1 b`` or ``T^-T b``, for a vector or for columns.

        :param tril: ``T``, lower triangular, shape ``(d, d)``.
        :param rhs: ``b``, shape ``(d,)`` or ``(d, n)``.
        """
        raise NotImplementedError

    def solve_columns(self, tril: Array, columns: Array) -> Array:
        """:meth:`solve_lower`, for more columns than rows."""
        return self.solve_lower(tril, columns)

    def inverse_small(self, tril: Array) -> Array:
        """:meth:`inverse_lower` by one solution."""
        raise NotImplementedError

    # -- what follows -----------------------------------------------------------------

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

    def congruence(self, root: Array, matrix: Array) -> Array:
        """``R^-1 A R^-T`` for the symmetric part of ``A``.

        :param root: ``R``, lower triangular, shape ``(d, d)``.
        """
        half = self.solve_lower(root, symmetric(matrix))
        return symmetric(self.solve_lower(root, half.mT))

    def divide(self, root: Array, rhs: Array) -> Array:
        """``(R R^T)^-1 b``."""
        return self.solve_lower(root, self.solve_lower(root, rhs), trans=True)

    def solve_symmetric(self, tril: Array, matrix: Array) -> Array:
        """``T^-T A`` for a symmetric ``A``, shape ``(d, d)``."""
        return self.solve_lower(tril, matrix, trans=True)

    def lower_product(self, left: Array, right: Array) -> Array:
        """The product of two lower triangles, in halves, of which the zeros are not multiplied."""
        size = len(left)
        if size <= SMALL_TRIANGLE:
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
        if size <= SMALL_TRIANGLE:
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
        if size <= SMALL_TRIANGLE:
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
        """Whether one O(d^3) product for all of these draws is the cheaper way."""
        *batch, dim = noise.shape
        return dim <= self.small_dim or math.prod(batch) >= self.many_draws

    def root_of_inverse(self, tril: Array) -> Array:
        """The lower triangular ``C`` with ``C C^T = (T T^T)^-1``, its diagonal positive.

        By a QR factorisation of ``T^-1``, because ``T T^T`` would square the condition number.

        :param tril: ``T``, lower triangular, shape ``(d, d)``.
        """
        return self.positive_diagonal(self.upper_factor(self.inverse_lower(tril)).mT)

    def positive_diagonal(self, tril: Array) -> Array:
        """The factor of the same matrix whose diagonal is positive: signs of columns are free."""
        return self.xp.where(tril.diagonal() < 0, -tril, tril)

    def lower(self, matrix: Array) -> Array:
        """Matrices ``(..., k, k)`` with zeros above the diagonal."""
        return self.xp.tril(matrix)

    def diagonals(self, matrix: Array) -> Array:
        """Those of matrices ``(..., k, k)``, shape ``(..., k)``."""
        return matrix.diagonal(0, -2, -1)

    def log_abs_det(self, tril: Array) -> Array:
        """``log |det T|`` of a triangular matrix."""
        return self.total(self.xp.log(abs(self.diagonals(tril))))

    def all(self, flags: Array, like: Array) -> Array:
        """Whether all of them are true.

        :param like: numbers of the same shape.
        """
        return flags.all()

    def total(self, tensor: Array) -> Array:
        """The sum of all entries."""
        return tensor.sum()

    def row_products(self, left: Array, right: Array) -> Array:
        """The sums of products along the last axis."""
        return (left * right).sum(-1)

    def sum_rows(self, matrix: Array) -> Array:
        """The sums of the rows of matrices, ``(..., n, d)`` to ``(..., d)``."""
        return matrix.sum(-2)

    def add_off_zero(self, tril: Array, step: Array) -> Array:
        """The sum of triangles, its diagonal as :meth:`keep_off_zero` has it."""
        new = tril + step
        return self.with_diagonal(new, self.keep_off_zero(tril.diagonal(), new.diagonal()))

    def keep_off_zero(self, old: Array, new: Array) -> Array:
        """``new``, or ``MIN_SHRINKAGE * |old|`` with its sign where it is smaller than that.

        At zero ``q`` degenerates, and only there: beyond it lies its mirror image. A rule that
        keeps the sign would halve the coordinate at every step for as long as a momentum points
        at zero, which lasts longer than floating point numbers do.
        """
        floor = MIN_SHRINKAGE * abs(old)
        return self.xp.where(abs(new) < floor, self.xp.copysign(floor, new), new)
