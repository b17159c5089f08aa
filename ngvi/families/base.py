"""Interface of every Gaussian family.

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
:meth:`~Family.bonnet_price`        the natural gradient of the bound, from ``E[grad l]``
                                    and the family's part of ``E[hess l]``
:meth:`~Family.natural_step`        the step of the Bayesian learning rule
==================================  ==========================================================

What estimators and rules do with a family are functions: :mod:`~ngvi.families.draws`,
:mod:`~ngvi.families.curvature`, :mod:`~ngvi.families.steps`, :mod:`~ngvi.families.direction`.

**A new family** writes ten methods: ``initial``, ``stddev``, ``sample``, ``whiten``,
``log_det_scale``, ``natural_gradient``, ``euclidean_gradient``, ``bonnet_price``, ``retract``, and
``natural_step`` or ``along``. What else it has follows from these, for a dense Gaussian at the cost
of a few O(d^3) products. A family writes itself what it can do cheaper, and one that is not dense
``hessian_probes``, ``assemble_hessian`` and ``outer_products``, what its bonnet_price needs of a
Hessian. ``docs/tutorials/from_the_papers.md`` has one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from ngvi.families.draws import draw_at
from ngvi.families.gaussian import Array as Array
from ngvi.families.gaussian import Gaussian, centred
from ngvi.families.path import Path, WhitenedPath


class Family(Gaussian):
    """Draws whose derivatives are natural gradients, and steps along natural gradients.

    The gradient of ``f(q.precondition())`` is ``F^-1`` times the gradient of ``f(q)``, because
    ``F`` is symmetric: this is why any stock ELBO yields natural gradients. A draw needs less: its
    noise alone gets the derivative, in whitened coordinates (:meth:`reparametrised`).
    """

    # -- draws ------------------------------------------------------------------------

    def precondition(self) -> Self:
        """Return this family, with ``F^-1`` as the derivative of the identity."""
        raise NotImplementedError

    def draw_jvp(self, change: Self, noise: Array) -> Array:
        """Return how far a draw moves, in whitened coordinates, along ``F^-1 change``.

        The derivative of ``theta = mu + C z`` in the direction ``F^-1 change``, times
        ``C^-1``. Linear in ``change``; its transpose takes the gradient of a draw to a
        natural gradient.

        :param noise: ``z``, shape ``(..., d)``.
        :return: shape ``(..., d)``.
        """
        return centred(self).whiten(self._derivative(lambda one: one.sample(noise), change))

    def log_det_jvp(self, change: Self) -> Array:
        """Return the derivative of :meth:`log_det_scale` in the direction ``F^-1 change``."""
        return self._derivative(type(self).log_det_scale, change)

    def _derivative(self, function: Callable[[Self], Array], change: Self) -> Array:
        """Differentiate a function of the family in the direction ``F^-1 change``."""
        raise NotImplementedError

    def reparametrised(self, noise: Array) -> Array:
        """Return ``noise``, whose derivative is :meth:`draw_jvp`."""
        raise NotImplementedError

    def draw(self, noise: Array) -> Array:
        """:meth:`sample`, differentiated through :meth:`precondition`."""
        return draw_at(self, self.reparametrised(noise))

    def draw_log_prob(self, noise: Array) -> Array:
        """Return ``log q(draw(noise))``, differentiated through :meth:`precondition`.

        Along a draw ``log q = log N(z; 0, I) - log |Sigma| / 2``, so that only the entropy
        has a gradient, which is known exactly: no triangular solve is needed.
        """
        raise NotImplementedError

    # -- the natural gradient of the bound ----------------------------------------------

    def entropy(self) -> Array:
        """Entropy in nats, a scalar."""
        return 0.5 * self.dim * (1.0 + math.log(2.0 * math.pi)) + self.log_det_scale()

    def hessian_probes(self) -> np.ndarray:
        """Return which Hessian-vector products the family needs.

        Probe ``c`` is the sum of the unit vectors of the coordinates numbered ``c``: as many
        products as there are numbers determine the family's part of a Hessian.

        :return: integers from 0 to ``m - 1``, shape ``(d,)``.
        """
        return np.arange(self.dim)

    def assemble_hessian(self, products: Array) -> Any:
        """Return the family's part of a Hessian ``H``, a linear function of the products.

        :param products: row ``c`` is ``H`` times probe ``c``; shape ``(m, d)``.
        :return: a tensor, or a nested tuple of them, such as ``H`` itself for a dense family and
            its diagonal for ``Diagonal``.
        """
        return 0.5 * (products + products.mT)

    def outer_products(self, left: Array, right: Array) -> Any:
        """Return the family's part of ``sum_i (l_i r_i^T + r_i l_i^T) / 2``.

        :param left: rows ``l_i``, shape ``(N, d)``.
        :param right: rows ``r_i``, shape ``(N, d)``.
        :return: as :meth:`assemble_hessian`.
        """
        return self.assemble_hessian(left.mT @ right)

    def bonnet_price(self, gradient: Array, hessian: Any) -> Self:
        """Return the natural gradient of the bound, by Bonnet and Price.

        ``dL/dmu = E[grad l]`` and ``dL/dSigma = (E[hess l] + Sigma^-1) / 2``.

        :param gradient: ``E[grad l]``, shape ``(d,)``.
        :param hessian: ``E[hess l]``, as :meth:`assemble_hessian` returns it.
        """
        raise NotImplementedError

    def scores(self, noise: Array) -> Array:
        """Return ``S (theta - mu) = C^-T z`` of draws, minus the gradients of ``log q``.

        :param noise: ``z``, shape ``(N, d)``.
        :return: shape ``(N, d)``.
        """
        raise NotImplementedError

    # -- steps ------------------------------------------------------------------------

    def natural_step(self, direction: Self, step_size: Array | float) -> Self:
        """Take a step of the Bayesian learning rule along a natural gradient of the bound.

        With ``g = E[grad l]`` and ``A = -E[hess l]``, both of which the natural gradient
        determines (Khan, eq. 29 and 30; Tan, Table 1)::

            S_new = (1 - rho) S + rho A,        mu_new = mu + rho S_new^-1 g

        so that ``rho = 1`` is exact for a conjugate model, and Newton's method if ``g`` and
        ``A`` are taken at the mean. The result is a Gaussian for any symmetric ``A``, even if
        ``S_new`` would be indefinite: see :mod:`ngvi.linalg.definite`.

        :param direction: ``F^-1 dL/dlambda``, as ``bonnet_price`` gives it.
        :param step_size: ``rho``, in (0, 1].
        """
        path = self.along(direction)
        return path.end(path.at(step_size))

    def along(self, direction: Self, of_mean: Array | float = 1.0) -> Path | WhitenedPath:
        """Return the steps of :meth:`natural_step`, of every size (:mod:`~ngvi.families.path`).

        :param of_mean: how many times as far the mean moves as the direction says.
        """
        changed: Any = direction
        direction = dataclasses.replace(changed, loc=of_mean * changed.loc)
        return Path(self, lambda step_size: self.natural_step(direction, step_size))

    def kl_divergence(self, other: Self) -> Array:
        """``KL(self || other)`` in nats, a scalar; rounding never takes it below zero.

        :param other: a Gaussian of the same family and dimension.
        """
        size = 0.5 * (self._trace_ratio(other) - self.dim)
        shift = (other.whiten(self.loc) ** 2).sum()
        divergence = size + 0.5 * shift - self.log_det_scale() + other.log_det_scale()
        return self.ops.at_least(divergence, 0.0)

    def _trace_ratio(self, other: Self) -> Array:
        """``tr(S' Sigma)``, with the other's precision."""
        columns = centred(self).sample(self.ops.eye(self.dim, self.loc))
        return (centred(other).whiten(columns) ** 2).sum()
