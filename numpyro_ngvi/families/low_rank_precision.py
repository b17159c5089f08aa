"""Gaussian by a low-rank factor of its precision, ``S = U U^T + diag(D)`` (SLANG).

Mishkin, Kunstner, Nielsen, Schmidt and Khan (2018), *SLANG: Fast structured covariance
approximations for Bayesian deep learning with natural gradient*. Time is O(d r^2), memory O(d r);
the algebra, with ``V = D^-1/2 U`` and the roots ``R`` and ``L`` of its equation (1), is that of
:mod:`~numpyro_ngvi.linalg.low_rank`. A draw is ``theta = mu + D^-1/2 R^-T z``.

**First order.** ``U`` and ``U Q`` are the same Gaussian for every rotation ``Q``: the Fisher
information ``F`` of ``(U, D)`` is singular. Orthogonal to the mean's, it is
``tr(Sigma dS Sigma dS') / 2`` on ``dS = dU U^T + U dU^T + diag(dD)``. The metric here is

- exact for the mean: ``dmu = Sigma dL/dmu``;
- exact for ``U`` with ``D`` held fixed: with ``B = U^T Sigma U`` and ``G = dL/dU``

      dU = S G B^-1 - U B^-1 sym(U^T G) B^-1 / 2,                                         (2)

  whose ``dU U^T + U dU^T`` is that of the pseudo-inverse of ``F``. A direction of ``U`` weaker than
  ``MIN_STRENGTH`` (an eigenvalue of ``V^T V``) is treated as if it had that strength, because ``F``
  vanishes where ``U`` does;
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
SLANG mixes ``S`` and its target instead (:meth:`LowRankPrecision.mixed` does): that is larger by
``rho (1 - rho) dU dU^T``. Where ``dU`` is a noisy first-order gradient, this term would not average
out as ``rho`` decreases, and would become most of the precision.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from ngvi.checks import check_rank
from ngvi.structure.forest import check_dense
from ngvi.structure.layout import Layout
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.linalg.definite import positive
from numpyro_ngvi.linalg.low_rank import (
    LowRank,
    initial_factor,
    inverse_values,
    products,
    project_dense,
    rows_of,
    shifted,
    solve_rows,
    turned,
)
from numpyro_ngvi.linalg.triangular import MIN_SHRINKAGE, symmetric


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class LowRankPrecision(Family):
    """Gaussian whose precision is of low rank, plus a diagonal.

    :param loc: mean, shape ``(d,)``.
    :param factor: ``U``, shape ``(d, rank)``.
    :param diagonal: ``D``, positive, shape ``(d,)``.
    :param rank: ``r``, from 1 to ``d``.
    :raises ValueError: for a rank below 1; by :meth:`initial`, for one above ``d``.
    """

    loc: jax.Array | None = None
    factor: jax.Array | None = None
    diagonal: jax.Array | None = None
    rank: int = dataclasses.field(default=10, kw_only=True, metadata={"static": True})

    name: ClassVar[str] = "low_rank"
    relative_scale_step: ClassVar[float] = 0.01
    leaves_out_correlations: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rank(self.rank)

    def for_layout(self, layout: Layout) -> LowRankPrecision:
        check_rank(self.rank, layout.dim)
        return self

    def initial(self, loc: jax.Array, scale: float | jax.Array) -> LowRankPrecision:
        """``N(loc, scale^2 I)``, but for a faint ``U``; the variances are a little smaller.

        :raises ValueError: if the rank is above the dimension.
        """
        check_rank(self.rank, loc.shape[-1])
        factor = jnp.asarray(initial_factor(loc.shape[-1], self.rank), loc.dtype)
        scale = scale * jnp.ones_like(loc)
        return self._with(loc, factor / scale[:, None], scale**-2)

    def couples(self) -> str:
        return "low_rank"

    def describe(self) -> str:
        """The structure in words."""
        return f"a precision of rank {self.rank} plus a diagonal"

    # -- shape and moments ------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """Without the ``r (r - 1) / 2`` rotations of ``U``."""
        return self.dim * (self.rank + 2) - self.rank * (self.rank - 1) // 2

    @property
    def stddev(self) -> jax.Array:
        return jnp.sqrt(self.variance)

    @property
    @jax.jit
    def variance(self) -> jax.Array:
        return self._matrix.inverse_diagonal()

    # -- density ----------------------------------------------------------------------

    def log_det_scale(self) -> jax.Array:
        return -0.5 * self._matrix.log_det()

    @jax.jit
    def whiten(self, value: jax.Array) -> jax.Array:
        return self._matrix.root_divide(value - self.loc)

    @jax.jit
    def sample(self, noise: jax.Array) -> jax.Array:
        return self.loc + self._matrix.root_times(noise)

    # -- natural gradients ------------------------------------------------------------

    @jax.jit
    def displacement(self, change: LowRankPrecision, noise: jax.Array) -> jax.Array:
        # natural_gradient(change), but its factor only in products with delta: each array of size
        # d r that is made, and each use of one, is one more pass through memory. By (1),
        # U^T C = L^-T (I + L)^T (I + L)^-1 V^T and C^T U = V (I + L)^-T L^-1 (I + L).
        matrix = self._matrix
        root = matrix.root()
        both, sqrt = shifted(root), jnp.sqrt(self.diagonal)
        _, inverse, (values, vectors) = matrix.metric()
        # In the eigenvectors, so that U^T dU has one use, a product, and its cotangent is one.
        weights = inverse_values(values)
        inner = vectors.T @ products(self.factor, change.factor) @ vectors
        inner = (inner - 0.5 * weights[:, None] * symmetric(inner)) * weights
        inner = vectors @ inner @ vectors.T
        delta = matrix.root_times(noise)
        of_delta = solve_rows(both, (noise / sqrt) @ self.factor) @ both
        of_delta = solve_rows(root, of_delta, trans=True)
        times = self.diagonal * rows_of(of_delta @ inverse, change.factor)
        times = times + 2.0 * self.diagonal**2 * change.diagonal * delta
        moved = change.loc - 0.5 * times
        across = ((self.diagonal * delta) @ change.factor) @ inverse + of_delta @ inner
        across = -0.5 * (of_delta @ inner.T + across)
        across = across @ both.T - (moved / self.diagonal) @ self.factor
        across = solve_rows(both, solve_rows(root, across), trans=True)
        return (moved + rows_of(across, self.factor)) / sqrt  # (3), by C^-1 Sigma = C^T

    @jax.jit
    def log_det_displacement(self, change: LowRankPrecision) -> jax.Array:
        n = self.natural_gradient(change)
        both = jnp.sum(self._matrix.divide_factor() * n.factor)
        return -both - 0.5 * jnp.sum(self.variance * n.diagonal)

    @jax.jit
    def natural_gradient(self, gradient: LowRankPrecision) -> LowRankPrecision:
        _, inverse, _ = self._matrix.metric()
        mixed = self.factor.T @ gradient.factor
        inner = mixed @ inverse - 0.5 * inverse @ symmetric(mixed) @ inverse
        factor = (self.diagonal[:, None] * gradient.factor) @ inverse + self.factor @ inner  # (2)
        diagonal = 2.0 * self.diagonal**2 * gradient.diagonal
        return self._with(self._matrix.divide(gradient.loc), factor, diagonal)

    @jax.jit
    def euclidean_gradient(self, natural_gradient: LowRankPrecision) -> LowRankPrecision:
        metric, inverse, (values, vectors) = self._matrix.metric()
        # (2) from the left by U^T Sigma, in the eigenvectors of V^T V: a 2 x 2 system for
        # each pair of entries of U^T G. The ratios are one where nothing is too weak.
        of_factor = self._matrix.divide(natural_gradient.factor.T).T @ metric
        product = vectors.T @ (self.factor.T @ of_factor) @ vectors
        ratio = values / (1.0 + values) * inverse_values(values) / 4.0
        row, column = ratio[:, None], ratio[None, :]
        mixed = ((1.0 - column) * product + row * product.T) / (1.0 - row - column)
        inner = inverse @ (vectors @ symmetric(mixed) @ vectors.T)
        factor = of_factor + 0.5 * self._matrix.divide_factor() @ inner
        loc = self._matrix.times(natural_gradient.loc)
        diagonal = 0.5 * natural_gradient.diagonal / self.diagonal**2
        return self._with(loc, factor, diagonal)

    # -- curvature --------------------------------------------------------------------

    def assemble_hessian(self, products: jax.Array) -> jax.Array:
        check_dense(self._bound())
        return symmetric(products)

    def outer_products(self, left: jax.Array, right: jax.Array) -> jax.Array:
        check_dense(self._bound())
        return symmetric(left.T @ right)

    @jax.jit
    def bonnet_price(self, gradient: jax.Array, hessian: jax.Array) -> LowRankPrecision:
        """The direction to the rule's target, see the module; ``hessian`` is ``(d, d)``."""
        self._bound()
        factor, diagonal = project_dense(-symmetric(hessian), self.factor, self.diagonal)
        factor = turned(factor, self.factor)
        return self._with(
            self._matrix.divide(gradient), factor - self.factor, diagonal - self.diagonal
        )

    # -- steps ------------------------------------------------------------------------

    @jax.jit
    def natural_step(
        self, direction: LowRankPrecision, step_size: jax.Array | float
    ) -> LowRankPrecision:
        return self._moved(direction, step_size, 0.0)

    @jax.jit
    def mixed(
        self, rows: jax.Array, diagonal: jax.Array, step_size: jax.Array | float
    ) -> LowRankPrecision:
        """SLANG's step of the precision, ``(1 - rho) S + rho (rows^T rows + diag(diagonal))``.

        Projected to the leading ``rank`` directions of its low-rank part, by an eigenproblem of
        size ``rank + N``, and a diagonal with which ``diag(S)`` is exact. O(d (r + N)^2).

        :param rows: scaled gradients of single examples, shape ``(N, d)``.
        :param diagonal: of the rest of the curvature, such as a prior's, non-negative, ``(d,)``.
        :param step_size: ``rho``, in (0, 1].
        """
        self._bound()
        columns = jnp.concatenate(
            [jnp.sqrt(1.0 - step_size) * self.factor, jnp.sqrt(step_size) * rows.T], 1
        )
        vectors = jnp.linalg.eigh(columns.T @ columns)[1][:, -self.rank :]
        factor = columns @ vectors
        rest = jnp.sum(columns**2, 1) - jnp.sum(factor**2, 1)
        rest = jnp.maximum(rest, 0.0)  # of rounding
        mixture = (1.0 - step_size) * self.diagonal + step_size * diagonal
        return self._with(self.loc, factor, mixture + rest)

    @jax.jit
    def _trace_ratio(self, other: LowRankPrecision) -> jax.Array:
        spread = jnp.sum(other.factor * self._matrix.divide(other.factor.T).T)
        return jnp.sum(other.diagonal * self.variance) + spread

    @jax.jit
    def retract(self, step: LowRankPrecision) -> LowRankPrecision:
        """``lambda + step``; where ``D`` would not stay positive it is corrected."""
        factor, diagonal = self._end(step, 1.0, MIN_SHRINKAGE**2)
        return self._with(self.loc + step.loc, factor, diagonal)

    # -- helpers ----------------------------------------------------------------------

    def _with(self, loc: jax.Array, factor: jax.Array, diagonal: jax.Array) -> LowRankPrecision:
        return dataclasses.replace(self, loc=loc, factor=factor, diagonal=diagonal)

    def _end(
        self, step: LowRankPrecision, step_size: jax.Array | float, floor: float
    ) -> tuple[jax.Array, jax.Array]:
        ratio = step_size * step.diagonal / self._bound().diagonal
        growth = positive(ratio, ratio, floor)
        return self.factor + step_size * step.factor, self.diagonal * growth

    def _moved(
        self, step: LowRankPrecision, step_size: jax.Array | float, floor: float
    ) -> LowRankPrecision:
        new = self._with(self.loc, *self._end(step, step_size, floor))
        # The new precision moves the mean.
        shift = new._matrix.divide(self._matrix.times(step.loc))
        return self._with(self.loc + step_size * shift, new.factor, new.diagonal)

    @property
    def _matrix(self) -> LowRank:
        """The precision."""
        self._bound()
        return LowRank(self.factor, self.diagonal)
