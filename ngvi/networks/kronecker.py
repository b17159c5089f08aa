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

An attempt takes a Cholesky factorisation of each factor, and its inverse. Eigenvectors, which all
attempts could share, take four times as long (LeNet-5, in torch), and one attempt mostly does.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from ngvi.linalg.definite import Definite
from ngvi.linalg.matrices import Array


class Root(NamedTuple):
    """``M_U^-1 = R R^T``, or the same of ``V``."""

    lower: Array  #: ``R``, a lower triangle, shape ``(m, m)``.
    mean: Array  #: Mean of the eigenvalues of ``M_U``.


class KroneckerStep(NamedTuple):
    """A step of a matrix in whitened coordinates."""

    rows: Root
    columns: Root
    size: Array  #: ``s``.
    turned: Array  #: ``rho R^T w T``, of which the mean's shift is ``s R (...) T^T``.


@dataclasses.dataclass(frozen=True)
class KroneckerSteps:
    """The :class:`KroneckerStep` of every size along a direction."""

    ops: Definite
    are_definite: bool = False  #: True if both precisions are known to be positive definite.

    def damped(self, rho: Array | float, change: tuple[Array, Array]) -> tuple[Array, Array]:
        """Return the changes whose step of ``rho`` is that of a curvature that is mostly noise.

        See :meth:`~ngvi.linalg.definite.Definite.damped`. The ``s`` of (2) is that of the traces
        of (1) alone: with the squares of noise in it every step would widen all of the matrix.
        """
        share, new = self.ops.damped(*(rho * one for one in change))
        means = [1.0 + one.diagonal().mean() for one in new]
        of_traces = share[0] * rho * change[0].diagonal().mean()
        wanted = 1.0 + of_traces + 0.5 * of_traces**2
        times = self.ops.xp.sqrt(means[0] * means[1]) / wanted
        amount, times = (times - 1.0) / rho, times / rho
        rows, columns = (self.ops.plus_diagonal(one, amount, times) for one in new)
        return rows, columns

    def along(self, rho: Array | float, change: tuple[Array, Array], shift: Array) -> KroneckerStep:
        """Return the step to (2), from ``D_U``, ``D_V`` and ``w = C^-1 dmu``, shape ``(m, n)``."""
        roots = (self.ops.covariance_root(rho * one, self.are_definite) for one in change)
        rows, columns = (Root(root, (inverse**2).sum() / len(root)) for root, inverse in roots)
        size = self.ops.xp.sqrt(rows.mean * columns.mean)
        return KroneckerStep(rows, columns, size, rho * _turned(rows, columns, shift))

    def metric(self, step: KroneckerStep, whitened: Array) -> Array:
        """``M^-1 w``, shape ``(m, n)``."""
        return self._back(step, step.size * _turned(step.rows, step.columns, whitened))

    def inner_shift(self, step: KroneckerStep) -> Array:
        """Return what stands between ``R`` and ``T^T`` in the mean's shift, shape ``(m, n)``."""
        return step.size * step.turned

    def _back(self, step: KroneckerStep, turned: Array) -> Array:
        return step.rows.lower @ turned @ step.columns.lower.mT

    def kl(self, step: KroneckerStep) -> Array:
        """``KL(new || old)`` in nats, by (2) of :mod:`~ngvi.linalg.definite`."""
        trace = step.size * (step.rows.lower**2).sum() * (step.columns.lower**2).sum()
        shift = self._back(step, self.inner_shift(step))
        return self._moved(step, trace, shift) - self._log_det(step)

    def backward_kl(self, step: KroneckerStep) -> Array:
        """``KL(old || new)`` in nats."""
        trace = step.rows.mean * step.columns.mean * _num(step)
        shift = self.ops.xp.sqrt(step.size) * step.turned
        return self._moved(step, trace / step.size, shift) + self._log_det(step)

    def _moved(self, step: KroneckerStep, trace: Array, shift: Array) -> Array:
        return 0.5 * (trace - _num(step)) + 0.5 * (shift**2).sum()

    def _log_det(self, step: KroneckerStep) -> Array:
        """``-log |M| / 2``."""
        rows, columns = step.rows.lower, step.columns.lower
        of_rows, of_columns = self.ops.log_abs_det(rows), self.ops.log_abs_det(columns)
        of_roots = len(columns) * of_rows + len(rows) * of_columns
        return of_roots + 0.5 * _num(step) * self.ops.xp.log(step.size)


def _turned(rows: Root, columns: Root, whitened: Array) -> Array:
    """``R^T w T``."""
    return rows.lower.mT @ whitened @ columns.lower


def _num(step: KroneckerStep) -> int:
    return len(step.rows.lower) * len(step.columns.lower)


class NumberStep(NamedTuple):
    """A step of independent latents in whitened coordinates."""

    ratio: Array  #: Ratio of the new variances to the old ones.
    shift: Array  #: Shift of the means.


@dataclasses.dataclass(frozen=True)
class NumberSteps:
    """The :class:`NumberStep` of every size along a direction."""

    ops: Definite

    def damped(self, rho: Array | float, change: Array) -> Array:
        """Damp a change as :func:`ngvi.families.steps.corrected` does of a mean field."""
        return change + 0.5 * rho * change**2

    def along(self, rho: Array | float, change: Array, shift: Array) -> NumberStep:
        """Return the step to precisions ``1 + rho change``, from ``change = -P`` and ``w``."""
        ratio = self.ops.new_variance_ratio(rho * change)
        return NumberStep(ratio, rho * ratio * shift)

    def kl(self, step: NumberStep) -> Array:
        """``KL(new || old)`` in nats."""
        sizes = step.ratio - 1.0 - self.ops.xp.log(step.ratio)
        return 0.5 * (sizes + step.shift**2).sum()

    def backward_kl(self, step: NumberStep) -> Array:
        """``KL(old || new)`` in nats."""
        sizes = (1.0 + step.shift**2) / step.ratio - 1.0 + self.ops.xp.log(step.ratio)
        return 0.5 * sizes.sum()
