"""Sticking the landing: the same expectation, and no noise where ``q`` is exact.

The model is conjugate, so that ``grad log p`` is linear in ``theta`` and the gradient of one
draw a quadratic in its noise: the mean over the ``2 d`` points ``+- sqrt(d) e_i`` is its exact
expectation, without Monte Carlo.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import (
    Glm,
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


def _log_density(backend, X, y):
    X, y = backend.array(X), backend.array(y)

    def log_density(theta):
        residual = y - X @ theta
        return -0.5 * (residual**2).sum() / NOISE**2 - 0.5 * (theta**2).sum() / PRIOR**2

    return log_density


def _bound_gradient(backend, family, log_density, z, sticking):
    z = backend.array(z)

    def estimate(q):
        displaced = q.displaced(z)
        log_q = q.sticking_log_prob(displaced) if sticking else q.draw_log_prob(z)
        return log_density(q.draw_at(displaced)) - log_q

    return backend.coordinates(backend.grad(estimate, family))


@pytest.mark.parametrize("sticking", [True, False])
def test_the_natural_gradient_is_unbiased(backend, family_name, sticking, regression, rng):
    loc, scale = random_gaussian(family_name, DIM, rng)
    family = backend.family(family_name, loc, scale)
    points = np.sqrt(DIM) * np.concatenate([np.eye(DIM), -np.eye(DIM)])
    log_density = _log_density(backend, *regression)
    draws = [_bound_gradient(backend, family, log_density, z, sticking) for z in points]
    actual = [np.mean(coordinate, 0) for coordinate in zip(*draws, strict=True)]
    model = Glm(*regression, "gaussian", PRIOR, NOISE)
    expected = natural_gradient(family_name, loc, scale, *model.gradient(family_name, loc, scale))
    for a, e in zip(actual, expected, strict=True):
        assert relative_error(a, e) < TOLERANCE


def test_every_single_draw_is_free_of_noise_at_the_exact_posterior(backend, regression, rng):
    mean, sigma, _ = linear_regression_posterior(*regression, PRIOR, NOISE)
    family = backend.family("covariance_cholesky", mean, np.linalg.cholesky(sigma))
    log_density = _log_density(backend, *regression)
    for z in rng.normal(size=(5, DIM)):
        for part in _bound_gradient(backend, family, log_density, z, sticking=True):
            np.testing.assert_allclose(part, 0, atol=TOLERANCE)
    # The plain estimator is not: the test above can tell the two apart.
    _, noisy = _bound_gradient(backend, family, log_density, z, sticking=False)
    assert np.abs(noisy).max() > 1e-3


#: The start of the runs below, in mean and in standard deviation: a posterior deviation is
#: about 0.05. From far away single draws are too noisy for a plain gradient step.
START_ERROR, START_SCALE = 0.02, 0.06


def _check_exact(regression, posterior_mean, posterior_covariance, last_loss):
    mean, sigma, log_evidence = linear_regression_posterior(*regression, PRIOR, NOISE)
    # A step contracts the error, noise included, by about 0.9: 400 leave only rounding.
    np.testing.assert_allclose(posterior_mean, mean, rtol=1e-8)
    np.testing.assert_allclose(posterior_covariance, sigma, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(last_loss, -log_evidence, rtol=1e-8)


def test_the_guide_converges_to_the_exact_posterior_without_decreasing_steps_numpyro(
    numpyro_backend, regression
):
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.initialization import init_to_value

    X, y = map(jax.numpy.asarray, regression)

    def model():
        theta = numpyro.sample("theta", dist.Normal(jax.numpy.zeros(DIM), PRIOR).to_event(1))
        numpyro.sample("y", dist.Normal(X @ theta, NOISE).to_event(1), obs=y)

    package = numpyro_backend.package
    start = linear_regression_posterior(*regression, PRIOR, NOISE)[0] + START_ERROR
    guide = package.NaturalGaussianGuide(
        model,
        init_loc_fn=init_to_value(values={"theta": jax.numpy.asarray(start)}),
        init_scale=START_SCALE,
    )
    optimiser = package.Nagm(0.1, beta=0.0, scale_step_size=0.1)
    svi = SVI(model, guide, optimiser, Trace_ELBO(num_particles=10, vectorize_particles=True))
    result = svi.run(jax.random.key(0), 400, progress_bar=False)
    posterior = guide.get_posterior(result.params)
    _check_exact(regression, posterior.mean, posterior.covariance_matrix, result.losses[-1])


def test_the_guide_converges_to_the_exact_posterior_without_decreasing_steps_pyro(
    pyro_backend, regression
):
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide.initialization import init_to_value

    X, y = map(torch.as_tensor, regression)

    def model():
        theta = pyro.sample("theta", dist.Normal(torch.zeros(DIM), PRIOR).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal((X * theta).sum(-1), NOISE), obs=y)

    package = pyro_backend.package
    start = linear_regression_posterior(*regression, PRIOR, NOISE)[0] + START_ERROR
    guide = package.NaturalGaussianGuide(
        model,
        init_loc_fn=init_to_value(values={"theta": torch.as_tensor(start)}),
        init_scale=START_SCALE,
    )
    optimiser = package.Nagm({"lr": 0.1, "beta": 0.0, "scale_lr": 0.1})
    svi = SVI(model, guide, optimiser, Trace_ELBO(num_particles=10, vectorize_particles=True))
    losses = [svi.step() for _ in range(400)]
    posterior = guide.get_posterior()
    _check_exact(
        regression, posterior.mean.detach(), posterior.covariance_matrix.detach(), losses[-1]
    )
