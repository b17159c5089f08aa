"""Steps of a Kronecker product: both factors' precisions, with one scale.

In whitened coordinates a matrix (``m x n``) has the precision ``I``, and the rule's mixture is
``I + rho D`` with ``D = -P`` of :mod:`~ngvi.linalg.definite`: no Kronecker product in general. What
is known of it are its partial traces, divided by ``n`` and ``m``,

    M_U = I + rho D_U,        M_V = I + rho D_V,        tr D_U / m = tr D_V / n,           (1)

and the step's precision is the Kronecker product that has the same,

    M = M_U (x) M_V / s,        s = tr M_U / m = tr M_V / n.                               (2)

It is the mixture to first order in ``rho``, the mixture itself where that is a Kronecker product,
and so at ``rho = 1`` the posterior of a conjugate model of this form. Each of (1) is kept positive
definite as the precision of any family; where that changes their traces, ``s^2`` is the product of
the two. By ``M_U^-1 = R R^T`` and ``M_V^-1 = T T^T`` nothing has ``(m n)^2`` entries.

How far (2) leads at least is known from eigenvalues. With ``g_U`` the arithmetic mean of the
eigenvalues of ``M_U^-1`` divided by the geometric one, and a mean that stays,

    KL(new || old) = (x g_U g_V - 1 - log x) m n / 2 >= (log g_U + log g_V) m n / 2,       (3)

whatever the scale ``x`` is. Eigenvalues that are left out, of which rounding decides whether they
are positive, are taken as the mean of the others, which makes (3) smallest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ngvi.linalg.definite import SMALLEST, Definite
from ngvi.linalg.matrices import Array

#: Eigenvalues up to this part of the largest may have either sign by rounding, with room to spare.
UNSURE = 1e-3


class KroneckerStep(NamedTuple):
    """A step of a matrix in whitened coordinates."""

    row_root: Array  #: ``R``, lower triangular, shape ``(m, m)``
    row_inverse: Array  #: ``R^-1``
    column_root: Array  #: ``T``, shape ``(n, n)``
    column_inverse: Array  #: ``T^-1``
    size: Array  #: ``s``
    shift: Array | None  #: of the mean, shape ``(m, n)``; None if it stays


@dataclasses.dataclass(frozen=True)
class KroneckerSteps:
    """The :class:`KroneckerStep` of every size along a direction."""

    ops: Definite

    def along(
        self, rho: Array | float, change: tuple[Array, Array], shift: Array | None
    ) -> KroneckerStep:
        """The step to (2), from ``D_U`` and ``D_V``, and from ``w = C^-1 dmu``, ``(m, n)``.

        :param shift: None for a mean that stays.
        """
        rows, inverse_rows = self.ops.covariance_root(rho * change[0])
        columns, inverse_columns = self.ops.covariance_root(rho * change[1])
        of_rows, of_columns = _mean_square(inverse_rows), _mean_square(inverse_columns)
        size = self.ops.xp.sqrt(of_rows * of_columns)
        step = None
        if shift is not None:
            step = rho * size * (rows @ (rows.mT @ shift @ columns) @ columns.mT)
        return KroneckerStep(rows, inverse_rows, columns, inverse_columns, size, step)

    def kl(self, step: KroneckerStep) -> Array:
        """``KL(new || old)`` in nats, by (2) of :mod:`~ngvi.linalg.definite`."""
        trace = step.size * (step.row_root**2).sum() * (step.column_root**2).sum()
        return self._moved(step, trace, step.shift) - self._log_det(step)

    def backward_kl(self, step: KroneckerStep) -> Array:
        """``KL(old || new)`` in nats."""
        trace, shift = (step.row_inverse**2).sum() * (step.column_inverse**2).sum(), None
        if step.shift is not None:
            shift = step.row_inverse @ step.shift @ step.column_inverse.mT
            shift = shift / self.ops.xp.sqrt(step.size)
        return self._moved(step, trace / step.size, shift) + self._log_det(step)

    def _moved(self, step: KroneckerStep, trace: Array, shift: Array | None) -> Array:
        half = 0.5 * (trace - len(step.row_root) * len(step.column_root))
        return half if shift is None else half + 0.5 * (shift**2).sum()

    def _log_det(self, step: KroneckerStep) -> Array:
        """``-log |M| / 2``."""
        rows, columns, xp = len(step.row_root), len(step.column_root), self.ops.xp
        of_roots = columns * self.ops.log_abs_det(step.row_root)
        of_roots = of_roots + rows * self.ops.log_abs_det(step.column_root)
        return of_roots + 0.5 * rows * columns * xp.log(step.size)


class NumberStep(NamedTuple):
    """A step of independent latents in whitened coordinates."""

    ratio: Array  #: of the new variances to the old ones
    shift: Array | None  #: of the means; None if they stay


@dataclasses.dataclass(frozen=True)
class NumberSteps:
    """The :class:`NumberStep` of every size along a direction."""

    ops: Definite

    def along(self, rho: Array | float, change: Array, shift: Array | None) -> NumberStep:
        """The step to precisions ``1 + rho change``, from ``change = -P`` and ``w``."""
        ratio = self.ops.new_variance_ratio(rho * change)
        return NumberStep(ratio, None if shift is None else rho * ratio * shift)

    def kl(self, step: NumberStep) -> Array:
        """``KL(new || old)`` in nats."""
        sizes = step.ratio - 1.0 - self.ops.xp.log(step.ratio)
        return 0.5 * (sizes if step.shift is None else sizes + step.shift**2).sum()

    def backward_kl(self, step: NumberStep) -> Array:
        """``KL(old || new)`` in nats."""
        size = 1.0 if step.shift is None else 1.0 + step.shift**2
        sizes = size / step.ratio - 1.0 + self.ops.xp.log(step.ratio)
        return 0.5 * sizes.sum()


def least_kl(
    ops: Definite, changes: Sequence[tuple[Array, Array]], most: Array | float
) -> Callable[[Array | float], Array]:
    """Nine tenths of (3), summed over matrices, as a function of ``rho``.

    It takes the eigenvalues, once. Where all factors are definite at the end of the path attempts
    are cheap, and the function is zero.

    :param changes: ``D_U`` and ``D_V`` of every matrix.
    :param most: the largest ``rho``.
    """
    xp, factors = ops.xp, [one for pair in changes for one in pair]
    lengths = [len(one) for one in factors]
    definite = xp.stack([ops.has_root(most * one) for one in factors]).all()
    spectra = ops.cond(
        definite,
        lambda: [xp.zeros_like(one[0]) for one in factors],
        lambda: [ops.eigenvalues(one) for one in factors],
    )
    values = xp.concatenate(list(spectra))
    sizes = xp.concatenate([abs(one).max() + xp.zeros_like(one) for one in spectra])
    # Sums of what belongs to one factor, and half the numbers of entries of the other.
    of_factor = ops.tensor(np.repeat(np.eye(len(factors)), lengths, 1), values)
    halves = ops.tensor([0.5 * len(one) for u, v in changes for one in (v, u)], values)

    def least(rho: Array | float) -> Array:
        new, unsure = 1.0 + rho * values, UNSURE * (1.0 + rho * sizes)
        sure = xp.where(abs(new) > unsure, xp.ones_like(new), 0.0)
        new = xp.where(new > unsure, new, SMALLEST)
        count = of_factor @ sure
        gap = count * xp.log(of_factor @ (sure / new) / count) + of_factor @ (sure * xp.log(new))
        return 0.9 * (halves * gap).sum()

    return least


def _mean_square(inverse: Array) -> Array:
    """The mean eigenvalue of ``R^-T R^-1``."""
    return (inverse**2).sum() / inverse.shape[-1]
