"""Gaussian by a low-rank factor of its precision, ``S = U U^T + diag(D)`` (SLANG).

Mishkin, Kunstner, Nielsen, Schmidt and Khan (2018), *SLANG: Fast structured covariance
approximations for Bayesian deep learning with natural gradient*. Time is O(d r^2), memory O(d r);
the algebra, with ``V = D^-1/2 U`` and the roots ``R`` and ``L`` of its equation (1), is that of
:mod:`~ngvi.linalg.low_rank`. A draw is ``theta = mu + D^-1/2 R^-T z``.

**First order.** ``U`` and ``U Q`` are the same Gaussian for every rotation ``Q``: the Fisher
information ``F`` of ``(U, D)`` is singular. Orthogonal to the mean's, it is
``tr(Sigma dS Sigma dS') / 2`` on ``dS = dU U^T + U dU^T + diag(dD)``. The metric here is

- exact for the mean: ``dmu = Sigma dL/dmu``;
- exact for ``U`` with ``D`` held fixed: with ``B = U^T Sigma U`` and ``G = dL/dU``

      dU = S G B^-1 - U B^-1 sym(U^T G) B^-1 / 2,                                         (2)

  whose ``dU U^T + U dU^T`` is that of the pseudo-inverse of ``F``. A direction of ``U`` weaker than
  ``LowRank.min_strength`` (an eigenvalue of ``V^T V``) is treated as if it had that strength,
  because ``F`` vanishes where ``U`` does;
- approximate for ``D``: ``dD = 2 D^2 dL/dD``, the diagonal family's. The exact block is
  ``Sigma o Sigma / 2``, which is at most that, and tends to it where ``d >> r``. The block of ``F``
  between ``U`` and ``D``, of the same order, is left out.

It is symmetric and positive definite, so that its steps ascend, and costs O(d r^2); the exact
pseudo-inverse would take O(d r^4). A draw moves along a direction by

    dtheta = dmu - Sigma dS (theta - mu) / 2.                                             (3)

**Second order.** :meth:`LowRankPrecision.bonnet_price` is not the projection of the natural
gradient on the tangent space. It points at the rule's own target: ``U + dU, D + dD`` are the
factor and diagonal of ``-E[hess l]``, projected to ``rank`` directions and a diagonal that keeps
its diagonal, and turned to ``U``. So a step of one is the Bayesian learning rule's, and exact
for a conjugate model whose posterior has this form. Shorter steps go straight there in ``(U, D)``.
SLANG mixes ``S`` and its target instead: that is larger by ``rho (1 - rho) dU dU^T``. Where ``dU``
is a noisy first-order gradient, this term would not average out as ``rho`` decreases, and would
become most of the precision.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Self

from ngvi.errors import check_rank
from ngvi.families import steps
from ngvi.families.base import Array
from ngvi.families.low_rank_steps import LowRankSteps
from ngvi.latents.layout import Layout
from ngvi.linalg.low_rank import initial_factor
from ngvi.linalg.matrices import symmetric


@dataclasses.dataclass(frozen=True, eq=False)
class LowRankPrecision(LowRankSteps):
    """Gaussian whose precision is of low rank, plus a diagonal.

    >>> guide = NaturalGaussianGuide(model, families.LowRankPrecision(rank=2))

    :param loc: mean, shape ``(d,)``.
    :param factor: ``U``, shape ``(d, rank)``.
    :param diagonal: ``D``, positive, shape ``(d,)``.
    :param rank: ``r``, from 1 on; above ``d``, where it would add nothing, it is ``d``.
    :raises ValueError: for a rank below 1.
    """

    loc: Array = None
    factor: Array = None
    diagonal: Array = None
    rank: int = dataclasses.field(default=10, kw_only=True, metadata={"static": True})

    name: ClassVar[str] = "low_rank"

    def __post_init__(self) -> None:
        check_rank(self.rank)

    def for_layout(self, layout: Layout) -> Self:
        return dataclasses.replace(self, rank=min(self.rank, layout.dim))

    def initial(self, loc: Array, scale: float | Array) -> Self:
        """``N(loc, scale^2 I)``, but for a faint ``U``; the variances are a little smaller."""
        new = dataclasses.replace(self, rank=min(self.rank, loc.shape[-1]))
        factor = self.ops.tensor(initial_factor(loc.shape[-1], new.rank), loc)
        scale = scale * self.xp.ones_like(loc)
        return new._with(loc, factor / scale[:, None], scale**-2)

    def couples(self) -> str:
        return "low_rank"

    def describe(self) -> str:
        """Return the structure in words."""
        return f"a precision of rank {self.rank} plus a diagonal"

    # -- shape and moments ------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """Number of parameters, without the ``r (r - 1) / 2`` rotations of ``U``."""
        return self.dim * (self.rank + 2) - self.rank * (self.rank - 1) // 2

    @property
    def variance(self) -> Array:
        return self._matrix.inverse_diagonal()

    # -- density ----------------------------------------------------------------------

    def log_det_scale(self) -> Array:
        return -0.5 * self._matrix.log_det()

    def whiten(self, value: Array) -> Array:
        return self._matrix.root_divide(value - self.loc)

    def sample(self, noise: Array) -> Array:
        return self.loc + self._matrix.root_times(noise)[0]

    # -- natural gradients ------------------------------------------------------------

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        # natural_gradient(change), but its factor only in products with delta: each array of size
        # d r that is made, and each use of one, is one more pass through memory.
        matrix, solve = self._matrix, self.ops.solve_rows
        root = matrix.root()
        both = matrix.shifted(root)
        _, inverse, (values, vectors) = matrix.metric()
        # In the eigenvectors, so that U^T dU has one use, a product, and its cotangent is one.
        weights = matrix.inverse_values(values)
        inner = vectors.mT @ (self.factor.mT @ change.factor) @ vectors
        inner = (inner - 0.5 * weights[:, None] * symmetric(inner)) * weights
        inner = vectors @ inner @ vectors.mT
        delta, of_delta = matrix.root_times(noise)
        times = self.diagonal * self.ops.rows_of(of_delta @ inverse, change.factor)
        times = times + 2.0 * self.diagonal**2 * change.diagonal * delta
        moved = change.loc - 0.5 * times
        across = ((self.diagonal * delta) @ change.factor) @ inverse + of_delta @ inner
        across = -0.5 * (of_delta @ inner.mT + across)
        across = across @ both.mT - (moved / self.diagonal) @ self.factor
        # By (1), C^T U = V (I + L)^-T L^-1 (I + L).
        across = solve(both, solve(root, across), trans=True)
        moved = moved + self.ops.rows_of(across, self.factor)
        return moved / self.xp.sqrt(self.diagonal)  # (3), by C^-1 Sigma = C^T

    def transposed(self, vector: Array) -> Array:
        return self._matrix.root_transpose_times(vector)

    def draw_vjp(self, noise: Array, slope: Array) -> Self:
        noise, slope = noise.reshape(-1, self.dim), slope.reshape(-1, self.dim)
        matrix, num = self._matrix, len(noise)
        _, inverse, _ = matrix.metric()
        both, of_both = matrix.root_times(self.xp.concatenate([noise, slope]))
        outer = of_both[:num].mT @ of_both[num:]
        outer = outer + outer.mT
        inner = outer @ inverse - 0.5 * inverse @ outer @ inverse
        right = self.xp.concatenate([of_both[num:], of_both[:num]]) @ inverse
        factor = self._plus_product(
            self.factor @ (-0.5 * inner), self.diagonal * both, -0.5 * right
        )
        diagonal = -(self.diagonal**2) * (both[:num] * both[num:]).sum(0)
        return self._with(both[num:].sum(0), factor, diagonal)

    def _plus_product(self, factor: Array, left: Array, right: Array) -> Array:
        """``M + L^T R``."""
        return factor + left.mT @ right

    def log_det_jvp(self, change: Self) -> Array:
        n = self.natural_gradient(change)
        both = (self._matrix.divide_factor() * n.factor).sum()
        return -both - 0.5 * (self.variance * n.diagonal).sum()

    def natural_gradient(self, gradient: Self) -> Self:
        _, inverse, _ = self._matrix.metric()
        mixed = self.factor.mT @ gradient.factor
        inner = mixed @ inverse - 0.5 * inverse @ symmetric(mixed) @ inverse
        factor = (self.diagonal[:, None] * gradient.factor) @ inverse + self.factor @ inner  # (2)
        diagonal = 2.0 * self.diagonal**2 * gradient.diagonal
        return self._with(self._matrix.divide(gradient.loc), factor, diagonal)

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        metric, inverse, (values, vectors) = self._matrix.metric()
        # (2) from the left by U^T Sigma, in the eigenvectors of V^T V: a 2 x 2 system for
        # each pair of entries of U^T G. The ratios are one where nothing is too weak.
        of_factor = self._matrix.divide(natural_gradient.factor.mT).mT @ metric
        product = vectors.mT @ (self.factor.mT @ of_factor) @ vectors
        ratio = values / (1.0 + values) * self._matrix.inverse_values(values) / 4.0
        row, column = ratio[:, None], ratio[None, :]
        mixed = ((1.0 - column) * product + row * product.mT) / (1.0 - row - column)
        inner = inverse @ (vectors @ symmetric(mixed) @ vectors.mT)
        factor = of_factor + 0.5 * self._matrix.divide_factor() @ inner
        loc = self._matrix.times(natural_gradient.loc)
        diagonal = 0.5 * natural_gradient.diagonal / self.diagonal**2
        return self._with(loc, factor, diagonal)


steps.leaves_out_correlations.register(LowRankPrecision, lambda family: True)


@steps.covariance_times.register(LowRankPrecision)
def _(family: LowRankPrecision, vector: Array) -> Array:
    return family._matrix.divide(vector)


@steps.gradient_of_mean.register(LowRankPrecision)
def _(family: LowRankPrecision, natural_gradient: LowRankPrecision) -> Array:
    return family._matrix.times(natural_gradient.loc)
