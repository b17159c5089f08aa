"""Runs NumPyro's own tests with our guide wherever they use a dense or diagonal Gaussian.

See README.md for the command.
"""

from __future__ import annotations

import numpyro.infer.autoguide as autoguide
import optax
import pytest
from insertion import STOCK, Insertion, add_option
from numpyro.infer.initialization import init_to_uniform

from numpyro_ngvi import NaturalGaussianGuide, Snngm
from numpyro_ngvi.families import CovarianceCholesky, Family

THIS = "__import__('numpyro_plugin')."

#: Source text of a test and what stands in its place; every assertion stays as it is.
RESPELLINGS: dict[str, list[tuple[str, str]]] = {
    # Elementwise Adam on natural gradients, which these do not survive: our optimiser.
    "test_autoguide.py::test_uniform_normal": [("optim.Adam(0.01)", THIS + "Snngm(1e-2)")],
    **{
        f"test_autoguide.py::test_autoguidelist[{elbo}-auto_classes6]": [
            ("numpyro.optim.Adam(step_size=0.1)", THIS + "snngm_and(numpyro.optim.Adam(0.1))")
        ]
        for elbo in ("Trace_ELBO", "TraceMeanField_ELBO")
    },
    # The stock parameters auto_loc and auto_scale(_tril) by name; ours has them in one
    # typed parameter, auto_posterior.
    "test_autoguide.py::test_mvn_quantile": [
        ("guide.quantiles(params,", f"guide.quantiles({THIS}as_one(params),")
    ],
    "test_autoguide.py::test_param": [
        ("params = svi.get_params(svi_state)", f"params = {THIS}by_name(svi.get_params(svi_state))")
    ],
    "test_steinvi.py::test_init_auto_guide": [
        ("steinvi.get_params(state)", THIS + "by_name(steinvi.get_params(state))"),
        ("in inner_guide_tr.items()", f"in {THIS}sites_by_name(inner_guide_tr).items()"),
    ],
}


def snngm_and(other):
    """Snngm, with ``other`` for the ordinary parameters of an ``AutoGuideList``."""
    # A posterior 0.002 wide, from a start 0.1 wide: the steps have to become small.
    return Snngm(optax.cosine_decay_schedule(0.01, 500), other=other)


def as_one(params):
    """The stock dense guide's parameters as ours."""
    return {"auto_posterior": CovarianceCholesky(params["auto_loc"], params["auto_scale_tril"])}


def by_name(params):
    """Our parameters as the stock guides name them."""
    named = {}
    for name, value in params.items():
        if isinstance(value, Family):
            prefix = name.removesuffix("posterior")
            named |= {prefix + key: array for key, array in value.coordinates().items()}
        else:
            named[name] = value
    return named


def sites_by_name(trace):
    """The same for the sites of a trace."""
    named = {}
    for name, site in trace.items():
        values = by_name({name: site["value"]}) if site["type"] == "param" else {}
        named |= {key: {**site, "value": value} for key, value in values.items()}
    return named


insertion = Insertion(["AutoDiagonalNormal", "AutoMultivariateNormal"], RESPELLINGS)


class AutoDiagonalNormal(NaturalGaussianGuide):
    """Ours under the stock name, which the tests' ids are made of."""

    def __init__(self, model, **kwargs):
        insertion.built()
        kwargs.setdefault("init_loc_fn", init_to_uniform)  # the stock guides' default
        super().__init__(model, family="diagonal", **kwargs)


class AutoMultivariateNormal(NaturalGaussianGuide):
    """Ours under the stock name, which the tests' ids are made of."""

    def __init__(self, model, **kwargs):
        insertion.built()
        kwargs.setdefault("init_loc_fn", init_to_uniform)  # the stock guides' default
        super().__init__(model, family="covariance_cholesky", **kwargs)


if not STOCK:
    autoguide.AutoDiagonalNormal = AutoDiagonalNormal
    autoguide.AutoMultivariateNormal = AutoMultivariateNormal


def pytest_addoption(parser: pytest.Parser) -> None:
    add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(insertion, "ngvi-insertion")
