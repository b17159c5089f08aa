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

The rule's step is that of :mod:`ngvi.linalg.kronecker`: with ``A_U = -A^-T P A^-1 / n``, what the
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
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ngvi.families.base import Array, Family
from ngvi.families.path import WhitenedPath
from ngvi.latents import forest
from ngvi.latents.forest import Forest, check_dense, forest_from_indices
from ngvi.latents.layout import Layout, Site
from ngvi.linalg.kronecker import KroneckerSteps, NumberSteps
from ngvi.linalg.matrices import symmetric

#: A site with more rows or columns than this (an embedding of words, say) is no matrix unless it is
#: named: one factor would have 16 million entries.
MAX_SIDE = 4096


class Parts(NamedTuple):
    """A vector by matrices, shapes ``(..., m, n)``, and independent latents, shape ``(..., r)``."""

    matrices: list[Array]
    rest: Array


@dataclasses.dataclass(frozen=True, eq=False)
class MatrixNormal(Family):
    """Independent matrix-normal sites, and a diagonal for what is no matrix.

    A site of two axes is a matrix. Of more axes (a kernel of a convolution) the first or the last
    is one side, and all others together are the other one, whichever takes fewer parameters: with
    the layouts of torch and of Flax the output channels are one side.

    :param loc: mean, shape ``(d,)``.
    :param row_tril: the ``A`` of all matrices one after another, each ``(m, m)`` with zeros above
        its diagonal, flattened.
    :param column_tril: the ``B``, each ``(n, n)``, in the same way.
    :param scale: standard deviations of the other latents, in their order. The sign is free.
    :param sites: names of the sites that are matrices. By default all that have at least two rows
        and two columns, and at most ``MAX_SIDE`` of either.
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
    matrices: tuple[tuple[int, int, int], ...] | None = dataclasses.field(
        default=None, kw_only=True, metadata={"static": True}
    )

    name: ClassVar[str] = "matrix_normal"
    leaves_out_correlations: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.sites is not None and not isinstance(self.sites, tuple):
            names = (self.sites,) if isinstance(self.sites, str) else tuple(self.sites)
            object.__setattr__(self, "sites", names)

    def for_layout(self, layout: Layout) -> Self:
        """With the matrices of this layout.

        :raises ValueError: if there is none, or a named site is none.
        """
        if self.matrices is not None:
            return self
        sites = layout.sites if self.sites is None else [layout.site(name) for name in self.sites]
        found = []
        for site in sites:
            sides = _sides(site)
            if min(sides) >= 2 and (self.sites is not None or max(sides) <= MAX_SIDE):
                found.append((site.start, *sides))
            elif self.sites is not None:
                raise ValueError(
                    f"Latent site {site.name!r} of MatrixNormal(sites=...) has shape {site.shape}, "
                    "and is no matrix of at least two rows and two columns. Leave it out of "
                    "sites=: what is no matrix has a standard deviation for each element."
                )
        if not found:
            shapes = ", ".join(f"{site.name!r} {site.shape}" for site in layout.sites[:10])
            more = ", ..." if len(layout.sites) > 10 else ""
            raise ValueError(
                "family='matrix_normal' needs a latent site that is a matrix of at least two rows "
                f"and two columns, and the latent sites are {shapes}{more}. Use family='diagonal' "
                "(any size), 'low_rank', or 'auto', which finds what suits the model."
            )
        return dataclasses.replace(self, matrices=tuple(sorted(found)))

    def initial(self, loc: Array, scale: float | Array) -> Self:
        """``N(loc, diag(scale^2))``, if the scales of each matrix are products ``r_i c_j``.

        Otherwise the ``log r_i + log c_j`` nearest to their logarithms.

        :raises ValueError: if it is not known which latents are matrices.
        """
        end = max((s + m * n for s, m, n in self.matrices or ()), default=0)
        if self.matrices is None or end > loc.shape[-1]:
            raise ValueError(
                f"MatrixNormal cannot begin with {loc.shape[-1]} latents and "
                f"matrices={self.matrices}: give MatrixNormal(matrices=((start, rows, columns), "
                "...)) the matrices in the latent vector, or pass it to NaturalGaussianGuide, "
                "which finds them."
            )
        new = dataclasses.replace(self, loc=loc)
        logs, rest = new._split(self.xp.log(scale * self.xp.ones_like(loc)))
        rows = [log.mean(1) - 0.5 * log.mean() for log in logs]
        columns = [log.mean(0) - 0.5 * log.mean() for log in logs]
        return new._with(
            loc,
            [self.xp.diag(self.xp.exp(one)) for one in rows],
            [self.xp.diag(self.xp.exp(one)) for one in columns],
            self.xp.exp(rest),
        )

    # -- shape and moments ------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """Without a redundant scale for each matrix."""
        of_matrices = [_triangle(m) + _triangle(n) - 1 for _, m, n in self._matrices()]
        return self.dim + sum(of_matrices) + self.scale.shape[-1]

    def free_coordinates(self) -> list[Array]:
        found = super().free_coordinates()
        return [array for array in found if array.shape[0]]  # there may be no other latents

    def couples(self) -> str | Forest:
        return "all" if self.loc is None else _blocks(self._matrices(), self.dim)

    def describe(self) -> str:
        """The structure in words."""
        if self.matrices is None:
            return "no matrices yet"
        counts = collections.Counter((m, n) for _, m, n in self.matrices)
        words = [f"{count} of {m} x {n}" for (m, n), count in counts.items()]
        rest = "" if self.loc is None else f", and {self.scale.shape[-1]} independent latents"
        return f"matrices ({', '.join(words)}){rest}"

    @property
    def stddev(self) -> Array:
        norm = functools.partial(self.xp.linalg.norm, axis=-1)
        pairs = zip(self._rows(), self._columns(), strict=True)
        return self._join([norm(a)[:, None] * norm(b) for a, b in pairs], abs(self.scale))

    # -- density ----------------------------------------------------------------------

    def log_det_scale(self) -> Array:
        total = self.xp.log(abs(self._bound().scale)).sum()
        for (_, m, n), row, column in zip(
            self._matrices(), self._rows(), self._columns(), strict=True
        ):
            total = total + n * self.ops.log_abs_det(row) + m * self.ops.log_abs_det(column)
        return total

    def whiten(self, value: Array) -> Array:
        return self._whitened(value - self._bound().loc)

    def sample(self, noise: Array) -> Array:
        parts = self._split(noise)
        moved = [
            self._times(row, z @ column.mT)
            for row, column, z in zip(self._rows(), self._columns(), parts.matrices, strict=True)
        ]
        return self._bound().loc + self._join(moved, self.scale * parts.rest)

    # -- natural gradients ------------------------------------------------------------

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        parts, of_loc = self._split(noise), self._split(self._transposed(change.loc))
        rows, columns = self._inner(change)
        moved = [
            w + self._times(x, z) + z @ y.mT
            for w, x, y, z in zip(of_loc.matrices, rows, columns, parts.matrices, strict=True)
        ]
        rest = of_loc.rest + 0.5 * self.scale * change.scale * parts.rest
        return self._join(moved, rest)

    def _draw_vjp(self, noise: Array, slope: Array) -> Self:
        """The transpose of :meth:`draw_jvp`, a linear function of the slope.

        :param noise: ``z``, shape ``(..., d)``.
        :param slope: of a function of the reparametrised noise, shape ``(..., d)``.
        :return: the natural gradient of that function.
        """
        slope = slope.reshape(-1, self.dim)
        noise, of_noise = self._split(noise.reshape(-1, self.dim)), self._split(slope)
        rows, columns = [], []
        for (_, m, n), z, w in zip(
            self._matrices(), noise.matrices, of_noise.matrices, strict=True
        ):
            rows.append(self._halved(_summed(w, z), n))
            columns.append(self._halved(_summed(w.mT, z.mT), m))
        of_scale = 0.5 * self.scale * (of_noise.rest * noise.rest).sum(0)
        return self._moved(self.centred().sample(slope.sum(0)), rows, columns, of_scale)

    def log_det_jvp(self, change: Self) -> Array:
        of_rows = (self._bound().row_tril * change.row_tril).sum()
        of_columns = (self.column_tril * change.column_tril).sum()
        return 0.25 * (of_rows + of_columns) + 0.5 * (self.scale * change.scale).sum()

    def natural_gradient(self, gradient: Self) -> Self:
        rows, columns = self._inner(gradient)
        return self._moved(
            self.covariance_times(gradient.loc),
            rows,
            columns,
            0.5 * self.scale**2 * gradient.scale,
        )

    def _inner(self, gradient: Self) -> tuple[list[Array], list[Array]]:
        """``X`` and ``Y`` of (3)."""
        rows, columns = [], []
        for (_, m, n), a, b, of_a, of_b in zip(
            self._matrices(),
            self._rows(),
            self._columns(),
            gradient._rows(),
            gradient._columns(),
            strict=True,
        ):
            rows.append(self._of_factor(a, of_a, n))
            columns.append(self._of_factor(b, of_b, m))
        return rows, columns

    def _of_factor(self, factor: Array, gradient: Array, other: int) -> Array:
        return self._halved(factor.mT @ self.xp.tril(gradient), other)

    def _halved(self, inner: Array, other: int) -> Array:
        """``X`` of (3) from ``T``."""
        return self.ops.half_lower(inner, -0.25 / len(inner)) / other

    def covariance_times(self, vector: Array) -> Array:
        """``Sigma x``."""
        return self.centred().sample(self._transposed(vector))

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        """By (2), whose inverse is :meth:`natural_gradient` for every gradient."""
        rows, columns = [], []
        for (_, m, n), a, b, x, y in zip(
            self._matrices(),
            self._rows(),
            self._columns(),
            *self._quotients(natural_gradient),
            strict=True,
        ):
            rows.append(self._gradient_of_factor(a, x, n))
            columns.append(self._gradient_of_factor(b, y, m))
        of_scale = 2.0 * natural_gradient.scale / self.scale**2
        return self._with(self.gradient_of_mean(natural_gradient), rows, columns, of_scale)

    def gradient_of_mean(self, natural_gradient: Self) -> Array:
        """``S x``."""
        loc = self._split(self._whitened(natural_gradient.loc))
        solved = [
            self.ops.solve_lower(b, self.ops.solve_lower(a, w, trans=True).mT, trans=True).mT
            for a, b, w in zip(self._rows(), self._columns(), loc.matrices, strict=True)
        ]
        return self._join(solved, loc.rest / self.scale)

    def mean_products(self, natural_gradient: Self, change: Array) -> tuple[Array, Array]:
        step = self._whitened_mean(natural_gradient)
        return (step * self._whitened(change)).sum(), (step**2).sum()

    def _whitened_mean(self, direction: Self) -> Array:
        """``C^-1 dmu`` of a direction, shape ``(d,)``."""
        return self._whitened(direction.loc)

    def _quotients(self, direction: Self) -> tuple[list[Array], list[Array]]:
        """``X`` and ``Y`` of a direction."""
        pairs = (self._rows(), direction._rows()), (self._columns(), direction._columns())
        rows, columns = ([self.ops.lower_quotient(*p) for p in zip(*q, strict=True)] for q in pairs)
        return rows, columns

    def _gradient_of_factor(self, factor: Array, inner: Array, other: int) -> Array:
        scale = 2.0 * inner.diagonal().sum() / len(factor)
        both = self.ops.plus_diagonal(inner + inner.mT, other * scale, float(other))
        return self.xp.tril(self.ops.solve_symmetric(factor, both))

    def _isometric(self, direction: Self) -> tuple[Array, Array]:
        """A direction's mean and its other coordinates as vectors of plain products, by (2)."""
        parts = [math.sqrt(2.0) * direction.scale / self.scale]
        for (_, m, n), x, y in zip(self._matrices(), *self._quotients(direction), strict=True):
            for inner, other in ((x, n), (y, m)):
                diagonal, size = inner.diagonal(), len(inner)
                parts += [
                    math.sqrt(other) * inner.reshape(-1),
                    math.sqrt(other) * diagonal,
                    math.sqrt(2.0 * other / size) * diagonal.sum()[None],
                ]
        return self._whitened(direction.loc), self.xp.concatenate(parts)

    def fisher_products(self, directions: Sequence[Self], others: Sequence[Self] = ()) -> Any:
        found = [self._isometric(one) for one in (*directions, *others)]
        means, scales = ([[pair[i]] for pair in found] for i in (0, 1))
        num = len(directions)
        return self.ops.products(means[:num], means), self.ops.products(scales[:num], scales)

    # -- curvature --------------------------------------------------------------------

    def assemble_hessian(self, products: Array) -> tuple[Array, Array, Array]:
        """``P``, ``Q`` of (4), packed as the factors are, and the other latents' diagonal."""
        check_dense(self._bound())
        whitened = self._transposed(self._transposed(products).mT)
        rows, columns = [], []
        for start, m, n in self._matrices():
            own = whitened[start : start + m * n, start : start + m * n].reshape(m, n, m, n)
            rows.append(symmetric(own.diagonal(0, 1, 3).sum(-1)))
            columns.append(symmetric(own.diagonal(0, 0, 2).sum(-1)))
        return _pack(self, rows), _pack(self, columns), self._split(products.diagonal()).rest

    def outer_products(self, left: Array, right: Array) -> tuple[Array, Array, Array]:
        """As :meth:`assemble_hessian`, in O(N m n (m + n)) for each matrix."""
        rest = (self._split(left).rest * self._split(right).rest).sum(0)
        whitened = [self._split(self._transposed(side)).matrices for side in (left, right)]
        rows, columns = [], []
        for one, other in zip(*whitened, strict=True):
            rows.append(symmetric(_summed(one, other)))
            columns.append(symmetric(_summed(one.mT, other.mT)))
        return _pack(self, rows), _pack(self, columns), rest

    def bonnet_price(self, gradient: Array, hessian: tuple[Array, Array, Array]) -> Self:
        """By (4); ``hessian`` is what :meth:`outer_products` gives."""
        of_rows, of_columns, diagonal = hessian
        here = self._with(self._bound().loc, of_rows, of_columns, diagonal)
        rows, columns = [], []
        for (_, m, n), p, q in zip(self._matrices(), here._rows(), here._columns(), strict=True):
            scale = 0.5 - 0.25 * (p.diagonal().sum() + q.diagonal().sum()) / (m * n)
            rows.append(self.ops.halve_diagonal(p / n + scale * self.ops.eye(m, p)))
            columns.append(self.ops.halve_diagonal(q / m + scale * self.ops.eye(n, q)))
        scale = 0.5 * self.scale * (self.scale**2 * diagonal + 1.0)
        return self._moved(self.covariance_times(gradient), rows, columns, scale)

    def keeps_rows(self) -> bool:
        """Whether a dense matrix would be too large."""
        return self.dim > forest.MAX_DENSIFIED_DIM

    def natural_gradient_from_rows(self, gradient: Array, rows: Array, diagonal: Array) -> Self:
        """:meth:`bonnet_price` of ``-E[hess l] = rows^T rows + diag(diagonal)``.

        :param rows: scaled gradients of single examples, shape ``(N, d)``.
        :param diagonal: of the rest, such as a prior's, shape ``(d,)``.
        """
        return self.natural_gradient_from_squares(
            gradient, self.outer_products(rows, rows), diagonal
        )

    def natural_gradient_from_examples(
        self, gradient: Array, draws: Sequence[Any], share: float, diagonal: Array
    ) -> Self:
        """:meth:`natural_gradient_from_rows` where rows need not be written down.

        :param draws: each as :meth:`squares_of_examples` takes it.
        :param share: of every draw.
        """
        found = [self.squares_of_examples(draw) for draw in draws]
        total = tuple(share * sum(same) for same in zip(*found, strict=True))
        return self.natural_gradient_from_squares(gradient, total, diagonal)

    def squares_of_examples(self, draw: Any) -> tuple[Array, Array, Array]:
        """:meth:`outer_products` of rows with themselves.

        In O(N (m^2 + n^2)) for a matrix whose rows are outer products.

        :param draw: has ``outer(start, m, n)``, the ``x_i`` and ``y_i`` of a matrix of latents
            whose rows are ``x_i y_i^T``, or None, and ``entries(start, stop)`` of all rows.
        """
        rows, columns, last, rest = [], [], 0, []
        for (start, m, n), a, b in zip(
            self._matrices(), self._rows(), self._columns(), strict=True
        ):
            rest.append(draw.entries(last, start))
            last, outer = start + m * n, draw.outer(start, m, n)
            if outer is None:
                own = draw.entries(start, last)
                own = self._times(a.mT, own.reshape(len(own), m, n) @ b)
                rows.append(_summed(own, own))
                columns.append(_summed(own.mT, own.mT))
            else:
                x, y = outer[0] @ a, outer[1] @ b
                rows.append((x * (y**2).sum(1)[:, None]).mT @ x)
                columns.append((y * (x**2).sum(1)[:, None]).mT @ y)
        rest.append(draw.entries(last, self.dim))
        of_rest = (self.xp.concatenate(rest, -1) ** 2).sum(0)
        return _pack(self, rows), _pack(self, columns), of_rest

    def natural_gradient_from_squares(
        self, gradient: Array, of_rows: tuple[Array, Array, Array], diagonal: Array
    ) -> Self:
        """:meth:`natural_gradient_from_rows` from what :meth:`outer_products` of the rows gives."""
        parts = self._split(diagonal)
        more = [
            (
                a.mT @ ((d @ (b**2).sum(1))[:, None] * a),
                b.mT @ ((d.mT @ (a**2).sum(1))[:, None] * b),
            )
            for a, b, d in zip(self._rows(), self._columns(), parts.matrices, strict=True)
        ]
        of_diagonal = *(_pack(self, list(one)) for one in zip(*more, strict=True)), parts.rest
        total = tuple(-(a + b) for a, b in zip(of_rows, of_diagonal, strict=True))
        return self.bonnet_price(gradient, total)

    # -- steps ------------------------------------------------------------------------

    def attempts_are_costly(self) -> bool:
        """By the factorisation and the inverse of each factor."""
        return True

    def along(self, direction: Self, of_mean: Array | float = 1.0) -> WhitenedPath:
        """The steps to (5)."""
        stays = isinstance(of_mean, float) and of_mean == 0.0
        num, blocks = len(self._matrices()), []
        shift: Any = Parts([None] * num, None)
        if not stays:
            shift = self._split(of_mean * self._whitened_mean(direction))
        for x, y, w in zip(*self._quotients(direction), shift.matrices, strict=True):
            # Each factor moves with the whole scale, which both share, and the step divides by it.
            traces = [2.0 * one.diagonal().sum() / len(one) for one in (x, y)]
            blocks.append(
                (
                    tuple(
                        self.ops.plus_diagonal(one + one.mT, -other, -1.0)
                        for one, other in ((x, traces[1]), (y, traces[0]))
                    ),
                    w,
                )
            )
        blocks.append((-2.0 * direction.scale / self.scale, shift.rest))
        kronecker, numbers = KroneckerSteps(self.ops), NumberSteps(self.ops)

        def finish(_: Any, *steps: Any) -> Any:
            *of_matrices, of_rest = steps
            rows, columns, loc = self._rows(), self._columns(), self.loc
            times = self.ops.lower_product
            pairs = [
                (times(a, step.rows.lower), times(b, step.columns.lower))
                for a, b, step in zip(rows, columns, of_matrices, strict=True)
            ]
            if not stays:
                moved = [
                    a @ kronecker.inner_shift(step) @ b.mT
                    for (a, b), step in zip(pairs, of_matrices, strict=True)
                ]
                loc = loc + self._join(moved, self.scale * of_rest.shift)
            sizes = [step.size for step in of_matrices]
            return self._balanced(loc, pairs, self.scale * self.xp.sqrt(of_rest.ratio), sizes)

        def metrics(steps: Sequence[Any], gradient: Array) -> Any:
            whitened = self._split(self._transposed(gradient))
            factors = list(zip(self._rows(), self._columns(), whitened.matrices, strict=True))

            def of_steps(*steps: Any) -> Array:
                *of_matrices, of_rest = steps
                moved = [
                    a @ kronecker.metric(step, w) @ b.mT
                    for step, (a, b, w) in zip(of_matrices, factors, strict=True)
                ]
                return self._join(moved, self.scale * of_rest.ratio * whitened.rest)

            return of_steps

        kinds = [*[kronecker] * num, numbers]
        return WhitenedPath(blocks, kinds, finish, metrics=metrics)

    def _trace_ratio(self, other: Self) -> Array:
        total = ((self.scale / other.scale) ** 2).sum()
        for a, b, of_a, of_b in zip(
            self._rows(), self._columns(), other._rows(), other._columns(), strict=True
        ):
            of_rows = (self.ops.lower_quotient(of_a, a) ** 2).sum()
            total = total + of_rows * (self.ops.lower_quotient(of_b, b) ** 2).sum()
        return total

    def retract(self, step: Self) -> Self:
        """``lambda + step``, with the redundant scale where it belongs."""
        scale = self.ops.keep_off_zero(self._bound().scale, self.scale + step.scale)
        rows = map(self._off_zero, self._rows(), step._rows())
        columns = map(self._off_zero, self._columns(), step._columns())
        return self._balanced(self.loc + step.loc, list(zip(rows, columns, strict=True)), scale)

    def _off_zero(self, factor: Array, step: Array) -> Array:
        new = factor + step
        diagonal = self.ops.keep_off_zero(factor.diagonal(), new.diagonal())
        return self.ops.with_diagonal(new, diagonal)

    # -- helpers ----------------------------------------------------------------------

    def _matrices(self) -> tuple[tuple[int, int, int], ...]:
        return self._bound().matrices or ()

    def _rows(self) -> list[Array]:
        return self._factors(self._bound().row_tril, 1)

    def _columns(self) -> list[Array]:
        return self._factors(self._bound().column_tril, 2)

    def _factors(self, packed: Array, side: int) -> list[Array]:
        sizes = [matrix[side] for matrix in self._matrices()]
        pieces = self.ops.split(packed, [size**2 for size in sizes])
        return [piece.reshape(size, size) for piece, size in zip(pieces, sizes, strict=True)]

    def _split(self, vector: Array) -> Parts:
        """A vector ``(..., d)`` by matrices and other latents."""
        pieces = self.ops.split(vector, self._sizes())
        found = [
            piece.reshape(*vector.shape[:-1], m, n)
            for piece, (_, m, n) in zip(pieces[1::2], self._matrices(), strict=True)
        ]
        return Parts(found, self.xp.concatenate(pieces[::2], -1))

    def _join(self, matrices: list[Array], rest: Array) -> Array:
        """The inverse of :meth:`_split`."""
        pieces = list(self.ops.split(rest, self._sizes()[::2]))
        for index, matrix in enumerate(matrices):
            flat = matrix.reshape(*matrix.shape[:-2], -1)
            pieces.insert(2 * index + 1, flat)
        return self.xp.concatenate(pieces, -1)

    def _sizes(self) -> list[int]:
        """Of the pieces of the latent vector, every other one of which is a matrix."""
        sizes, last = [], 0
        for start, m, n in self._matrices():
            sizes += [start - last, m * n]
            last = start + m * n
        return [*sizes, self.dim - last]

    def _with(self, loc: Array, rows: Any, columns: Any, scale: Array) -> Self:
        """These coordinates; factors in a list are packed."""
        rows, columns = (_pack(self, x) if isinstance(x, list) else x for x in (rows, columns))
        return dataclasses.replace(self, loc=loc, row_tril=rows, column_tril=columns, scale=scale)

    def _moved(self, loc: Array, rows: list[Array], columns: list[Array], scale: Array) -> Self:
        """The direction ``A X`` and ``B Y``."""
        return self._with(
            loc,
            [self.ops.lower_product(a, x) for a, x in zip(self._rows(), rows, strict=True)],
            [self.ops.lower_product(b, y) for b, y in zip(self._columns(), columns, strict=True)],
            scale,
        )

    def _balanced(
        self,
        loc: Array,
        pairs: list[tuple[Array, Array]],
        scale: Array,
        sizes: Sequence[Array | float] | None = None,
    ) -> Self:
        """With ``|det A|^(1/m) = |det B|^(1/n)``.

        :param sizes: by what the covariance of each pair is multiplied; one by default.
        """
        rows, columns = [], []
        for (a, b), size in zip(pairs, sizes or [1.0] * len(pairs), strict=True):
            logs = [self.ops.log_abs_det(one) / len(one) for one in (a, b)]
            ratio, half = self.xp.exp(0.5 * (logs[1] - logs[0])), size**0.25
            rows.append(half * ratio * a)
            columns.append(half / ratio * b)
        return self._with(loc, rows, columns, scale)

    def _whitened(self, vector: Array) -> Array:
        """``C^-1 x``, for vectors ``(..., d)``."""
        parts = self._split(vector)
        solved = [
            self.ops.solve_rows(b, self.ops.solve_rows(a, w.mT).mT)
            for a, b, w in zip(self._rows(), self._columns(), parts.matrices, strict=True)
        ]
        return self._join(solved, parts.rest / self.scale)

    def _transposed(self, vector: Array) -> Array:
        """``C^T x``, for vectors ``(..., d)``."""
        parts = self._split(vector)
        moved = [
            self._times(a.mT, w @ b)
            for a, b, w in zip(self._rows(), self._columns(), parts.matrices, strict=True)
        ]
        return self._join(moved, self.scale * parts.rest)

    def _times(self, factor: Array, matrices: Array) -> Array:
        """``A Z`` for many ``Z``, as one product: in batches XLA takes ten times as long."""
        *_, m, n = matrices.shape
        if math.prod(matrices.shape) == m * n:
            return (factor @ matrices.reshape(m, n)).reshape(matrices.shape)
        product = self.xp.tensordot(factor, matrices, ([1], [matrices.ndim - 2]))
        return self.xp.moveaxis(product, 0, -2)


def _sides(site: Site) -> tuple[int, int]:
    """Rows and columns of a site, of which each index of either is a run of axes."""
    if len(site.shape) < 2 or not site.size:
        return 1, site.size
    first, last = site.shape[0], site.shape[-1]
    pairs = (first, site.size // first), (site.size // last, last)
    return min(pairs, key=lambda sides: sides[0] ** 2 + sides[1] ** 2)


def _triangle(size: int) -> int:
    return size * (size + 1) // 2


def _summed(left: Array, right: Array) -> Array:
    """``sum_i L_i R_i^T`` for matrices ``(N, m, n)``."""
    one, other = (side.swapaxes(0, 1).reshape(side.shape[1], -1) for side in (left, right))
    return one @ other.mT


def _pack(family: Family, factors: list[Array]) -> Array:
    return family.xp.concatenate([factor.reshape(-1) for factor in factors])


@functools.lru_cache(maxsize=16)
def _blocks(matrices: tuple[tuple[int, int, int], ...], dim: int) -> Forest:
    pieces = [np.arange(start, start + m * n)[:, None] for start, m, n in matrices]
    rest = np.setdiff1d(np.arange(dim), np.concatenate(pieces))
    return forest_from_indices([*pieces, rest[None]] if rest.size else pieces)
