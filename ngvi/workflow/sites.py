"""Natural gradients of single observations' expected log likelihoods: *sites*.

At an optimum of the bound ``E_q[log p(y, theta)] + H(q)`` the precision of ``q`` is
``-E_q[hess log p]``, and ``E_q[grad log p]`` is zero (Khan and Rue, 2023, equations 15 to 17). Both
are sums over observations and the prior. The natural coordinates of a Gaussian are ``Sigma^-1 mu``
and ``Sigma^-1`` (times minus one half). The site of a term ``l`` adds
``E_q[grad l] - E_q[hess l] mu`` to the first and ``-E_q[hess l]`` to the second.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from ngvi.workflow.expected import ElementSites, Expected, PredictorSites
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.target import Target
from ngvi.workflow.units import Units


@dataclasses.dataclass(frozen=True, eq=False)
class Sites:
    """Contributions of each row, and of the prior, to the posterior's natural parameters.

    These are ``Sigma^-1 mu`` and ``Sigma^-1``, of the unconstrained latent vector. Of a family that
    is not dense only its part of a precision counts.

    :ivar units: which observations are a row.
    :ivar gradient: ``E[grad l]`` of each row, shape ``(R, d)``.
    :ivar prior: of all of the log density that is no row.
    """

    units: Units
    gradient: np.ndarray
    prior: Expected
    _q: DenseGaussian
    _elements: ElementSites
    _weights: np.ndarray

    @classmethod
    def of(cls, target: Target, q: DenseGaussian, units: Units) -> Sites:
        """Compute the sites of a target under a Gaussian."""
        elements = target.sites(q)
        by_element = target.weights[:, None] * elements.gradients()
        gradient = units.sums(by_element.T).T
        return cls(units, gradient, target.prior.under(q), q, elements, target.weights)

    def __len__(self) -> int:
        return self.units.count

    def __repr__(self) -> str:
        names = " and ".join(f"{size} of plate '{name}'" for name, size in self.units.plates)
        return f"Sites({names}, {self._q.dim} latents)"

    @property
    def predictors(self) -> PredictorSites | None:
        """Sites by the one or two affine functions that each observation sees, or None.

        ``means`` (shape ``(P, M)``), ``gradient`` and ``curvature`` (``(P, P, M)``) are of the
        predictors ``predictors.slopes @ theta + predictors.offset``.
        """
        return self._elements if isinstance(self._elements, PredictorSites) else None

    def precision(self, row: int) -> np.ndarray:
        """Return ``-E[hess l]`` of one row, what it adds to the precision, shape ``(d, d)``."""
        weights = np.where(self.units.of_element == row, self._weights, 0.0)
        return self._q.within(self._elements.total(weights).curvature)

    def shift(self, row: int) -> np.ndarray:
        """Return what one row adds to ``Sigma^-1 mu``, shape ``(d,)``."""
        return self.gradient[row] + self.precision(row) @ self._q.mean

    def total(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the sums over rows and prior: ``Sigma^-1 mu`` and ``Sigma^-1`` at an optimum."""
        of_rows = self._elements.total(self._weights)
        precision = self._q.within(self.prior.curvature + of_rows.curvature)
        gradient = self.prior.gradient + of_rows.gradient
        return gradient + precision @ self._q.mean, precision
