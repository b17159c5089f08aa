"""Matrices whose covariance is a Kronecker product, beside independent latents (noisy K-FAC).

Zhang, Sun, Duvenaud and Grosse (2018), *Noisy natural gradient as variational inference*. A site
``W`` of shape ``(m, n)`` has ``W = M + A Z B^T`` with independent standard normal ``Z``, so that

    Cov = U (x) V,        U = A A^T (m x m, of rows),        V = B B^T (n x n, of columns)

for the entries row by row. For a site time is O(m n (m + n) + m^3 + n^3), memory O((m + n)^2).

**Fisher information.** Let ``X = A^-1 dA`` and ``Y = B^-1 dB``, lower triangular, and
``X' = X + X^T``, ``Y' = Y + Y^T``. From ``C^-1 dSigma C^-T = X' (x) I + I (x) Y'``, orthogonal to
the mean's,

    |d|_F^2 = (n |X'|^2 + m |Y'|^2) / 2 + tr X' tr Y'.                                    (1)

Each factor's own block is that of a dense Gaussian times the other's size. The last term, between
the two, sees their scales alone: it makes (1) singular, because ``(c A, B / c)`` is the same
Gaussian for every ``c``. This *redundant scale* is fixed so: directions change both scales alike,
``tr X' / m = tr Y' / n``, and steps (:meth:`MatrixNormal.natural_step`,
:meth:`MatrixNormal.retract`) end where ``|det A|^(1/m) = |det B|^(1/n)``. With
``(m n / 2) (tr X' / m - tr Y' / n)^2`` added, which is zero for these directions, (1) becomes a
metric without a block between the factors,

    (n / 2) (|X'|^2 + (tr X')^2 / m)  +  (m / 2) (|Y'|^2 + (tr Y')^2 / n).                 (2)

For the gradient of a function of the Gaussian its natural gradient is that of the pseudo-inverse of
(1). With ``T = A^T tril(dL/dA)`` and ``Phi`` of :mod:`~ngvi.families.covariance_cholesky`

    dmu = Sigma dL/dmu,        X = Phi(T) / n - tr T / (4 m n) I,                          (3)

and the same for ``Y`` with ``n`` and ``m`` exchanged.

**Second order.** With ``H = E[hess l]`` in whitened coordinates, ``C^T H C``, and ``P``, ``Q`` its
partial traces over columns (``m x m``) and over rows (``n x n``), by Price's theorem

    X' = P / n + (1 - tr P / (m n)) I / 2,        Y' = Q / m + (1 - tr Q / (m n)) I / 2.    (4)

The rule's step is that of :mod:`ngvi.networks.kronecker`: with ``A_U = -A^-T P A^-1 / n``, what the
curvature ``-H`` is for the rows, the same for the columns, and one scale for both,

    U_new^-1 ~ (1 - rho) U^-1 + rho A_U,        V_new^-1 ~ (1 - rho) V^-1 + rho A_V.       (5)

For the Gauss-Newton curvature of a layer, ``sum_i x_i x_i^T (x) d_i d_i^T`` with inputs ``x_i`` and
slopes ``d_i``, ``A_U`` is ``sum_i x_i x_i^T (d_i^T V d_i) / n``. Noisy K-FAC takes ``E[x x^T]`` and
``E[d d^T]`` instead, each by itself, which is the same where inputs and slopes are independent and
of the size of ``q``.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

from ngvi.families import steps
from ngvi.families.gaussian import Array
from ngvi.latents.forest import Forest, check_dense
from ngvi.latents.layout import Layout
from ngvi.linalg.matrices import symmetric
from ngvi.networks.kronecker_root import KroneckerRoot, Pairs, Shapes, summed, times
from ngvi.networks.matrix_coordinates import MatrixCoordinates, blocks, find_matrices
from ngvi.networks.matrix_steps import MatrixSteps

#: ``P`` and ``Q`` of (4), packed as the factors are, and the other latents' diagonal.
Traces = tuple[Array, Array, Array]


class MatrixCurvature(MatrixCoordinates):
    """The part of a Hessian that a matrix-normal family needs."""

    def assemble_hessian(self, products: Array) -> Traces:
        """``P``, ``Q`` of (4), and the other latents' diagonal."""
        check_dense(self._bound())
        root, pairs = self._root(), []
        whitened = root.transpose_times(root.transpose_times(products).mT)
        for start, m, n in root.shapes:
            own = whitened[start : start + m * n, start : start + m * n].reshape(m, n, m, n)
            sides = own.diagonal(0, 1, 3).sum(-1), own.diagonal(0, 0, 2).sum(-1)
            pairs.append(tuple(map(symmetric, sides)))
        return *self._packed(pairs), root.split(products.diagonal()).rest

    def outer_products(self, left: Array, right: Array) -> Traces:
        """Assemble a Hessian of outer products in O(N m n (m + n)) for each matrix."""
        root = self._root()
        whitened = [root.split(root.transpose_times(side)).matrices for side in (left, right)]
        pairs = [
            (symmetric(summed(one, other)), symmetric(summed(one.mT, other.mT)))
            for one, other in zip(*whitened, strict=True)
        ]
        return *self._packed(pairs), (root.split(left).rest * root.split(right).rest).sum(0)

    def bonnet_price(self, gradient: Array, hessian: Traces) -> Self:
        """Return the direction (4); ``hessian`` is what :meth:`outer_products` gives."""
        rows, columns, diagonal = hessian
        root, inner = self._root(), []
        for (_, m, n), (p, q) in zip(root.shapes, self._unpacked(rows, columns), strict=True):
            scale = 0.5 - 0.25 * (p.diagonal().sum() + q.diagonal().sum()) / (m * n)
            inner.append(
                (
                    self.ops.halve_diagonal(p / n + scale * self.ops.eye(m, p)),
                    self.ops.halve_diagonal(q / m + scale * self.ops.eye(n, q)),
                )
            )
        of_scale = 0.5 * root.scale * (root.scale**2 * diagonal + 1.0)
        return self._direction(root.times(root.transpose_times(gradient)), inner, of_scale)

    # -- gradients of examples ----------------------------------------------------------

    def natural_gradient_from_rows(self, gradient: Array, rows: Array, diagonal: Array) -> Self:
        """:meth:`bonnet_price` of ``-E[hess l] = rows^T rows + diag(diagonal)``.

        :param rows: scaled gradients of single examples, shape ``(N, d)``.
        :param diagonal: of the rest, such as a prior's, shape ``(d,)``.
        """
        root = self._root()
        parts = root.split(diagonal)
        pairs = [
            (
                a.mT @ ((d @ (b**2).sum(1))[:, None] * a),
                b.mT @ ((d.mT @ (a**2).sum(1))[:, None] * b),
            )
            for (a, b), d in zip(root.pairs, parts.matrices, strict=True)
        ]
        of_diagonal = *self._packed(pairs), parts.rest
        squares = self.outer_products(rows, rows)
        total = tuple(-(a + b) for a, b in zip(squares, of_diagonal, strict=True))
        return self.bonnet_price(gradient, total)


