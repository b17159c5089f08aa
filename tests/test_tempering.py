"""Posteriors of another temperature than one."""

from __future__ import annotations

import math

import numpy as np
import pytest

TEMPERATURE = 0.25


def regression(ppl, x, y, count=1.0):
    """A conjugate model of all rows or of a minibatch.

    :param count: how many times each observation counts.
    """

    def model(x, y):
        w = ppl.sample("w", ppl.dist.Normal(ppl.array(0.0), 1.0).expand([x.shape[1]]).to_event(1))
        with ppl.plate("rows", 12, subsample_size=len(y)), ppl.handlers.scale(scale=count):
            ppl.sample("y", ppl.dist.Normal(x @ w, 1.0), obs=y)

    return model, (ppl.array(x), ppl.array(y))


@pytest.fixture
def rows(rng):
    x = rng.normal(size=(12, 3))
    return x, x @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=12)


def losses_of(ppl, model, args, loss=None):
    if not ppl.is_numpyro:
        ppl.lib.clear_param_store()
    return ppl.svi(model, "diagonal", loss=loss, args=args, seed=3).run(3)


@pytest.mark.fast_in_numpyro("4")
@pytest.mark.parametrize("size", [12, 4])
def test_the_likelihood_counts_more_often_and_the_prior_does_not(ppl, rows, size):
    """One step of a conjugate model is exact: that posterior's precision is I + X^T X / T."""
    x, y = rows[0][:size], rows[1][:size]
    model, args = regression(ppl, x, y)
    whole = ppl.optimiser(step_size=1.0)
    svi = ppl.svi(ppl.package.tempered(model, TEMPERATURE), "full", whole, args=args)
    svi.step()
    factor = 12 / size / TEMPERATURE
    precision = np.eye(3) + factor * x.T @ x
    loc, covariance = svi.gaussian
    expected = np.linalg.inv(precision)
    np.testing.assert_allclose(covariance, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(loc, expected @ (factor * x.T @ y), rtol=1e-9)


@pytest.mark.fast_in_numpyro("stein")
@pytest.mark.parametrize("curvature", ["hessian", "gauss_newton", "stein"])
def test_every_estimator_takes_it_as_a_handler_that_scales(ppl, rows, curvature):
    model, args = regression(ppl, *rows)
    other, _ = regression(ppl, *rows, count=1 / TEMPERATURE)
    losses = []
    for one in (ppl.package.tempered(model, TEMPERATURE), other):
        loss = ppl.elbo("NaturalELBO", num_particles=2, curvature=curvature)
        losses.append(losses_of(ppl, one, args, loss))
    np.testing.assert_allclose(*losses, rtol=1e-10)


def test_fit_gives_the_tempered_evidence(ppl, rows):
    x, y = rows
    model, args = regression(ppl, x, y)
    result = ppl.fit(ppl.package.tempered(model, TEMPERATURE), *args)
    # Of N(y | X w, 1)^(1 / T) the normaliser is that of N(y | X w, T I), and a constant.
    covariance = x @ x.T + TEMPERATURE * np.eye(12)
    _, log_det = np.linalg.slogdet(2 * math.pi * covariance)
    evidence = -0.5 * (log_det + y @ np.linalg.solve(covariance, y))
    constant = 6 * math.log(2 * math.pi * TEMPERATURE) - 6 * math.log(2 * math.pi) / TEMPERATURE
    assert result.bound == pytest.approx(evidence + constant, abs=1e-6)


@pytest.mark.fast_in_numpyro
def test_a_temperature_of_one_is_the_model(ppl, rows):
    model, args = regression(ppl, *rows)
    losses = [losses_of(ppl, one, args) for one in (ppl.package.tempered(model, 1.0), model)]
    np.testing.assert_array_equal(*losses)
