"""A symmetric matrix of low rank plus a diagonal, ``S = U U^T + diag(D)``.

Let ``V = D^-1/2 U`` and ``L L^T = I + V^T V``, a Cholesky factorisation of size ``r``. Then

    S = D^1/2 R R^T D^1/2,      R = I + V (I + L)^-1 V^T,      |R| = |L|,                  (1)
    R^-T = I - V L^-T (I + L)^-1 V^T,

because ``I + V J^-1 V^T`` is a root of ``I + V V^T`` where ``(J - I) (J - I)^T = I + V^T V``.
Nothing is inverted that ``U = 0`` makes singular. Time is O(d r^2), memory O(d r).
"""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_ngvi.linalg.triangular import solve_lower, symmetric

#: The eigenvalue of ``V^T V`` below which a direction's metric no longer falls.
MIN_STRENGTH = 1e-3

#: The eigenvalues of ``V^T V`` at the start: ``U = 0`` is a saddle, which no gradient leaves.
INITIAL_STRENGTH = 0.1

#: Rows of a factor handled together, so that what is made of them stays in the cache.
ROWS_AT_ONCE = 4096

#: The rank up to which a product is written out as its sums.
MAX_WRITTEN_OUT = 32

#: Improvements of the diagonal in a projection to low rank at most, and the change, relative
#: to the largest entry of the diagonal, that is not worth another.
PROJECTION_SWEEPS = 100
PROJECTION_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class LowRank:
    """``U U^T + diag(D)``.

    :param factor: ``U``, shape ``(d, r)``.
    :param diagonal: ``D``, positive, shape ``(d,)``.
    """

    factor: jax.Array
    diagonal: jax.Array

    def strength(self) -> jax.Array:
        """``V^T V``."""
        return symmetric(_weighted_products(self.factor, 1.0 / self.diagonal))

    def root(self) -> jax.Array:
        """``L``."""
        return jnp.linalg.cholesky(shifted(self.strength()))

    def metric(self) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
        """``B = U^T S^-1 U``, its inverse, and the eigenvalues and eigenvectors of ``V^T V``.

        ``B`` as if no eigenvalue were below ``MIN_STRENGTH``.
        """
        values, vectors = jnp.linalg.eigh(self.strength())
        values = jnp.maximum(values, 0.0)
        inverse = inverse_values(values)
        return (vectors / inverse) @ vectors.T, (vectors * inverse) @ vectors.T, (values, vectors)

    def log_det(self) -> jax.Array:
        """``log |S|``."""
        root = self.root()
        return jnp.sum(jnp.log(self.diagonal)) + 2.0 * jnp.sum(jnp.log(jnp.diagonal(root)))

    def inverse_diagonal(self) -> jax.Array:
        """The diagonal of ``S^-1``."""
        # The share of D in S that U adds; of a share that is nearly one only rounding is left.
        leverage = jnp.sum((self.factor @ _inverse(self.root()).T) ** 2, 1) / self.diagonal
        return jnp.maximum(1.0 - leverage, float(jnp.finfo(leverage.dtype).eps)) / self.diagonal

    def times(self, rows: jax.Array) -> jax.Array:
        """``S`` times each row, shape ``(..., d)``."""
        return self.diagonal * rows + rows_of(rows @ self.factor, self.factor)

    def divide(self, rows: jax.Array) -> jax.Array:
        """``S^-1`` times each row, shape ``(..., d)``."""
        root, scaled = self.root(), rows / self.diagonal
        inner = solve_rows(root, solve_rows(root, scaled @ self.factor), trans=True)
        return scaled - rows_of(inner, self.factor) / self.diagonal

    def divide_factor(self) -> jax.Array:
        """``S^-1 U = D^-1 U (I + V^T V)^-1``."""
        inverse = _inverse(self.root())
        return (self.factor @ (inverse.T @ inverse)) / self.diagonal[:, None]

    def root_times(self, rows: jax.Array) -> jax.Array:
        """``C`` times each row, for ``C = D^-1/2 R^-T``."""
        root, scaled = self.root(), rows / jnp.sqrt(self.diagonal)
        inner = solve_rows(shifted(root), scaled @ self.factor)
        inner = solve_rows(root, inner, trans=True)
        return scaled - rows_of(inner, self.factor) / self.diagonal

    def root_divide(self, rows: jax.Array) -> jax.Array:
        """``C^-1`` times each row, shape ``(..., d)``."""
        sqrt = jnp.sqrt(self.diagonal)
        inner = solve_rows(shifted(self.root()), rows @ self.factor, trans=True)
        return sqrt * rows + rows_of(inner, self.factor) / sqrt


def initial_factor(dim: int, rank: int) -> np.ndarray:
    """A faint ``U`` for ``D = I``, the same in every run, shape ``(d, rank)``."""
    rows = np.random.default_rng(0).choice([-1.0, 1.0], (dim, rank))
    return math.sqrt(INITIAL_STRENGTH / dim) * rows


def inverse_values(values: jax.Array) -> jax.Array:
    """The eigenvalues of ``B^-1`` from those of ``V^T V``."""
    return 1.0 + 1.0 / jnp.maximum(values, MIN_STRENGTH)


