"""The families with a dense covariance, of JAX; see :mod:`ngvi.families`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import jax
import jax.numpy as jnp

from ngvi.families import covariance_cholesky, precision_cholesky
from ngvi.families.dense import DenseFamily
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.linalg.matrices import solve_columns
from numpyro_ngvi.pytree import register

__all__ = ["CovarianceCholesky", "DenseFamily", "PrecisionCholesky"]


@register
class CovarianceCholesky(covariance_cholesky.CovarianceCholesky, Family):
    def fisher_products(
        self, directions: Sequence[Self], others: Sequence[Self] = ()
    ) -> tuple[list[list[jax.Array]], list[list[jax.Array]]]:
        # In whitened coordinates X = C^-1 dC, lower triangular, the metric of (1) is
        # <dC, dC'> = sum_ij (1 + [i = j]) X_ij X'_ij: one solve for all directions together.
        columns = [jnp.column_stack([one.scale_tril, one.loc]) for one in (*directions, *others)]
        whitened = solve_columns(self._bound().scale_tril, jnp.concatenate(columns, 1))
        whitened = jnp.split(whitened, len(columns), 1)
        weights = 1.0 + self._identity()

        def rows(product: Callable[[jax.Array, jax.Array], jax.Array]) -> list[list[jax.Array]]:
            return [[product(a, b) for b in whitened] for a in whitened[: len(directions)]]

        return (
            rows(lambda a, b: jnp.sum(a[:, -1] * b[:, -1])),
            rows(lambda a, b: jnp.sum(weights * a[:, :-1] * b[:, :-1])),
        )


@register
class PrecisionCholesky(precision_cholesky.PrecisionCholesky, Family): ...
