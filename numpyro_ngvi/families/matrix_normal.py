"""Matrices with a Kronecker covariance, of JAX; see :mod:`ngvi.families.matrix_normal`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import jax
import jax.numpy as jnp

from ngvi.families import matrix_normal
from numpyro_ngvi.families.base import Family, compiled
from numpyro_ngvi.pytree import register


@compiled(
    "stddev",
    "whiten",
    "sample",
    "displacement",
    "natural_gradient",
    "euclidean_gradient",
    "outer_products",
    "bonnet_price",
    "price_of_rows",
    "price_of_squares",
    "_isometric",
    "_trace_ratio",
    "retract",
)
@register
class MatrixNormal(matrix_normal.MatrixNormal, Family):
    def fisher_products(
        self, directions: Sequence[Self], others: Sequence[Self] = ()
    ) -> tuple[list[list[jax.Array]], list[list[jax.Array]]]:
        columns = zip(*(self._isometric(one) for one in (*directions, *others)), strict=True)
        means, scales = (
            [[jnp.vdot(a, b) for b in vectors] for a in vectors[: len(directions)]]
            for vectors in columns
        )
        return means, scales
