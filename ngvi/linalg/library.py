"""Operations that torch and jax spell differently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: A tensor of whichever library.
Array = Any


class Library:
    """A package writes all of this, or takes what is here."""

    xp: Any  #: Torch or ``jax.numpy``.

    def tensor(self, values: Any, like: Array) -> Array:
        """Numbers as a tensor of the dtype and device of ``like``."""
        raise NotImplementedError

    def scatter(self, size: int, places: np.ndarray, values: Array) -> Array:
        """Return a vector that is zero but for ``values``."""
        raise NotImplementedError

    def eye(self, size: int, like: Array) -> Array:
        """Return the identity of the dtype and device of ``like``."""
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
        """Sum the products of each of ``k`` lists of tensors with each of ``n``.

        :return: ``k`` rows of ``n`` numbers.
        """
        raise NotImplementedError

    def at_least(self, values: Array, floor: float) -> Array:
        """``values``, none below ``floor``."""
        raise NotImplementedError

    def select(self, flag: Any, yes: Array, no: Array) -> Array:
        """Return one of two tensors, both of which are known, by a boolean of no dimensions."""
        raise NotImplementedError

    def likely(self, flag: Array) -> Any:
        """Return a boolean that is nearly always true, for :meth:`select` and :meth:`cond`.

        A library that has to read it may take it to be true until it reads something else.
        """
        raise NotImplementedError

    def cond(self, flag: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """Return the result of one of two functions; only that one is called."""
        raise NotImplementedError

    def while_loop(self, test: Callable, body: Callable, state: tuple) -> tuple:
        """``body`` of ``body`` of ... ``state``, as long as ``test`` of it holds."""
        raise NotImplementedError

    def split(self, tensor: Array, sizes: list[int]) -> Sequence[Array]:
        """Return the last axis cut into pieces."""
        raise NotImplementedError

    def with_diagonal(self, matrix: Array, diagonal: Array) -> Array:
        """``matrix`` with another diagonal."""
        raise NotImplementedError

    def centred_cumsum(self, matrix: Array) -> Array:
        """Return the cumulative sums along each row, less half of the entry itself."""
        raise NotImplementedError

    def cholesky(self, matrix: Array) -> Array:
        """Return the lower Cholesky factor, NaN where there is none.

        :param matrix: symmetric, shape ``(..., k, k)``.
        """
        raise NotImplementedError

    def eigh(self, matrix: Array) -> tuple[Array, Array]:
        """Eigenvalues and eigenvectors of symmetric matrices, NaN where there are none."""
        return self.xp.linalg.eigh(matrix)

    def svd(self, matrix: Array) -> tuple[Array, Array]:
        """``U`` and ``V^T`` of a singular value decomposition, NaN where there is none."""
        left, _, right = self.xp.linalg.svd(matrix)
        return left, right

    def upper_factor(self, matrix: Array) -> Array:
        """Return the triangle ``R`` of ``Q R``, shape ``(..., k, k)``."""
        raise NotImplementedError

    def solve_lower(self, tril: Array, rhs: Array, trans: bool = False) -> Array:
        """``T^-1 b`` or ``T^-T b``, for a vector or for columns.

        :param tril: ``T``, lower triangular, shape ``(d, d)``.
        :param rhs: ``b``, shape ``(d,)`` or ``(d, n)``.
        """
        raise NotImplementedError

    def inverse_small(self, tril: Array) -> Array:
        """:meth:`inverse_lower` by one solution."""
        raise NotImplementedError
