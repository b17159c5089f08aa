"""What estimators ask of a family: its part of a Hessian, and natural gradients of the bound."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np

from ngvi.families.gaussian import Array, Gaussian


class ForEstimators(Gaussian):
    """The natural gradient of the bound ``E_q[l] + H(q)``, from what is known of ``l``.

    A family that is not dense writes :meth:`hessian_probes`, :meth:`assemble_hessian` and
    :meth:`outer_products`. One that :meth:`keeps_rows` writes ``natural_gradient_from_rows``.
    """

    def entropy(self) -> Array:
        """Entropy in nats, a scalar."""
        return 0.5 * self.dim * (1.0 + math.log(2.0 * math.pi)) + self.log_det_scale()

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

    def reads_diagonal(self) -> bool:
        """Whether its part of a Hessian is the diagonal."""
        return self.couples() == "none"

    def keeps_rows(self) -> bool:
        """Whether it takes gradients of single examples as they are, not their outer products."""
        return False

    def bonnet_price(self, gradient: Array, hessian: Any) -> Self:
        """The natural gradient of the bound, by Bonnet and Price.

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

    def natural_gradient_from_points(self, gradients: Array, noise: Array) -> Self:
        """The natural gradient of the bound from gradients at points with weights.

        By Stein's lemma ``E[hess l] = E[grad l (S (theta - mu))^T]``.

        :param gradients: of the log density, each times its point's weight, shape ``(N, d)``.
        :param noise: ``z`` of the points, shape ``(N, d)``.
        """
        hessian = self.outer_products(gradients, self.scores(noise))
        return self.bonnet_price(gradients.sum(0), hessian)

    def slopes(self, value: Array) -> Array:
        """``grad log q`` at some vectors, shape ``(N, d)``."""
        return -self.scores(self.whiten(value))

    def direction_of_expectation(self, gradients: Array, noise: Array) -> Self:
        """The natural gradient of ``E_q[h]``, from gradients of ``h`` at points with weights.

        :param gradients: each times its point's weight, shape ``(N, d)``.
        :param noise: ``z`` of the points, shape ``(N, d)``.
        """
        of_bound = self.natural_gradient_from_points(gradients, noise)
        of_entropy = self.natural_gradient_from_points(0.0 * gradients, noise)
        return of_bound.map(lambda one, other: one - other, of_entropy)
