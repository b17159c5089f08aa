"""Laplace's formula for locals by their modes: the middle of ``ReparametrizedGaussianGuide``.

Where the model is Gaussian, the formula, the bound at every draw and the marginal likelihood are
one; of Poisson counts the formula is compared with Newton's method in numpy.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.guide.test_reparametrized import (
    LATENT,
    _density,
    _site,
)
from tests.ppl import SLOW_IN_NUMPYRO

VALUES = np.array([[1.0, 2.5, 1.5], [3.0, 2.0, 4.5], [-2.0, -1.0, 0.5], [0.5, 0.0, -1.5]])
NAMES = "mean", "log spread", "log noise"
#: ``mean``, and the logarithms of ``spread`` and ``noise``.
POINT = np.array([0.4, 0.3, -0.2])


def _gaussian(ppl):
    """Group effects, whose mean, spread and noise are parameters of the model's own."""

    def gaussian(values):
        mean = ppl.param("mean", ppl.array(POINT[0]))
        spread, noise = (
            ppl.np.exp(ppl.param(name, ppl.array(value)))
            for name, value in zip(NAMES[1:], POINT[1:], strict=True)
        )
        with ppl.plate("groups", values.shape[-1]):
            effect = ppl.sample("effect", ppl.dist.Normal(mean, spread))
            with ppl.plate("rows", len(values)):
                ppl.sample("y", ppl.dist.Normal(effect, noise), obs=values)

    return gaussian


def _marginal(point):
    """The log marginal likelihood of ``VALUES``, groups in rows."""
    mean, spread, noise = point[0], *np.exp(point[1:])
    covariance = spread**2 * np.ones((3, 3)) + noise**2 * np.eye(3)
    gap = VALUES - mean
    log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
    return -0.5 * (np.sum(gap * np.linalg.solve(covariance, gap.T).T) + 4 * log_det)


def _best():
    """Its maximum in closed form."""
    means, within = VALUES.mean(1), VALUES.var(1, ddof=1).mean()
    spread = means.var() - within / 3  # of the balanced design, where it is positive
    return np.array([means.mean(), 0.5 * math.log(spread), 0.5 * math.log(within)])


def _formula(ppl, guide, point):
    """Its value and gradient in the model's own parameters."""
    if ppl.is_numpyro:
        import jax

        def formula(point):
            return guide.laplace(dict(zip(NAMES, point, strict=True)))

        value, gradient = ppl.compiled(jax.value_and_grad(formula))(ppl.array(point))
        return float(value), np.asarray(gradient)
    import torch

    params = [ppl.param(name) for name in NAMES]
    with torch.no_grad():
        for param, value in zip(params, point, strict=True):
            param.fill_(value)
    value = guide.laplace()
    return value.item(), np.array([g.item() for g in torch.autograd.grad(value, params)])


@pytest.mark.fast_in_numpyro
def test_of_a_gaussian_model_it_is_the_marginal_likelihood_and_so_is_the_bound_at_any_draw(ppl):
    guide = ppl.package.ReparametrizedGaussianGuide(_gaussian(ppl), family="diagonal")
    data = (ppl.array(VALUES.T),)
    ppl.set_up(guide, *data)
    at_start = _density(ppl, guide, data, {_site(ppl, guide): ppl.array(LATENT[:4])})
    weight = at_start + 0.5 * (LATENT[:4] @ LATENT[:4] + 4 * math.log(2 * math.pi))
    assert weight == pytest.approx(_marginal(POINT), abs=1e-10)
    elsewhere = np.array([-0.3, 0.9, 0.5])
    value, gradient = _formula(ppl, guide, elsewhere)
    assert value == pytest.approx(_marginal(elsewhere), abs=1e-10)
    steps = 1e-5 * np.eye(3)
    differences = [(_marginal(elsewhere + e) - _marginal(elsewhere - e)) / 2e-5 for e in steps]
    np.testing.assert_allclose(gradient, differences, atol=1e-7)


@SLOW_IN_NUMPYRO
def test_fit_of_a_gaussian_models_own_parameters_is_by_maximum_likelihood(ppl):
    model = _gaussian(ppl)
    guide = ppl.package.ReparametrizedGaussianGuide(model)
    options = {"tolerance": 1e-4, "effort": "quick"}
    result = ppl.fit(model, ppl.array(VALUES.T), guide=guide, **options)
    assert result.converged
    found = np.array([ppl.numpy(result.params[name]) for name in NAMES])
    np.testing.assert_allclose(found, _best(), atol=0.01)
    assert result.bound == pytest.approx(_marginal(_best()), abs=2e-4)