def shifted(root: jax.Array) -> jax.Array:
    """``I + L``."""
    return root + jnp.eye(root.shape[-1], dtype=root.dtype)


def _inverse(lower: jax.Array) -> jax.Array:
    return solve_lower(lower, jnp.eye(lower.shape[-1], dtype=lower.dtype))


def rows_of(inner: jax.Array, factor: jax.Array) -> jax.Array:
    """``inner @ factor.T``, shape ``(..., d)``, whose derivative needs no copy of the transpose."""
    return jax.lax.dot_general(inner, factor, (((inner.ndim - 1,), (1,)), ((), ())))


def products(left: jax.Array, right: jax.Array) -> jax.Array:
    """``left^T right`` for two factors, shape ``(r, r)``."""
    rank = left.shape[-1]
    if rank > MAX_WRITTEN_OUT:
        return left.T @ right
    # The transpose of these sums joins the loop that makes the rest of a gradient; that of a
    # matrix product is an array of size d r of its own, and a slow one.
    return jnp.stack([jnp.sum(left[:, k, None] * right, 0) for k in range(rank)])


@jax.custom_jvp
def _weighted_products(factor: jax.Array, weights: jax.Array) -> jax.Array:
    """``factor^T diag(weights) factor``, shape ``(r, r)``."""
    dim, rank = factor.shape
    if dim <= ROWS_AT_ONCE:
        return (factor.T * weights) @ factor

    def add(index: jax.Array, total: jax.Array) -> jax.Array:
        start = jnp.minimum(index * ROWS_AT_ONCE, dim - ROWS_AT_ONCE)
        rows = jax.lax.dynamic_slice_in_dim(factor, start, ROWS_AT_ONCE).T
        weight = jax.lax.dynamic_slice_in_dim(weights, start, ROWS_AT_ONCE)
        # The last piece begins within the one before.
        new = start + jnp.arange(ROWS_AT_ONCE) >= index * ROWS_AT_ONCE
        return total + (rows * jnp.where(new, weight, 0.0)) @ rows.T

    zero = jnp.zeros((rank, rank), factor.dtype)
    return jax.lax.fori_loop(0, -(-dim // ROWS_AT_ONCE), add, zero)


# Its own derivative also keeps the loop whole: JAX would take it apart, in one place of a step
# and not in another, and XLA could not see that they are the same.
@_weighted_products.defjvp
def _weighted_products_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, jax.Array]:
    (factor, weights), (change, change_of_weights) = primals, tangents
    half = (change.T * weights) @ factor
    return _weighted_products(factor, weights), half + half.T + (
        factor.T * change_of_weights
    ) @ factor


def solve_rows(lower: jax.Array, rows: jax.Array, trans: bool = False) -> jax.Array:
    """``lower^-1`` (or its transpose) times each row, shape ``(..., r)``."""
    columns = rows.reshape(-1, rows.shape[-1]).T
    return solve_lower(lower, columns, trans=trans).T.reshape(rows.shape)


def project_dense(
    matrix: jax.Array, factor: jax.Array, diagonal: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """``U`` and ``D`` with ``U U^T + D`` near a symmetric matrix, and its diagonal.

    Principal factor analysis: the leading directions of what the diagonal leaves, by subspace
    iteration, and the diagonal that they leave, in turn. Exact, once it has converged, where
    the matrix has that form.

    :param factor: where to start, with the diagonal.
    """
    dim, rank = factor.shape
    whole = jnp.diagonal(matrix)
    # Twice the rank: large negative eigenvalues may take a place, but not keep it.
    spare = jnp.asarray(initial_factor(dim, min(rank, dim - rank)), factor.dtype)
    basis = jnp.linalg.qr(jnp.concatenate([factor, spare], 1))[0]

    def unsettled(state: tuple) -> jax.Array:
        *_, count, change = state
        return (count < PROJECTION_SWEEPS) & (change > PROJECTION_TOLERANCE)

    def sweep(state: tuple) -> tuple:
        basis, _, diagonal, count, _ = state
        basis = jnp.linalg.qr(matrix @ basis - diagonal[:, None] * basis)[0]
        inner = basis.T @ (matrix @ basis - diagonal[:, None] * basis)
        values, vectors = jnp.linalg.eigh(symmetric(inner))
        basis = basis @ vectors
        leading = jnp.sqrt(jnp.maximum(values[-rank:], 0.0))
        factor = basis[:, -rank:] * leading
        new = whole - jnp.sum(factor**2, 1)
        change = jnp.max(jnp.abs(new - diagonal)) / jnp.max(jnp.abs(whole))
        return basis, factor, new, count + 1, change

    far = jnp.full((), jnp.inf, factor.dtype)
    start = (basis, factor, diagonal, jnp.zeros((), jnp.int32), far)
    return jax.lax.while_loop(unsettled, sweep, start)[1:3]


def turned(factor: jax.Array, reference: jax.Array) -> jax.Array:
    """The rotation of a factor that is nearest to another one."""
    left, _, right = jnp.linalg.svd(factor.T @ reference)
    return factor @ (left @ right)
