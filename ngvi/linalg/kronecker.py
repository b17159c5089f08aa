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

Eigenvectors of ``D_U`` are those of ``M_U`` for every ``rho``, and several attempts share them:
with ``M_U^-1 = V diag(v) V^T`` an attempt takes no factorisation, and its divergence no more than

    2 KL(new || old) = s tr M_U^-1 tr M_V^-1 - m n + n log |M_U| + m log |M_V| - m n log s       (3)

where the mean stays. The one that is taken becomes a triangle by a QR factorisation. Where all
factors are definite at the longest step, attempts are few, and Cholesky factorisations take less
than spectra.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ngvi.linalg.definite import Definite, Spectrum
from ngvi.linalg.matrices import Array


class Root(NamedTuple):
    """``M_U^-1 = R diag(v) R^T``, or the same of ``V``."""

    basis: Array  #: ``R``, a lower triangle, or the eigenvectors, shape ``(m, m)``
    inverse: Array  #: ``R^-1``
    values: Array  #: ``v``, shape ``(m,)``
    trace: Array  #: of ``M_U^-1``
    mean: Array  #: of the eigenvalues of ``M_U``
    log_det: Array  #: ``log |M_U^-1| / 2``


class KroneckerStep(NamedTuple):
    """A step of a matrix in whitened coordinates."""

    rows: Root
    columns: Root
    is_lower: Array | bool  #: whether both are lower triangles
    size: Array  #: ``s``
    shift: Array | None  #: of the mean, shape ``(m, n)``; None if it stays


class Spectra(NamedTuple):
    """What several attempts share."""

    definite: Array  #: whether all matrices' factors are at the longest step; else there are ...
    rows: Spectrum  #: ... that of ``D_U``
    columns: Spectrum  #: ... and of ``D_V``


@dataclasses.dataclass(frozen=True)
class KroneckerSteps:
    """The :class:`KroneckerStep` of every size along a direction."""

    ops: Definite
    spectra: Spectra | None = None  #: of this direction, if they are known

    def calmed(self, rho: Array | float, change: tuple[Array, Array]) -> tuple[Array, Array]:
        """The changes whose step of ``rho`` is that of a curvature that is mostly noise.

        See :meth:`~ngvi.linalg.definite.Definite.calmed`. The ``s`` of (2) is that of the traces
        of (1) alone: with the squares of noise in it every step would widen all of the matrix.
        """
        share, new = self.ops.calmed(*(rho * one for one in change))
        means = [1.0 + one.diagonal().sum() / len(one) for one in new]
        of_traces = share[0] * rho * change[0].diagonal().sum() / len(change[0])
        wanted = 1.0 + of_traces + 0.5 * of_traces**2
        times = self.ops.xp.sqrt(means[0] * means[1]) / wanted
        eyes = [self.ops.eye(len(one), one) for one in new]
        rows, columns = (
            (times * one + (times - 1.0) * eye) / rho for one, eye in zip(new, eyes, strict=True)
        )
        return rows, columns

    def along(
        self, rho: Array | float, change: tuple[Array, Array], shift: Array | None
    ) -> KroneckerStep:
        """The step to (2), from ``D_U`` and ``D_V``, and from ``w = C^-1 dmu``, ``(m, n)``.

        :param shift: None for a mean that stays.
        """
        ops, known = self.ops, self.spectra
        if known is None:
            is_lower = True
            rows, columns = (self._triangle(*ops.covariance_root(rho * d)) for d in change)
        else:
            is_lower, found = known.definite, (known.rows, known.columns)
            rows, columns = ops.cond(
                is_lower,
                lambda: tuple(self._triangle(*ops.known_root(rho * d)) for d in change),
                lambda: tuple(self._scaled(rho, spectrum) for spectrum in found),
            )
        size = ops.xp.sqrt(rows.mean * columns.mean)
        step = KroneckerStep(rows, columns, is_lower, size, None)
        return step if shift is None else step._replace(shift=rho * self._times(step, shift))

    def _triangle(self, root: Array, inverse: Array) -> Root:
        trace, mean = (root**2).sum(), (inverse**2).sum() / len(root)
        values = self.ops.xp.ones_like(root[0])
        return Root(root, inverse, values, trace, mean, self.ops.log_abs_det(root))

    def _scaled(self, rho: Array | float, of: Spectrum) -> Root:
        new = self.ops.positive(rho * of.values, rho * of.size)
        log_det = -0.5 * self.ops.xp.log(new).sum()
        values = 1.0 / new
        return Root(of.vectors, of.vectors.mT, values, values.sum(), new.mean(), log_det)

    def images(self, a: Array, b: Array, whitened: Array) -> Callable[[KroneckerStep], Array]:
        """A function of a step: ``A M^-1 w B^T``, of whose products attempts share what they can.

        :param whitened: ``w``, shape ``(m, n)``.
        """
        known = self.spectra
        if known is None:
            return lambda step: a @ self._times(step, whitened) @ b.mT
        rows, columns = known.rows.vectors, known.columns.vectors
        left, right, turned = self.ops.cond(
            known.definite,
            lambda: (a, b, whitened),
            lambda: (a @ rows, b @ columns, rows.mT @ whitened @ columns),
        )

        def image(step: KroneckerStep) -> Array:
            inner = self.ops.cond(
                known.definite,
                lambda: self._times(step, whitened),
                lambda: _weights(step) * turned,
            )
            return left @ inner @ right.mT

        return image

    def _times(self, step: KroneckerStep, whitened: Array) -> Array:
        """``M^-1 w``, shape ``(m, n)``."""
        rows, columns = step.rows.basis, step.columns.basis
        return rows @ (_weights(step) * (rows.mT @ whitened @ columns)) @ columns.mT

    def lower_roots(self, step: KroneckerStep) -> tuple[Array, Array]:
        """The lower triangular roots of ``s M_U^-1 (x) M_V^-1``, of one scale."""
        roots = step.rows.basis, step.columns.basis
        if step.is_lower is not True:
            roots = self.ops.cond(
                step.is_lower,
                lambda: (step.rows.basis, step.columns.basis),
                lambda: tuple(
                    self.ops.lower_root(one.basis * self.ops.xp.sqrt(one.values))
                    for one in (step.rows, step.columns)
                ),
            )
        rows, columns = roots
        return step.size**0.25 * rows, step.size**0.25 * columns

    def kl(self, step: KroneckerStep) -> Array:
        """``KL(new || old)`` in nats, by (2) of :mod:`~ngvi.linalg.definite`."""
        trace = step.size * step.rows.trace * step.columns.trace
        return self._moved(step, trace, step.shift) - self._log_det(step)

    def backward_kl(self, step: KroneckerStep) -> Array:
        """``KL(old || new)`` in nats."""
        trace, shift = step.rows.mean * step.columns.mean * _num(step), None
        if step.shift is not None:
            shift = step.rows.inverse @ step.shift @ step.columns.inverse.mT
            shift = shift / self.ops.xp.sqrt(_weights(step))
        return self._moved(step, trace / step.size, shift) + self._log_det(step)

    def _moved(self, step: KroneckerStep, trace: Array, shift: Array | None) -> Array:
        half = 0.5 * (trace - _num(step))
        return half if shift is None else half + 0.5 * (shift**2).sum()

    def _log_det(self, step: KroneckerStep) -> Array:
        """``-log |M| / 2``."""
        rows, columns = len(step.rows.values), len(step.columns.values)
        of_roots = columns * step.rows.log_det + rows * step.columns.log_det
        return of_roots + 0.5 * rows * columns * self.ops.xp.log(step.size)


