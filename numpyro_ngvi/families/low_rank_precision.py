"""Gaussian by a low-rank factor of its precision, ``S = U U^T + diag(D)`` (SLANG).

Mishkin, Kunstner, Nielsen, Schmidt and Khan (2018), *SLANG: Fast structured covariance
approximations for Bayesian deep learning with natural gradient*. Time is O(d r^2), memory O(d r).

Let ``V = D^-1/2 U`` and ``L L^T = I + V^T V``, a Cholesky factorisation of size ``r``. Then

    S = D^1/2 R R^T D^1/2,      R = I + V (I + L)^-1 V^T,      |R| = |L|,                  (1)
    R^-T = I - V L^-T (I + L)^-1 V^T,

because ``I + V J^-1 V^T`` is a root of ``I + V V^T`` where ``(J - I) (J - I)^T = I + V^T V``.
Nothing is inverted that ``U = 0`` makes singular. A draw is ``theta = mu + D^-1/2 R^-T z``.

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
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ngvi.structure.forest import check_dense
from ngvi.structure.layout import Layout
from numpyro_ngvi.families.base import Family
from numpyro_ngvi.linalg.triangular import MIN_SHRINKAGE, solve_lower, symmetric

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

    def initial(self, loc: jax.Array, scale: float) -> LowRankPrecision:
        """``N(loc, scale^2 I)``, but for a faint ``U``; the variances are a little smaller.

        :raises ValueError: if the rank is above the dimension.
        """
        check_rank(self.rank, loc.shape[-1])
        scale = jnp.asarray(scale, loc.dtype)
        factor = jnp.asarray(initial_factor(loc.shape[-1], self.rank), loc.dtype) / scale
        return self._with(loc, factor, jnp.full_like(loc, scale**-2))

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
        # The share of D in S that U adds; of a share that is nearly one only rounding is left.
        leverage = jnp.sum((self.factor @ _inverse(self._root()).T) ** 2, 1) / self.diagonal
        return jnp.maximum(1.0 - leverage, float(jnp.finfo(leverage.dtype).eps)) / self.diagonal

    @property
    def covariance_matrix(self) -> jax.Array:
        check_dense(self._bound())
        half = (self.factor / self.diagonal[:, None]) @ _inverse(self._root()).T
        return jnp.diag(1.0 / self.diagonal) - half @ half.T

    @property
    def precision_matrix(self) -> jax.Array:
        check_dense(self._bound())
        return self.factor @ self.factor.T + jnp.diag(self.diagonal)

    # -- density ----------------------------------------------------------------------

    def log_det_scale(self) -> jax.Array:
        root = self._root()
        return -0.5 * jnp.sum(jnp.log(self.diagonal)) - jnp.sum(jnp.log(jnp.diagonal(root)))

    @jax.jit
    def whiten(self, value: jax.Array) -> jax.Array:
        root, sqrt = self._root(), jnp.sqrt(self.diagonal)
        scaled = sqrt * (value - self.loc)
        inner = (scaled / sqrt) @ self.factor
        inner = _solve_rows(_shifted(root), inner, trans=True)
        return scaled + (_rows_of(inner, self.factor)) / sqrt

    @jax.jit
    def sample(self, noise: jax.Array) -> jax.Array:
        root, sqrt = self._root(), jnp.sqrt(self.diagonal)
        inner = (noise / sqrt) @ self.factor
        inner = _solve_rows(root, _solve_rows(_shifted(root), inner), trans=True)
        return self.loc + noise / sqrt - (_rows_of(inner, self.factor)) / self.diagonal

    # -- natural gradients ------------------------------------------------------------

    @jax.jit
    def displacement(self, change: LowRankPrecision, noise: jax.Array) -> jax.Array:
        # natural_gradient(change), but its factor only in products with delta: each array of size
        # d r that is made, and each use of one, is one more pass through memory. By (1),
        # U^T C = L^-T (I + L)^T (I + L)^-1 V^T and C^T U = V (I + L)^-T L^-1 (I + L).
        root = self._root()
        shifted, sqrt = _shifted(root), jnp.sqrt(self.diagonal)
        _, inverse, (values, vectors) = self._metric()
        # In the eigenvectors, so that U^T dU has one use, a product, and its cotangent is one.
        weights = _inverse_values(values)
        inner = vectors.T @ _products(self.factor, change.factor) @ vectors
        inner = (inner - 0.5 * weights[:, None] * symmetric(inner)) * weights
        inner = vectors @ inner @ vectors.T
        delta = self.sample(noise) - self.loc
        of_delta = _solve_rows(shifted, (noise / sqrt) @ self.factor) @ shifted
        of_delta = _solve_rows(root, of_delta, trans=True)
        times = self.diagonal * _rows_of(of_delta @ inverse, change.factor)
        times = times + 2.0 * self.diagonal**2 * change.diagonal * delta
        moved = change.loc - 0.5 * times
        across = ((self.diagonal * delta) @ change.factor) @ inverse + of_delta @ inner
        across = -0.5 * (of_delta @ inner.T + across)
        across = across @ shifted.T - (moved / self.diagonal) @ self.factor
        across = _solve_rows(shifted, _solve_rows(root, across), trans=True)
        return (moved + _rows_of(across, self.factor)) / sqrt  # (3), by C^-1 Sigma = C^T

    @jax.jit
    def log_det_displacement(self, change: LowRankPrecision) -> jax.Array:
        n = self.natural_gradient(change)
        both = jnp.sum(self._covariance_times_factor() * n.factor)
        return -both - 0.5 * jnp.sum(self.variance * n.diagonal)

    @jax.jit
    def natural_gradient(self, gradient: LowRankPrecision) -> LowRankPrecision:
        _, inverse, _ = self._metric()
        mixed = self.factor.T @ gradient.factor
        inner = mixed @ inverse - 0.5 * inverse @ symmetric(mixed) @ inverse
        factor = (self.diagonal[:, None] * gradient.factor) @ inverse + self.factor @ inner  # (2)
        diagonal = 2.0 * self.diagonal**2 * gradient.diagonal
        return self._with(self._covariance_times(gradient.loc), factor, diagonal)

    @jax.jit
    def euclidean_gradient(self, natural_gradient: LowRankPrecision) -> LowRankPrecision:
        metric, inverse, (values, vectors) = self._metric()
        # (2) from the left by U^T Sigma, in the eigenvectors of V^T V: a 2 x 2 system for
        # each pair of entries of U^T G. The ratios are one where nothing is too weak.
        of_factor = self._covariance_times(natural_gradient.factor.T).T @ metric
        product = vectors.T @ (self.factor.T @ of_factor) @ vectors
        ratio = values / (1.0 + values) * _inverse_values(values) / 4.0
        row, column = ratio[:, None], ratio[None, :]
        mixed = ((1.0 - column) * product + row * product.T) / (1.0 - row - column)
        inner = inverse @ (vectors @ symmetric(mixed) @ vectors.T)
        factor = of_factor + 0.5 * self._covariance_times_factor() @ inner
        loc = self._precision_times(natural_gradient.loc)
        diagonal = 0.5 * natural_gradient.diagonal / self.diagonal**2
        return self._with(loc, factor, diagonal)

    # -- curvature --------------------------------------------------------------------

    def hessian_probes(self) -> np.ndarray:
        return np.arange(self.dim)

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
        factor, diagonal = _project_dense(-symmetric(hessian), self.factor, self.diagonal)
        factor = _turned(factor, self.factor)
        return self._with(
            self._covariance_times(gradient), factor - self.factor, diagonal - self.diagonal
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
    def kl_divergence(self, other: LowRankPrecision) -> jax.Array:
        spread = jnp.sum(other.factor * self._covariance_times(other.factor.T).T)
        trace = jnp.sum(other.diagonal * self.variance) + spread
        shift = self.loc - other.loc
        distance = jnp.sum(shift * other._precision_times(shift))
        change = 0.5 * (trace - self.dim + distance)
        return change + other.log_det_scale() - self.log_det_scale()

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
        # A square beyond the largest float would leave a standard deviation of zero.
        ratio = jnp.maximum(ratio, -(float(jnp.finfo(ratio.dtype).max) ** 0.25))
        rounding = 8 * float(jnp.finfo(ratio.dtype).eps) * jnp.maximum(1.0, jnp.abs(ratio))
        plain = 1.0 + ratio
        growth = jnp.where(plain > floor + rounding, plain, plain + 0.5 * ratio**2)
        return self.factor + step_size * step.factor, self.diagonal * growth

    def _moved(
        self, step: LowRankPrecision, step_size: jax.Array | float, floor: float
    ) -> LowRankPrecision:
        new = self._with(self.loc, *self._end(step, step_size, floor))
        # The new precision moves the mean.
        shift = new._covariance_times(self._precision_times(step.loc))
        return self._with(self.loc + step_size * shift, new.factor, new.diagonal)

    def _strength(self) -> jax.Array:
        """``V^T V``."""
        self._bound()
        return _weighted_products(self.factor, 1.0 / self.diagonal)

    def _root(self) -> jax.Array:
        """``L``."""
        strength = self._strength()
        return jnp.linalg.cholesky(symmetric(strength) + jnp.eye(self.rank, dtype=strength.dtype))

    def _metric(self) -> tuple[jax.Array, jax.Array, tuple[jax.Array, jax.Array]]:
        """``B``, its inverse, and the eigenvalues and eigenvectors of ``V^T V``."""
        values, vectors = jnp.linalg.eigh(symmetric(self._strength()))
        values = jnp.maximum(values, 0.0)
        inverse = _inverse_values(values)
        return (vectors / inverse) @ vectors.T, (vectors * inverse) @ vectors.T, (values, vectors)

    def _covariance_times_factor(self) -> jax.Array:
        """``Sigma U = D^-1 U (I + V^T V)^-1``."""
        inverse = _inverse(self._root())
        return (self.factor @ (inverse.T @ inverse)) / self.diagonal[:, None]

    def _covariance_times(self, rows: jax.Array) -> jax.Array:
        """``Sigma`` times each row, shape ``(..., d)``."""
        root, scaled = self._root(), rows / self.diagonal
        inner = _solve_rows(root, _solve_rows(root, scaled @ self.factor), trans=True)
        return scaled - (_rows_of(inner, self.factor)) / self.diagonal

    def _precision_times(self, rows: jax.Array) -> jax.Array:
        """``S`` times each row, shape ``(..., d)``."""
        return self.diagonal * rows + _rows_of(rows @ self.factor, self.factor)


def check_rank(rank: int, dim: int | None = None) -> None:
    """Refuse a rank that no factor can have.

    :raises ValueError: if it is below 1 or above the dimension.
    """
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or rank < 1:
        raise ValueError(
            f"LowRankPrecision(rank={rank!r}): rank must be an integer of at least 1. Without "
            "correlations use family='diagonal'."
        )
    if dim is not None and rank > dim:
        raise ValueError(
            f"LowRankPrecision(rank={rank}) has a rank above the model's {dim} latents. Use a rank "
            f"of at most {dim}, or family='covariance_cholesky', which holds every covariance."
        )


def initial_factor(dim: int, rank: int) -> np.ndarray:
    """A faint ``U`` for ``D = I``, the same in every run, shape ``(d, rank)``."""
    rows = np.random.default_rng(0).choice([-1.0, 1.0], (dim, rank))
    return math.sqrt(INITIAL_STRENGTH / dim) * rows


def _inverse_values(values: jax.Array) -> jax.Array:
    return 1.0 + 1.0 / jnp.maximum(values, MIN_STRENGTH)


def _shifted(root: jax.Array) -> jax.Array:
    """``I + L``."""
    return root + jnp.eye(root.shape[-1], dtype=root.dtype)


def _inverse(lower: jax.Array) -> jax.Array:
    return solve_lower(lower, jnp.eye(lower.shape[-1], dtype=lower.dtype))


def _rows_of(inner: jax.Array, factor: jax.Array) -> jax.Array:
    """``inner @ factor.T``, shape ``(..., d)``, whose derivative needs no copy of the transpose."""
    return jax.lax.dot_general(inner, factor, (((inner.ndim - 1,), (1,)), ((), ())))


def _products(left: jax.Array, right: jax.Array) -> jax.Array:
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


def _solve_rows(lower: jax.Array, rows: jax.Array, trans: bool = False) -> jax.Array:
    """``lower^-1`` (or its transpose) times each row, shape ``(..., r)``."""
    columns = rows.reshape(-1, rows.shape[-1]).T
    return solve_lower(lower, columns, trans=trans).T.reshape(rows.shape)


def _project_dense(
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


def _turned(factor: jax.Array, reference: jax.Array) -> jax.Array:
    """The rotation of a factor that is nearest to another one."""
    left, _, right = jnp.linalg.svd(factor.T @ reference)
    return factor @ (left @ right)