@dataclasses.dataclass(frozen=True, eq=False)
class MatrixNormal(MatrixCurvature, MatrixSteps):
    """Independent matrix-normal sites, and a diagonal for what is no matrix.

    A site of two axes is a matrix. Of more axes (a kernel of a convolution) the first or the last
    is one side, and all others together are the other one, whichever takes fewer parameters. With
    the layouts of torch and of Flax the output channels are one side.

    >>> guide = NaturalGaussianGuide(model, families.MatrixNormal, init_scale=0.05)

    :param loc: mean, shape ``(d,)``.
    :param row_tril: the ``A`` of all matrices one after another, each ``(m, m)`` with zeros above
        its diagonal, flattened.
    :param column_tril: the ``B``, each ``(n, n)``, in the same way.
    :param scale: standard deviations of the other latents, in their order. The sign is free.
    :param sites: names of the sites that are matrices. By default all that have at least two rows
        and two columns, and at most 4096 of either.
    :param matrices: for each matrix its first coordinate in the latent vector, ``m`` and ``n``;
        found by the guide.
    """

    loc: Array = None
    row_tril: Array = None
    column_tril: Array = None
    scale: Array = None
    sites: Sequence[str] | None = dataclasses.field(
        default=None, kw_only=True, metadata={"static": True}
    )
    matrices: Shapes | None = dataclasses.field(
        default=None, kw_only=True, metadata={"static": True}
    )

    name: ClassVar[str] = "matrix_normal"
    #: A factor of more rows (an embedding of words, say) would have 16 million entries.
    max_side: ClassVar[int] = 4096

    def __post_init__(self) -> None:
        if self.sites is not None and not isinstance(self.sites, tuple):
            names = (self.sites,) if isinstance(self.sites, str) else tuple(self.sites)
            object.__setattr__(self, "sites", names)

    def for_layout(self, layout: Layout) -> Self:
        """Return the family with the matrices of this layout.

        :raises ValueError: if there is none, or a named site is none.
        """
        if self.matrices is not None:
            return self
        found = find_matrices(layout, self.sites, self.max_side)
        return dataclasses.replace(self, matrices=found)

    def initial(self, loc: Array, scale: float | Array) -> Self:
        """``N(loc, diag(scale^2))``, if the scales of each matrix are products ``r_i c_j``.

        Otherwise the ``log r_i + log c_j`` nearest to their logarithms.

        :raises ValueError: if it is not known which latents are matrices.
        """
        xp, dim = self.xp, loc.shape[-1]
        end = max((s + m * n for s, m, n in self.matrices or ()), default=0)
        if self.matrices is None or end > dim:
            raise ValueError(
                f"MatrixNormal cannot begin with {dim} latents and "
                f"matrices={self.matrices}: give MatrixNormal(matrices=((start, rows, columns), "
                "...)) the matrices in the latent vector, or pass it to NaturalGaussianGuide, "
                "which finds them."
            )
        places = KroneckerRoot(self.ops, self.matrices, dim, [], None)
        logs, rest = places.split(xp.log(scale * xp.ones_like(loc)))
        pairs = [
            tuple(xp.diag(xp.exp(log.mean(axis) - 0.5 * log.mean())) for axis in (1, 0))
            for log in logs
        ]
        return self._with(loc, pairs, xp.exp(rest))

    # -- shape and moments ------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """Number of parameters, without a redundant scale for each matrix."""
        of_matrices = [m * (m + 1) // 2 + n * (n + 1) // 2 - 1 for _, m, n in self._root().shapes]
        return self.dim + sum(of_matrices) + self.scale.shape[-1]

    def couples(self) -> str | Forest:
        return "all" if self.loc is None else blocks(self.matrices or (), self.dim)

    def describe(self) -> str:
        """Return the structure in words."""
        if self.matrices is None:
            return "no matrices yet"
        counts = collections.Counter((m, n) for _, m, n in self.matrices)
        words = [f"{count} of {m} x {n}" for (m, n), count in counts.items()]
        rest = "" if self.loc is None else f", and {self.scale.shape[-1]} independent latents"
        return f"matrices ({', '.join(words)}){rest}"

    @property
    def stddev(self) -> Array:
        root, norm = self._root(), functools.partial(self.xp.linalg.norm, axis=-1)
        return root.join([norm(a)[:, None] * norm(b) for a, b in root.pairs], abs(self.scale))

    # -- density ----------------------------------------------------------------------

    def log_det_scale(self) -> Array:
        total, root = self.xp.log(abs(self._bound().scale)).sum(), self._root()
        for (_, m, n), means in zip(root.shapes, self._mean_logs(root.pairs), strict=True):
            total = total + m * n * sum(means)
        return total

    def whiten(self, value: Array) -> Array:
        return self._root().solve(value - self.loc)

    def sample(self, noise: Array) -> Array:
        return self._bound().loc + self._root().times(noise)

    # -- natural gradients ------------------------------------------------------------

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        root = self._root()
        parts, of_loc = root.split(noise), root.split(root.transpose_times(change.loc))
        moved = [
            w + times(self.xp, x, z) + z @ y.mT
            for w, (x, y), z in zip(
                of_loc.matrices, self._inner(change), parts.matrices, strict=True
            )
        ]
        return root.join(moved, of_loc.rest + 0.5 * self.scale * change.scale * parts.rest)

    def transposed(self, vector: Array) -> Array:
        return self._root().transpose_times(vector)

    def draw_vjp(self, noise: Array, slope: Array) -> Self:
        root, slope = self._root(), slope.reshape(-1, self.dim)
        parts, of_parts = root.split(noise.reshape(-1, self.dim)), root.split(slope)
        inner = [
            (self._halved(summed(w, z), z.shape[-1]), self._halved(summed(w.mT, z.mT), z.shape[-2]))
            for z, w in zip(parts.matrices, of_parts.matrices, strict=True)
        ]
        of_scale = 0.5 * self.scale * (of_parts.rest * parts.rest).sum(0)
        return self._direction(root.times(slope.sum(0)), inner, of_scale)

    def log_det_jvp(self, change: Self) -> Array:
        of_rows = (self._bound().row_tril * change.row_tril).sum()
        of_columns = (self.column_tril * change.column_tril).sum()
        return 0.25 * (of_rows + of_columns) + 0.5 * (self.scale * change.scale).sum()

    def natural_gradient(self, gradient: Self) -> Self:
        of_scale = 0.5 * self._bound().scale ** 2 * gradient.scale
        loc = steps.covariance_times(self, gradient.loc)
        return self._direction(loc, self._inner(gradient), of_scale)

    def _inner(self, gradient: Self) -> Pairs:
        """``X`` and ``Y`` of (3)."""

        def inner(factor: Array, gradient: Array, other: int) -> Array:
            return self._halved(factor.mT @ self.xp.tril(gradient), other)

        return self._each(inner, self._root().pairs, gradient._root().pairs)

    def _halved(self, inner: Array, other: int) -> Array:
        """``X`` of (3) from ``T``."""
        return self.ops.half_lower(inner, -0.25 / len(inner)) / other

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        """Apply (2), whose inverse is :meth:`natural_gradient` for every gradient."""

        def gradient(factor: Array, inner: Array, other: int) -> Array:
            scale = 2.0 * inner.diagonal().sum() / len(factor)
            both = self.ops.plus_diagonal(inner + inner.mT, other * scale, float(other))
            return self.xp.tril(self.ops.solve_symmetric(factor, both))

        pairs = self._each(gradient, self._root().pairs, self._quotients(natural_gradient))
        of_scale = 2.0 * natural_gradient.scale / self.scale**2
        return self._with(steps.gradient_of_mean(self, natural_gradient), pairs, of_scale)

    def _isometric(self, direction: Self) -> tuple[Array, Array]:
        """Return a direction's mean and other coordinates as vectors of products, by (2)."""
        parts = [math.sqrt(2.0) * direction.scale / self.scale]

        def add(inner: Array, other: int) -> None:
            diagonal, size = inner.diagonal(), len(inner)
            parts.extend(
                [
                    math.sqrt(other) * inner.reshape(-1),
                    math.sqrt(other) * diagonal,
                    math.sqrt(2.0 * other / size) * diagonal.sum()[None],
                ]
            )

        self._each(add, self._quotients(direction))
        return self._root().solve(direction.loc), self.xp.concatenate(parts)


steps.leaves_out_correlations.register(MatrixNormal, lambda family: True)


@steps.free_coordinates.register(MatrixNormal)
def _(family: MatrixNormal) -> list[Array]:
    found = family._bound().coordinates().values()
    return [array for array in found if array.shape[0]]  # there may be no other latents


@steps.covariance_times.register(MatrixNormal)
def _(family: MatrixNormal, vector: Array) -> Array:
    root = family._root()
    return root.times(root.transpose_times(vector))


@steps.gradient_of_mean.register(MatrixNormal)
def _(family: MatrixNormal, natural_gradient: MatrixNormal) -> Array:
    root = family._root()
    return root.solve_transpose(root.solve(natural_gradient.loc))


@steps.mean_products.register(MatrixNormal)
def _(family: MatrixNormal, natural_gradient: MatrixNormal, change: Array) -> tuple[Array, Array]:
    step = family._whitened_mean(natural_gradient)
    return (step * family._root().solve(change)).sum(), (step**2).sum()


@steps.fisher_products.register(MatrixNormal)
def _(family: MatrixNormal, directions: Sequence[Any], others: Sequence[Any] = ()) -> Any:
    found = [family._isometric(one) for one in (*directions, *others)]
    means, scales = ([[pair[i]] for pair in found] for i in (0, 1))
    num = len(directions)
    return family.ops.products(means[:num], means), family.ops.products(scales[:num], scales)