def _num(step: KroneckerStep) -> int:
    return len(step.rows.values) * len(step.columns.values)


def _weights(step: KroneckerStep) -> Array:
    """The ``v`` of both, and the size: eigenvalues of ``M^-1`` in the bases."""
    return step.size * step.rows.values[:, None] * step.columns.values


class NumberStep(NamedTuple):
    """A step of independent latents in whitened coordinates."""

    ratio: Array  #: of the new variances to the old ones
    shift: Array | None  #: of the means; None if they stay


@dataclasses.dataclass(frozen=True)
class NumberSteps:
    """The :class:`NumberStep` of every size along a direction."""

    ops: Definite

    def calmed(self, rho: Array | float, change: Array) -> Array:
        """As :meth:`~ngvi.family.Family.corrected` of a mean field."""
        return change + 0.5 * rho * change**2

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


def known_spectra(
    ops: Definite, changes: Sequence[tuple[Array, Array]], most: Array | float
) -> list[Spectra]:
    """For steps of up to ``most``, of each matrix; zero where all factors are definite there.

    :param changes: ``D_U`` and ``D_V`` of every matrix.
    :param most: the largest ``rho``.
    """
    xp, factors = ops.xp, [one for pair in changes for one in pair]
    definite = ops.likely(xp.stack([ops.has_root(most * one) for one in factors]).all())
    found = ops.cond(
        definite,
        lambda: [Spectrum(xp.zeros_like(d[0]), xp.zeros_like(d), d[0, :1]) for d in factors],
        lambda: [ops.spectrum(one) for one in factors],
    )
    return [Spectra(definite, *pair) for pair in zip(found[::2], found[1::2], strict=True)]


def least_kl(ops: Definite, known: Sequence[Spectra]) -> Callable[[Array | float], Array]:
    """Nine tenths of (3), for rounding, summed over matrices, as a function of ``rho``.

    Where all factors are definite the function is zero.

    :param known: of every matrix.
    """
    xp, spectra = ops.xp, [one for pair in known for one in (pair.rows, pair.columns)]
    lengths = [len(one.values) for one in spectra]
    values = xp.concatenate([one.values for one in spectra])
    sizes = xp.concatenate([one.size + xp.zeros_like(one.values) for one in spectra])
    # Sums of what belongs to one factor.
    of_factor = ops.tensor(np.repeat(np.eye(len(spectra)), lengths, 1), values)
    rows, columns = (ops.tensor(lengths[which::2], values) for which in (0, 1))

    def least(rho: Array | float) -> Array:
        new = ops.positive(rho * values, rho * sizes)
        sums, inverses, logs = (of_factor @ one for one in (new, 1.0 / new, xp.log(new)))
        size = xp.sqrt(sums[::2] * sums[1::2] / (rows * columns))
        trace = size * inverses[::2] * inverses[1::2]
        log_det = columns * logs[::2] + rows * logs[1::2]
        gap = trace - rows * columns + log_det - rows * columns * xp.log(size)
        return 0.45 * gap.sum()

    return least
