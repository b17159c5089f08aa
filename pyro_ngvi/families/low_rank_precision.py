"""Gaussian by a low-rank factor of its precision, ``S = U U^T + diag(D)`` (SLANG).

Mishkin, Kunstner, Nielsen, Schmidt and Khan (2018), *SLANG: Fast structured covariance
approximations for Bayesian deep learning with natural gradient*. Time is O(d r^2), memory O(d r);
the algebra, with ``V = D^-1/2 U`` and the roots ``R`` and ``L`` of its equation (1), is that of
:mod:`~pyro_ngvi.linalg.low_rank`. A draw is ``theta = mu + D^-1/2 R^-T z``.

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
import functools
from typing import Any, ClassVar

import torch
from torch import Tensor

from ngvi.checks import check_rank
from ngvi.structure.forest import check_dense
from ngvi.structure.layout import Layout
from pyro_ngvi.families.base import Family
from pyro_ngvi.linalg.definite import positive
from pyro_ngvi.linalg.low_rank import (
    LowRank,
    initial_factor,
    inverse_values,
    project_dense,
    shifted,
    solve_rows,
    turned,
)
from pyro_ngvi.linalg.triangular import MIN_SHRINKAGE, symmetric

#: The step size of :meth:`LowRankPrecision.retract`.
WHOLE = 1.0


@dataclasses.dataclass(frozen=True, eq=False)
class LowRankPrecision(Family):
    """Gaussian whose precision is of low rank, plus a diagonal.

    :param loc: mean, shape ``(d,)``.
    :param factor: ``U``, shape ``(d, rank)``.
    :param diagonal: ``D``, positive, shape ``(d,)``.
    :param rank: ``r``, from 1 to ``d``.
    :raises ValueError: for a rank below 1; by :meth:`initial`, for one above ``d``.
    """

    loc: Tensor | None = None
    factor: Tensor | None = None
    diagonal: Tensor | None = None
    rank: int = dataclasses.field(default=10, kw_only=True, metadata={"static": True})

    name: ClassVar[str] = "low_rank"
    relative_scale_step: ClassVar[float] = 0.01
    leaves_out_correlations: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_rank(self.rank)

    def for_layout(self, layout: Layout) -> LowRankPrecision:
        check_rank(self.rank, layout.dim)
        return self

    def initial(self, loc: Tensor, scale: float | Tensor) -> LowRankPrecision:
        """``N(loc, scale^2 I)``, but for a faint ``U``; the variances are a little smaller.

        :raises ValueError: if the rank is above the dimension.
        """
        check_rank(self.rank, loc.shape[-1])
        factor = torch.as_tensor(initial_factor(loc.shape[-1], self.rank)).to(loc)
        scale = scale * torch.ones_like(loc)
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
    def stddev(self) -> Tensor:
        return self.variance.sqrt()

    @property
    def variance(self) -> Tensor:
        return self._matrix.inverse_diagonal()

    # -- density ----------------------------------------------------------------------

    def log_det_scale(self) -> Tensor:
        return -0.5 * self._matrix.log_det()

    def whiten(self, value: Tensor) -> Tensor:
        return self._matrix.root_divide(value - self.loc)

    def sample(self, noise: Tensor) -> Tensor:
        return self.loc + self._matrix.root_times(noise)[0]

    # -- natural gradients ------------------------------------------------------------

    def displaced(self, noise: Tensor) -> Tensor:
        return _Displaced.apply(noise, *self.coordinates().values(), self.detach())

    def _displacement_transpose(self, noise: Tensor, slope: Tensor) -> LowRankPrecision:
        """The transpose of :meth:`displacement`, a linear function of the slope.

        :param noise: ``z``, shape ``(..., d)``.
        :param slope: of a function of the displaced noise, shape ``(..., d)``.
        :return: the natural gradient of that function.
        """
        noise, slope = noise.reshape(-1, self.dim), slope.reshape(-1, self.dim)
        _, inverse, _ = self._matrix.metric()
        both, of_both = self._matrix.root_times(torch.cat([noise, slope]))
        delta, of_theta = both.chunk(2)
        of_delta, of_slope = of_both.chunk(2)
        outer = of_delta.mT @ of_slope
        outer = outer + outer.mT
        inner = outer @ inverse - 0.5 * inverse @ outer @ inverse
        right = torch.cat([of_slope, of_delta]) @ inverse
        factor = self.factor @ (-0.5 * inner)
        factor.addmm_((both * self.diagonal).mT, right, alpha=-0.5)
        diagonal = -(self.diagonal**2) * (of_theta * delta).sum(0)
        return self._with(of_theta.sum(0), factor, diagonal)

    def displacement(self, change: LowRankPrecision, noise: Tensor) -> Tensor:
        # natural_gradient(change), but its factor only in products with delta: each use of an
        # array of size d r, and of its transpose, is one more pass through memory.
        root = self._matrix.root()
        _, inverse, _ = self._matrix.metric()
        mixed = self.factor.mT @ change.factor
        inner = mixed @ inverse - 0.5 * inverse @ symmetric(mixed) @ inverse
        delta, of_delta = self._matrix.root_times(noise)
        times = self.diagonal * ((of_delta @ inverse) @ change.factor.mT)
        times = times + 2.0 * self.diagonal**2 * change.diagonal * delta
        moved = change.loc - 0.5 * times
        across = ((self.diagonal * delta) @ change.factor) @ inverse + of_delta @ inner
        across = -0.5 * (of_delta @ inner.mT + across)
        # By (1), C^T U = V (I + L)^-T L^-1 (I + L).
        across = across @ shifted(root).mT - (moved / self.diagonal) @ self.factor
        across = solve_rows(shifted(root), solve_rows(root, across), trans=True)
        # (3), by C^-1 Sigma = C^T
        return (moved + across @ self.factor.mT) / self.diagonal.sqrt()

    def log_det_displacement(self, change: LowRankPrecision) -> Tensor:
        n = self.natural_gradient(change)
        both = (self._matrix.divide_factor() * n.factor).sum()
        return -both - 0.5 * (self.variance * n.diagonal).sum()

    def natural_gradient(self, gradient: LowRankPrecision) -> LowRankPrecision:
        _, inverse, _ = self._matrix.metric()
        mixed = self.factor.mT @ gradient.factor
        inner = mixed @ inverse - 0.5 * inverse @ symmetric(mixed) @ inverse
        factor = (self.diagonal[:, None] * gradient.factor) @ inverse + self.factor @ inner  # (2)
        diagonal = 2.0 * self.diagonal**2 * gradient.diagonal
        return self._with(self._matrix.divide(gradient.loc), factor, diagonal)

    def euclidean_gradient(self, natural_gradient: LowRankPrecision) -> LowRankPrecision:
        metric, inverse, (values, vectors) = self._matrix.metric()
        # (2) from the left by U^T Sigma, in the eigenvectors of V^T V: a 2 x 2 system for
        # each pair of entries of U^T G. The ratios are one where nothing is too weak.
        of_factor = self._matrix.divide(natural_gradient.factor.mT).mT @ metric
        product = vectors.mT @ (self.factor.mT @ of_factor) @ vectors
        ratio = values / (1.0 + values) * inverse_values(values) / 4.0
        row, column = ratio[:, None], ratio[None, :]
        mixed = ((1.0 - column) * product + row * product.mT) / (1.0 - row - column)
        inner = inverse @ (vectors @ symmetric(mixed) @ vectors.mT)
        factor = of_factor + 0.5 * self._matrix.divide_factor() @ inner
        loc = self._matrix.times(natural_gradient.loc)
        diagonal = 0.5 * natural_gradient.diagonal / self.diagonal**2
        return self._with(loc, factor, diagonal)

    # -- curvature --------------------------------------------------------------------

    def assemble_hessian(self, products: Tensor) -> Tensor:
        check_dense(self._bound())
        return symmetric(products)

    def outer_products(self, left: Tensor, right: Tensor) -> Tensor:
        check_dense(self._bound())
        return symmetric(left.mT @ right)

    def bonnet_price(self, gradient: Tensor, hessian: Tensor) -> LowRankPrecision:
        """The direction to the rule's target, see the module; ``hessian`` is ``(d, d)``."""
        self._bound()
        factor, diagonal = project_dense(-symmetric(hessian), self.factor, self.diagonal)
        factor = turned(factor, self.factor)
        return self._with(
            self._matrix.divide(gradient), factor - self.factor, diagonal - self.diagonal
        )

    # -- steps ------------------------------------------------------------------------

    def natural_step(
        self, direction: LowRankPrecision, step_size: Tensor | float
    ) -> LowRankPrecision:
        return self._moved(direction, step_size, 0.0)

    def mixed(self, rows: Tensor, diagonal: Tensor, step_size: Tensor | float) -> LowRankPrecision:
        """SLANG's step of the precision, ``(1 - rho) S + rho (rows^T rows + diag(diagonal))``.

        Projected to the leading ``rank`` directions of its low-rank part, by an eigenproblem of
        size ``rank + N``, and a diagonal with which ``diag(S)`` is exact. O(d (r + N)^2).

        :param rows: scaled gradients of single examples, shape ``(N, d)``.
        :param diagonal: of the rest of the curvature, such as a prior's, non-negative, ``(d,)``.
        :param step_size: ``rho``, in (0, 1].
        """
        self._bound()
        columns = torch.cat([(1.0 - step_size) ** 0.5 * self.factor, step_size**0.5 * rows.mT], 1)
        vectors = torch.linalg.eigh(columns.mT @ columns)[1][:, -self.rank :]
        factor = columns @ vectors
        rest = columns.square().sum(1) - factor.square().sum(1)
        rest = rest.clamp(min=0.0)  # of rounding
        mixture = (1.0 - step_size) * self.diagonal + step_size * diagonal
        return self._with(self.loc, factor, mixture + rest)

    def _trace_ratio(self, other: LowRankPrecision) -> Tensor:
        spread = (other.factor * self._matrix.divide(other.factor.mT).mT).sum()
        return (other.diagonal * self.variance).sum() + spread

    def retract(self, step: LowRankPrecision) -> LowRankPrecision:
        """``lambda + step``; where ``D`` would not stay positive it is corrected."""
        factor, diagonal = self._end(step, WHOLE, MIN_SHRINKAGE**2)
        return self._with(self.loc + step.loc, factor, diagonal)

    # -- helpers ----------------------------------------------------------------------

    def _with(self, loc: Tensor, factor: Tensor, diagonal: Tensor) -> LowRankPrecision:
        return dataclasses.replace(self, loc=loc, factor=factor, diagonal=diagonal)

    def _end(
        self, step: LowRankPrecision, step_size: Tensor | float, floor: float
    ) -> tuple[Tensor, Tensor]:
        ratio = step_size * step.diagonal / self._bound().diagonal
        growth = positive(ratio, ratio, floor)
        # An array of size d r is too large to be multiplied by one.
        factor = step.factor if step_size is WHOLE else step_size * step.factor
        return self.factor + factor, self.diagonal * growth

    def _moved(
        self, step: LowRankPrecision, step_size: Tensor | float, floor: float
    ) -> LowRankPrecision:
        new = self._with(self.loc, *self._end(step, step_size, floor))
        # The new precision moves the mean.
        shift = new._matrix.divide(self._matrix.times(step.loc))
        return self._with(self.loc + step_size * shift, new.factor, new.diagonal)

    def detach(self) -> LowRankPrecision:
        return self._detached

    @functools.cached_property
    def _matrix(self) -> LowRank:
        """The precision."""
        self._bound()
        return LowRank(self.factor, self.diagonal)

    @functools.cached_property
    def _detached(self) -> LowRankPrecision:
        # A step asks for it several times: with what it keeps of itself it costs one pass
        # through the factor, not one each time.
        return super().detach()


class _Displaced(torch.autograd.Function):
    """``noise``, whose derivative is :meth:`LowRankPrecision.displacement`.

    Not straight-through, as in :class:`Family`: that would compute the displacement of a zero,
    and give autograd every product in it, each with arrays of size ``d r``. At ``d = 10^6`` it
    takes three times as long.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        noise: Tensor, loc: Tensor, factor: Tensor, diagonal: Tensor, here: LowRankPrecision
    ) -> Tensor:
        return noise.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        noise, *_, ctx.here = inputs
        ctx.save_for_backward(noise)
        ctx.save_for_forward(noise)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        gradient = ctx.here._displacement_transpose(ctx.saved_tensors[0], slope)
        return slope, gradient.loc, gradient.factor, gradient.diagonal, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        noise, *coordinates = tangents[:4]
        values = ctx.here.coordinates().values()
        pairs = zip(coordinates, values, strict=True)
        change = [torch.zeros_like(value) if t is None else t for t, value in pairs]
        moved = ctx.here.displacement(ctx.here._with(*change), ctx.saved_tensors[0])
        return moved if noise is None else noise + moved
