"""What every Gaussian family offers.

A family is an immutable set of coordinates of ``q = N(mu, Sigma)``. Without tensors
(``CovarianceCholesky()``) it is a specification; :meth:`Family.initial` gives it tensors.
Families know nothing of the PPL: they are usable with plain PyTorch or JAX. What needs no tensor
library is here and in :mod:`ngvi.families`; the packages' ``families`` add the derivatives.

A *gradient* of a function of ``q`` has the same type as ``q``: one tensor per coordinate.
Writing ``F`` for the Fisher information of ``q`` in its coordinates, each family has

==================================  ==========================================================
:meth:`~Family.natural_gradient`    ``F^-1 g``, analytically (Tan, Theorem 1)
:meth:`~Family.euclidean_gradient`  ``F n``, its inverse
:meth:`~Family.precondition`        the identity, whose derivative is ``F^-1``
:meth:`~Family.draw`                a draw, differentiated through ``precondition``
:meth:`~Family.retract`             the coordinates after a step, still a Gaussian
==================================  ==========================================================

Second order, from ``E[grad l]`` and the family's part of ``E[hess l]`` (dense, diagonal, by
blocks), they have :meth:`~Family.bonnet_price`, the natural gradient of the bound, and
:meth:`~Family.natural_step`, the step of the Bayesian learning rule.

``precondition`` is why any stock ELBO yields natural gradients: the gradient of
``f(q.precondition())`` is ``F^-1`` times the gradient of ``f(q)``, because ``F`` is symmetric.

**A new family** writes ``initial``, ``num_parameters``, ``stddev``, ``sample``, ``whiten``,
``log_det_scale``, ``natural_gradient``, ``euclidean_gradient``, ``bonnet_price``, ``retract``, and
``natural_step`` or ``along``. What else it has follows from these, for a dense Gaussian at the cost
of a few O(d^3) products; a family writes itself what it can do cheaper, and one that is not dense
``hessian_probes``, ``assemble_hessian`` and ``outer_products``, what its bonnet_price needs of a
Hessian. ``tests/families/test_contract.py`` has one in thirty lines.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from ngvi.families.path import Path, WhitenedPath
from ngvi.latents.forest import Forest, check_dense
from ngvi.latents.layout import Layout
from ngvi.linalg.definite import Definite

#: A tensor of whichever library.
Array = Any


class Family:
    """A Gaussian in some coordinates. See the module for the contract."""

    #: The string by which ``NaturalGaussianGuide(family=...)`` knows the family.
    name: ClassVar[str]
    #: A learning rate for the scale relative to that of the mean that keeps plain
    #: natural-gradient descent stable (Tan, section 6, on Nagm).
    relative_scale_step: ClassVar[float]
    #: Whether the precision leaves out correlations that the log density may have.
    leaves_out_correlations: ClassVar[bool] = False
    #: Whether an attempt at a step (:class:`~ngvi.families.path.Path`) takes as long as most of the
    #: step.
    attempts_are_dear: ClassVar[bool] = False
    #: Whether its part of a Hessian is the diagonal.
    reads_diagonal: ClassVar[bool] = False
    #: Whether it takes gradients of single examples as they are: see ``price_of_rows`` of
    #: :class:`~ngvi.families.low_rank_precision.LowRankPrecision`.
    keeps_rows: ClassVar[bool] = False
    #: Whether single latents, or blocks of them, have coordinates of their own.
    has_parts: ClassVar[bool] = False
    #: Whether elements of a plate that a minibatch visits can move alone, if the blocks allow it.
    moves_elements: ClassVar[bool] = True

    ops: ClassVar[Definite]  #: what a package does with matrices
    xp: ClassVar[Any]  #: torch or ``jax.numpy``, for functions that both spell alike

    loc: Any  #: the mean, shape ``(d,)``; None in a specification

    # -- construction -----------------------------------------------------------------

    def for_layout(self, layout: Layout) -> Family:
        """The specification for a model whose latent vector has this layout.

        Structured families find their blocks here; the others are what they are.

        :raises ValueError: if the family does not fit the model.
        """
        return self

    def initial(self, loc: Array, scale: float | Array) -> Self:
        """``N(loc, diag(scale^2))`` in this family.

        :param loc: mean, shape ``(d,)``; its dtype and device are the family's.
        :param scale: standard deviation of every element, or of each; positive.
        """
        raise NotImplementedError

    def _bound(self) -> Self:
        if self.loc is None:
            raise ValueError(
                f"{type(self).__name__}() has no coordinates yet: it is only a "
                "specification. Call .initial(loc, scale), or pass it as family= to "
                "NaturalGaussianGuide."
            )
        return self

    # -- shape ------------------------------------------------------------------------

    @property
    def dim(self) -> int:
        """The dimension ``d`` of the Gaussian."""
        return self._bound().loc.shape[-1]

    @property
    def num_parameters(self) -> int:
        """The number of free coordinates, ``len(lambda)`` in Tan's Table 5."""
        raise NotImplementedError

    def coordinates(self) -> dict[str, Any]:
        """The coordinate tensors by name."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)  # type: ignore[arg-type]  # its subclasses are
            if not field.metadata.get("static")
        }

    def map(self, function: Callable[..., Array], *others: Self) -> Self:
        """``function`` of each coordinate, and of the same coordinate of ``others``."""
        raise NotImplementedError

    def free_coordinates(self) -> list[Any]:
        """Tensors that hold every free coordinate once, and nothing else but zeros.

        For the Euclidean norm of a direction over ``lambda`` (Tan's Table 5): of a symmetric
        matrix it counts each off-diagonal element once.
        """
        return list(self._bound().coordinates().values())

    def couples(self) -> str | Forest:
        """Which latents the precision couples: ``"all"``, ``"none"``, ``"low_rank"`` or blocks."""
        return "all"

    def describe(self) -> str:
        """The structure in words."""
        return "one dense block"

    # -- moments ----------------------------------------------------------------------

    @property
    def mean(self) -> Array:
        """Mean, shape ``(d,)``."""
        return self._bound().loc

    @property
    def stddev(self) -> Array:
        """Marginal standard deviations, shape ``(d,)``."""
        raise NotImplementedError

    @property
    def variance(self) -> Array:
        """Marginal variances, shape ``(d,)``."""
        return self.stddev**2

    @property
    def covariance_matrix(self) -> Array:
        """Dense covariance, shape ``(d, d)``.

        :raises ValueError: if it would not fit.
        """
        centred = self.centred()
        check_dense(self)
        columns = centred.sample(self._identity())
        return columns.mT @ columns

    @property
    def precision_matrix(self) -> Array:
        """Dense inverse covariance, shape ``(d, d)``.

        :raises ValueError: if it would not fit.
        """
        centred = self.centred()
        check_dense(self)
        columns = centred.whiten(self._identity())
        return columns @ columns.mT

    def centred(self) -> Self:
        """``N(0, Sigma)``."""
        return dataclasses.replace(self, loc=self.xp.zeros_like(self._bound().loc))  # type: ignore[type-var]

    def _identity(self) -> Array:
        """The identity of the dtype and device of the mean, shape ``(d, d)``."""
        return self.ops.eye(self.dim, self.loc)

    def detach(self) -> Self:
        """The same Gaussian, through which no gradient flows."""
        raise NotImplementedError

    # -- density ----------------------------------------------------------------------

    def log_det_scale(self) -> Array:
        """``log |Sigma| / 2``, a scalar."""
        raise NotImplementedError

    def whiten(self, value: Array) -> Array:
        """``z`` of :meth:`sample` for ``theta = value``; shape ``(..., d)``."""
        raise NotImplementedError

    def whiten_change(self, change: Array) -> Array:
        """``C^-1 x`` for a change ``x`` of ``theta``; shape ``(..., d)``."""
        return self.centred().whiten(change)

    def sample(self, noise: Array) -> Array:
        """``theta = mu + C z`` for standard normal ``z``.

        :param noise: ``z``, shape ``(..., d)``.
        :return: ``theta``, shape ``(..., d)``.
        """
        raise NotImplementedError

    def log_prob(self, value: Array) -> Array:
        """``log q(value)`` in nats; ``value`` has shape ``(..., d)``, the result ``(...)``."""
        return self.noise_log_prob(self.whiten(value)) - self.log_det_scale()

    def noise_log_prob(self, noise: Array) -> Array:
        """Log density of ``N(0, I)`` in nats; ``(..., d)`` to ``(...)``."""
        normaliser = 0.5 * noise.shape[-1] * math.log(2.0 * math.pi)
        return -0.5 * self.ops.row_products(noise, noise) - normaliser

    def entropy(self) -> Array:
        """Entropy in nats, a scalar."""
        return 0.5 * self.dim * (1.0 + math.log(2.0 * math.pi)) + self.log_det_scale()

    # -- natural gradients ------------------------------------------------------------

    def natural_gradient(self, gradient: Self) -> Self:
        """``F^-1 g``. Its inverse is :meth:`euclidean_gradient`."""
        raise NotImplementedError

    def covariance_times(self, vector: Array) -> Array:
        """``Sigma x``, the natural gradient of the mean; shape ``(d,)``."""
        still: Any = self.map(self.xp.zeros_like)
        return self.natural_gradient(dataclasses.replace(still, loc=vector)).loc

    def euclidean_gradient(self, natural_gradient: Self) -> Self:
        """``F n``, the gradient whose natural gradient is ``n``."""
        raise NotImplementedError

    def gradient_of_mean(self, natural_gradient: Self) -> Array:
        """The mean's part of :meth:`euclidean_gradient`, shape ``(d,)``."""
        return self.euclidean_gradient(natural_gradient).loc

    def mean_products(self, natural_gradient: Self, change: Array) -> tuple[Array, Array]:
        """Products of :meth:`gradient_of_mean` with a change of the mean, and with its own.

        :param change: shape ``(d,)``.
        :return: two scalars, the second of which is the square of the mean's step in standard
            deviations.
        """
        gradient = self.gradient_of_mean(natural_gradient)
        return (gradient * change).sum(), (gradient * natural_gradient.loc).sum()

    def precondition(self) -> Self:
        """This family, with ``F^-1`` as the derivative of the identity."""
        raise NotImplementedError

    def displacement(self, change: Self, noise: Array) -> Array:
        """How far a draw moves, in whitened coordinates, along ``F^-1 change``.

        The derivative of ``theta = mu + C z`` in the direction ``F^-1 change``, times
        ``C^-1``. Linear in ``change``; its transpose takes the gradient of a draw to a
        natural gradient.

        :param noise: ``z``, shape ``(..., d)``.
        :return: shape ``(..., d)``.
        """
        moved = self._derivative(lambda family: family.sample(noise), change)
        return self.whiten_change(moved)

    def log_det_displacement(self, change: Self) -> Array:
        """The derivative of :meth:`log_det_scale` in the direction ``F^-1 change``."""
        return self._derivative(type(self).log_det_scale, change)

    def _derivative(self, function: Callable[[Self], Array], change: Self) -> Array:
        """Of a function of the family, in the direction ``F^-1 change``."""
        raise NotImplementedError

    def displaced(self, noise: Array) -> Array:
        """``noise``, whose derivative is :meth:`displacement`."""
        raise NotImplementedError

    def draw(self, noise: Array) -> Array:
        """:meth:`sample`, differentiated through :meth:`precondition`."""
        return self.draw_at(self.displaced(noise))

    def draw_at(self, displaced: Array) -> Array:
        """:meth:`draw` from :meth:`displaced` noise."""
        return self.detach().sample(displaced)

    def draw_log_prob(self, noise: Array) -> Array:
        """``log q(draw(noise))``, differentiated through :meth:`precondition`.

        Along a draw ``log q = log N(z; 0, I) - log |Sigma| / 2``, so that only the entropy
        has a gradient, which is known exactly: no triangular solve is needed.
        """
        raise NotImplementedError

    def sticking_log_prob(self, displaced: Array) -> Array:
        """:meth:`draw_log_prob` differentiated through the draw alone.

        The coordinates of ``q`` itself are held fixed. In whitened coordinates that is the
        density of the displaced noise, again without a triangular solve.
        """
        return self.noise_log_prob(displaced) - self.detach().log_det_scale()

    # -- curvature --------------------------------------------------------------------

    def hessian_probes(self) -> np.ndarray:
        """Which Hessian-vector products the family needs.

        Probe ``c`` is the sum of the unit vectors of the coordinates numbered ``c``: as many
        products as there are numbers determine the family's part of a Hessian.

        :return: integers from 0 to ``m - 1``, shape ``(d,)``.
        """
        return np.arange(self.dim)

    def assemble_hessian(self, products: Array) -> Any:
        """The family's part of a Hessian ``H``, a linear function of the products.

        :param products: row ``c`` is ``H`` times probe ``c``; shape ``(m, d)``.
        :return: a tensor, or a nested tuple of them, such as ``H`` itself for a dense family and
            its diagonal for ``Diagonal``.
        """
        return 0.5 * (products + products.mT)

    def outer_products(self, left: Array, right: Array) -> Any:
        """The family's part of ``sum_i (l_i r_i^T + r_i l_i^T) / 2``.

        :param left: rows ``l_i``, shape ``(N, d)``.
        :param right: rows ``r_i``, shape ``(N, d)``.
        :return: as :meth:`assemble_hessian`.
        """
        return self.assemble_hessian(left.mT @ right)

    def bonnet_price(self, gradient: Array, hessian: Any) -> Self:
        """The natural gradient of the bound ``E_q[l] + H(q)``, by Bonnet and Price.

        ``dL/dmu = E[grad l]`` and ``dL/dSigma = (E[hess l] + Sigma^-1) / 2``.

        :param gradient: ``E[grad l]``, shape ``(d,)``.
        :param hessian: ``E[hess l]``, as :meth:`assemble_hessian` returns it.
        """
        raise NotImplementedError

    def scores(self, noise: Array) -> Array:
        """``S (theta - mu) = C^-T z`` of draws, minus the gradients of ``log q``.

        :param noise: ``z``, shape ``(N, d)``.
        :return: shape ``(N, d)``.
        """
        raise NotImplementedError

    def price_of_points(self, gradients: Array, noise: Array) -> Self:
        """The natural gradient of the bound from gradients at points with weights.

        By Stein's lemma ``E[hess l] = E[grad l (S (theta - mu))^T]``.

        :param gradients: of the log density, each times its point's weight, shape ``(N, d)``.
        :param noise: ``z`` of the points, shape ``(N, d)``.
        """
        hessian = self.outer_products(gradients, self.scores(noise))
        return self.bonnet_price(gradients.sum(0), hessian)

    # -- steps ------------------------------------------------------------------------

    def natural_step(self, direction: Self, step_size: Array | float) -> Self:
        """A step of the Bayesian learning rule along a natural gradient of the bound.

        With ``g = E[grad l]`` and ``A = -E[hess l]``, both of which the natural gradient
        determines (Khan, eq. 29 and 30; Tan, Table 1)::

            S_new = (1 - rho) S + rho A,        mu_new = mu + rho S_new^-1 g

        so that ``rho = 1`` is exact for a conjugate model, and Newton's method if ``g`` and
        ``A`` are taken at the mean. Where ``A`` leaves ``S_new`` indefinite, see
        :mod:`ngvi.linalg.definite`: the result is a Gaussian for any symmetric ``A``.

        :param direction: ``F^-1 dL/dlambda``, as :meth:`bonnet_price` gives it.
        :param step_size: ``rho``, in (0, 1].
        """
        path = self.along(direction)
        return path.end(path.at(step_size))

    def moved_latents(self, direction: Self) -> Array:
        """1 for the latents whose own coordinates a direction changes, else 0; shape ``(d,)``.

        Of families that :attr:`has_parts`, as is :meth:`weighted`.
        """
        raise NotImplementedError

    def weighted(self, direction: Self, of_mean: Array, of_scale: Array) -> Self:
        """A direction, with each latent's own part times a weight.

        What latents above it, on which its mean depends, make of its mean is no part of that.

        :param of_mean: shape ``(d,)``, equal within each block.
        :param of_scale: the same, of all coordinates but the mean.
        """
        raise NotImplementedError

    def corrected(self, direction: Self, step_size: Array | float) -> Self:
        """The direction whose step multiplies precisions by ``1 + t + t^2 / 2``, not by ``1 + t``.

        The correction of Lin, Schmidt and Khan (2020), of a mean field; most others correct their
        steps (:meth:`ngvi.families.path.WhitenedPath.calmed`).
        """
        return direction

    def along(self, direction: Self, of_mean: Array | float = 1.0) -> Path | WhitenedPath:
        """The steps of :meth:`natural_step`, of every size (:mod:`~ngvi.families.path`).

        :param of_mean: how many times as far the mean moves as the direction says.
        """
        changed: Any = direction
        direction = dataclasses.replace(changed, loc=of_mean * changed.loc)
        return Path(self, lambda step_size: self.natural_step(direction, step_size))

    def kl_divergence(self, other: Self) -> Array:
        """``KL(self || other)`` in nats, a scalar.

        :param other: a Gaussian of the same family and dimension.
        """
        size = 0.5 * (self._trace_ratio(other) - self.dim)
        shift = (other.whiten(self.loc) ** 2).sum()
        return size + 0.5 * shift - self.log_det_scale() + other.log_det_scale()

    def _trace_ratio(self, other: Self) -> Array:
        """``tr(S' Sigma)``, with the other's precision."""
        columns = other.centred().whiten(self.centred().sample(self._identity()))
        return (columns**2).sum()

    def inner(self, left: Self, right: Self) -> Array:
        """``left^T F right``, the Fisher inner product of two directions, in nats."""
        gradient = self.euclidean_gradient(left)
        pairs = zip(gradient.coordinates().values(), right.coordinates().values(), strict=True)
        return sum((a * b).sum() for a, b in pairs)

    def fisher_products(self, directions: Sequence[Self], others: Sequence[Self] = ()) -> Any:
        """Fisher inner products of ``k`` directions with each other and with ``n`` others.

        :return: of their means and of all their other coordinates, which are orthogonal; both
            ``k`` rows of ``k + n`` numbers, in nats.
        """
        raise NotImplementedError

    def retract(self, step: Self) -> Self:
        """The family at ``lambda + step``, kept off the border of its domain.

        A standard deviation (or the diagonal of a Cholesky factor) may cross zero: the sign
        of a column changes nothing about ``Sigma``. It may not land there, and keeps one
        hundredth of its size with the sign of the step's end.
        """
        raise NotImplementedError
