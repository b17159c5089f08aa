"""Steps of a symmetric matrix that stay positive definite.

For the families whose coordinates are ``Sigma`` or ``Sigma^-1`` itself. A sum ``S + dS`` that
is positive definite is left as it is. Otherwise the eigenvalues of ``I + L^-1 dS L^-T``, with
``S = L L^T``, are corrected as in :mod:`~numpyro_ngvi.families.whitened`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from numpyro_ngvi.families.dense import symmetric
from numpyro_ngvi.families.triangular import solve_lower
from numpyro_ngvi.families.whitened import precision_root


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
    margin = floor * matrix + jnp.diag(_rounding(matrix, total))
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
    margin = jnp.diag(_rounding(old, square))
    definite = jnp.all(jnp.isfinite(jnp.linalg.cholesky(square - margin)))

    def raised() -> tuple[jax.Array, jax.Array]:
        higher = square + 2 * margin
        return higher, jnp.linalg.cholesky(higher)

    return jax.lax.cond(definite, lambda: (square, factor), raised)


def _rounding(old: jax.Array, new: jax.Array) -> jax.Array:
    # Of either: an optimiser that adds the difference of the two to the old one, as optax
    # does, leaves the rounding of the larger.
    largest = jnp.maximum(jnp.diagonal(old), jnp.diagonal(new))
    return 4 * math.sqrt(old.shape[-1]) * float(jnp.finfo(old.dtype).eps) * largest


def congruence(root: jax.Array, matrix: jax.Array) -> jax.Array:
    """``R^-1 A R^-T`` for the symmetric part of ``A``.

    :param root: ``R``, lower triangular, shape ``(d, d)``.
    """
    half = solve_lower(root, symmetric(matrix))
    return symmetric(solve_lower(root, half.T))


def divide(root: jax.Array, rhs: jax.Array) -> jax.Array:
    """``(R R^T)^-1 b``."""
    return solve_lower(root, solve_lower(root, rhs), trans=True)
