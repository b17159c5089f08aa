"""Steps in whitened coordinates of a precision whose factor is an arrow.

As in :mod:`~numpyro_ngvi.linalg.definite`, with a root ``R`` of ``M = I + rho (N + N^T)`` that is
an :class:`~numpyro_ngvi.linalg.arrow.Arrow`, and ``|A|^2`` the sum of its squared entries.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from numpyro_ngvi.linalg import batched
from numpyro_ngvi.linalg.arrow import Arrow, Vector
from numpyro_ngvi.linalg.definite import is_definite

#: The largest entry of a multiplicative step: beyond, squares of a float32 overflow.
MAX_RETRACTION = 1e6


class ArrowStep(NamedTuple):
    """A step in whitened coordinates, by the root ``R`` of the new precision."""

    root: Arrow  #: ``R`` with ``R R^T = M``
    shift: Vector  #: ``s = rho M^-1 w``

    @classmethod
    def along(cls, rho: jax.Array | float, half: Arrow, shift: Vector) -> ArrowStep:
        """The step to ``M``, from ``half = N`` and ``shift = w``."""
        root = precision_root(half.combine(lambda block: rho * block))
        moved = root.solve_transpose(root.solve(shift))
        return cls(root, [rho * part for part in moved])

    def kl(self) -> jax.Array:
        """``KL(new || old)`` in nats."""
        inverse = self.root.solve_matmul(Arrow.identity(self.root.structure, self.shift[0]))
        return 0.5 * _size(inverse, self.shift) + _log_det(self.root)

    def backward_kl(self) -> jax.Array:
        """``KL(old || new)`` in nats."""
        shift = self.root.transpose_times(self.shift)
        return 0.5 * _size(self.root, shift) - _log_det(self.root)


def _size(root: Arrow, shift: Vector) -> jax.Array:
    trace = sum(jnp.sum(block**2) for mine in root.blocks for block in mine)
    return trace + sum(jnp.sum(part**2) - part.size for part in shift)


def _log_det(root: Arrow) -> jax.Array:
    return sum(jnp.sum(jnp.log(diagonal)) for diagonal in root.diagonals())


def precision_root(half: Arrow) -> Arrow:
    """``R`` with ``R R^T = I + N + N^T``, its diagonal positive.

    Where that is not positive definite the retraction ``R = I + N + N^2 / 2`` (Lin, Nielsen, Khan
    and Schmidt, 2021) always is: its diagonal is at least one half.

    :param half: ``N``.
    """
    eye = Arrow.identity(half.structure, half.blocks[0][0])
    change = half.map_diagonal(lambda block: block + batched.transpose(block))
    plain = change.combine(jnp.add, eye).cholesky()
    definite = list(map(is_definite, plain.diagonals(), change.diagonals()))

    def retraction() -> Arrow:
        largest = jnp.max(jnp.stack([jnp.max(jnp.abs(b)) for mine in half.blocks for b in mine]))
        short = jnp.where(largest > 0, jnp.minimum(1.0, MAX_RETRACTION / largest), 1.0)
        step = half.combine(lambda block: short * block)
        return step.combine(lambda m, m2, one: one + m + 0.5 * m2, step.matmul(step), eye)

    return jax.lax.cond(jnp.all(jnp.stack(definite)), lambda: plain, retraction)
