"""Sticking the landing: the same expectation, and no noise where ``q`` is exact.

The model is conjugate, so that ``grad log p`` is linear in ``theta`` and the gradient of one
draw a quadratic in its noise: the mean over the ``2 d`` points ``+- sqrt(d) e_i`` is its exact
expectation, without Monte Carlo.
"""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.families.draws import draw_at, sticking_log_prob
from tests import models
from tests.reference import (
    DENSE_FAMILIES,
    Glm,
    gaussian_from_covariance,
    linear_regression_posterior,
    natural_gradient,
    random_gaussian,
    relative_error,
)

#: Curvatures up to n / noise^2 = 400 and float64.
TOLERANCE = 1e-10

PRIOR, NOISE, DIM = 2.0, 0.5, 3


@pytest.fixture
def regression(rng):
    X = rng.normal(size=(100, DIM))
    return X, X @ [1.0, -1.0, 0.5] + NOISE * rng.normal(size=100)


def _log_density(ppl, X, y):
    X, y = ppl.array(X), ppl.array(y)

    def log_density(theta):
        residual = y - X @ theta
        return -0.5 * (residual**2).sum() / NOISE**2 - 0.5 * (theta**2).sum() / PRIOR**2

    return log_density


def _bound_gradient(ppl, log_density, sticking):
    """A function of the family and of the noise."""

    def estimate(q, z):
        reparametrised = q.reparametrised(z)
        log_q = sticking_log_prob(q, reparametrised) if sticking else q.draw_log_prob(z)
        return log_density(draw_at(q, reparametrised)) - log_q

    gradient = ppl.gradient(estimate)
    return lambda family, z: ppl.coordinates(gradient(family, ppl.array(z)))


@pytest.mark.parametrize("sticking", [True, False])
def test_the_natural_gradient_is_unbiased(ppl, family_name, sticking, regression, rng):
    loc, scale = random_gaussian(family_name, DIM, rng)
    family = ppl.family(family_name, loc, scale)
    points = np.sqrt(DIM) * np.concatenate([np.eye(DIM), -np.eye(DIM)])
    gradient = _bound_gradient(ppl, _log_density(ppl, *regression), sticking)
    draws = [gradient(family, z) for z in points]
    actual = [np.mean(coordinate, 0) for coordinate in zip(*draws, strict=True)]
    model = Glm(*regression, "gaussian", PRIOR, NOISE)
    expected = natural_gradient(family_name, loc, scale, *model.gradient(family_name, loc, scale))
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


@pytest.mark.parametrize("name", DENSE_FAMILIES)
def test_every_single_draw_is_free_of_noise_at_the_exact_posterior(ppl, name, regression, rng):
    mean, sigma, _ = linear_regression_posterior(*regression, PRIOR, NOISE)
    family = ppl.family(name, mean, gaussian_from_covariance(name, sigma))
    gradient = _bound_gradient(ppl, _log_density(ppl, *regression), sticking=True)
    scales = ppl.coordinates(family)
    for z in rng.normal(size=(5, DIM)):
        for part, scale in zip(gradient(family, z), scales, strict=True):
            assert np.abs(part).max() < TOLERANCE * max(1.0, np.abs(scale).max())
    # The plain estimator is not: the test above can tell the two apart.
    plain = _bound_gradient(ppl, _log_density(ppl, *regression), sticking=False)
    assert np.abs(plain(family, z)[1]).max() > 1e-3


#: The start of the run below, in mean and in standard deviation: a posterior deviation is about
#: 0.05. From far away single draws are too noisy for a plain gradient step.
START_ERROR, START_SCALE = 0.02, 0.06


def test_the_guide_converges_to_the_exact_posterior_without_decreasing_steps(ppl, regression):
    mean, sigma, log_evidence = linear_regression_posterior(*regression, PRIOR, NOISE)
    guide = ppl.guide(
        models.glm(ppl, "gaussian", PRIOR, NOISE),
        init_loc_fn=ppl.start_at(weights=mean + START_ERROR),
        init_scale=START_SCALE,
    )
    # In Pyro vectorised particles would need a model that broadcasts.
    optimiser = ppl.optimiser("Nagm", step_size=0.3, momentum=0.0, scale_step_size=0.3)
    particles = {"num_particles": 10, "vectorize_particles": ppl.is_numpyro}
    svi = ppl.svi(guide.model, guide, optimiser, ppl.elbo(**particles), regression)
    losses = svi.run(60)
    # A step contracts the error, noise included, by about 0.65: 60 leave 1e-11.
    posterior_mean, posterior_covariance = svi.gaussian
    np.testing.assert_allclose(posterior_mean, mean, rtol=1e-8)
    np.testing.assert_allclose(posterior_covariance, sigma, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(losses[-1], -log_evidence, rtol=1e-8)
