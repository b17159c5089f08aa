"""Every dense family is a drop-in ``family=`` for stock ``SVI`` and ``Trace_ELBO``."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import (
    DENSE_FAMILIES,
    covariance,
    gaussian_from_covariance,
    linear_regression_posterior,
    random_gaussian,
)

PRIOR, NOISE, DIM = 2.0, 0.5, 3

#: Step sizes are in the units of the coordinates: a precision is of the order of a hundred here,
#: a covariance of a hundredth.
SNNGM_STEP_SIZES = {
    "covariance_cholesky": 0.01,
    "precision_cholesky": 0.05,
    "precision": 0.2,
    "covariance": 0.0005,
}


@pytest.fixture(params=DENSE_FAMILIES)
def family_name(request):
    return request.param


@pytest.fixture
def regression(rng):
    X = rng.normal(size=(40, DIM))
    return X, X @ [1.0, -1.0, 0.5] + NOISE * rng.normal(size=40)


class NumPyroFit:
    def __init__(self, backend, X, y, start=None, **options):
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist

        self.X, self.y = jnp.asarray(X), jnp.asarray(y)

        def model():
            theta = numpyro.sample("theta", dist.Normal(0.0, PRIOR).expand([DIM]).to_event(1))
            numpyro.sample("y", dist.Normal(self.X @ theta, NOISE).to_event(1), obs=self.y)

        self.package, self.model = backend.package, model
        if start is not None:
            init = numpyro.infer.init_to_value(values={"theta": jnp.asarray(start)})
            options = {**options, "init_loc_fn": init, "sticking_the_landing": True}
        self.guide = backend.package.NaturalGaussianGuide(model, **options)

    def run(self, optimiser, num_steps):
        import jax
        from numpyro.infer import SVI, Trace_ELBO

        svi = SVI(self.model, self.guide, optimiser, Trace_ELBO(num_particles=2))
        result = svi.run(jax.random.key(0), num_steps, progress_bar=False)
        self.params = result.params
        return np.asarray(result.losses)

    def set(self, family):
        import jax
        from numpyro.infer import SVI, Trace_ELBO

        SVI(self.model, self.guide, self.package.Snngm(), Trace_ELBO()).init(jax.random.key(0))
        self.params = {"auto_posterior": family}

    def posterior(self):
        return self.guide.get_posterior(self.params)

    def transform(self):
        return self.guide.get_transform(self.params)

    def quantiles(self, quantiles):
        return np.asarray(self.guide.quantiles(self.params, quantiles)["theta"])


class PyroFit:
    def __init__(self, backend, X, y, start=None, **options):
        import pyro
        import pyro.distributions as dist
        import torch
        from pyro.infer.autoguide import init_to_value

        X, y = torch.as_tensor(X), torch.as_tensor(y)

        def model():
            theta = pyro.sample("theta", dist.Normal(0.0, PRIOR).expand([DIM]).to_event(1))
            pyro.sample("y", dist.Normal(X @ theta, NOISE).to_event(1), obs=y)

        self.model = model
        if start is not None:
            init = init_to_value(values={"theta": torch.as_tensor(start)})
            options = {**options, "init_loc_fn": init, "sticking_the_landing": True}
        self.guide = backend.package.NaturalGaussianGuide(model, **options)

    def run(self, optimiser, num_steps):
        from pyro.infer import SVI, Trace_ELBO

        svi = SVI(self.model, self.guide, optimiser, Trace_ELBO(num_particles=2))
        return np.array([svi.step() for _ in range(num_steps)])

    def set(self, family):
        import torch

        self.guide()
        with torch.no_grad():
            for name, value in family.coordinates().items():
                getattr(self.guide.posterior, name).copy_(value)

    def posterior(self):
        return self.guide.get_posterior()

    def transform(self):
        return self.guide.get_transform()

    def quantiles(self, quantiles):
        return np.stack([q.numpy() for q in self.guide.quantiles(quantiles)["theta"]])


@pytest.fixture
def fit(backend):
    def make(*args, **options):
        return (NumPyroFit if backend.name == "numpyro" else PyroFit)(backend, *args, **options)

    return make


def _optimiser(backend, name, step_size):
    cls = getattr(backend.package, name)
    return cls(step_size) if backend.name == "numpyro" else cls({"lr": step_size})


@pytest.mark.parametrize("optimiser", ["Snngm", "Nagm"])
def test_stock_svi_climbs(backend, family_name, optimiser, fit, regression):
    mean, _, log_evidence = linear_regression_posterior(*regression, PRIOR, NOISE)
    model = fit(*regression, mean + 0.05, family=family_name, init_scale=0.2)
    step_size = SNNGM_STEP_SIZES[family_name] if optimiser == "Snngm" else 0.5
    losses = model.run(_optimiser(backend, optimiser, step_size), 200)
    # The bound's distance from its maximum, by the noisy estimates of single steps.
    gap = losses + log_evidence
    assert np.mean(gap[-50:]) < 0.5 * np.mean(gap[:10])


def test_what_the_user_gets_is_the_family(backend, family_name, fit, regression, rng):
    loc, scale = random_gaussian(family_name, DIM, rng)
    sigma = covariance(family_name, scale)
    model = fit(*regression, family=family_name)
    model.set(backend.family(family_name, loc, scale))
    posterior = model.posterior()
    np.testing.assert_allclose(backend.numpy(posterior.mean), loc, rtol=1e-12)
    np.testing.assert_allclose(backend.numpy(posterior.covariance_matrix), sigma, rtol=1e-9)
    np.testing.assert_allclose(
        backend.numpy(posterior.precision_matrix), np.linalg.inv(sigma), rtol=1e-9, atol=1e-12
    )
    # The transform takes N(0, I) to it.
    moved = np.stack([backend.numpy(model.transform()(backend.array(z))) for z in np.eye(DIM)])
    root = (moved - loc).T
    np.testing.assert_allclose(root @ root.T, sigma, rtol=1e-9)
    # One standard deviation either side of the median.
    low, middle, high = model.quantiles([0.15865525393145707, 0.5, 0.8413447460685429])
    np.testing.assert_allclose(middle, loc, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(high - low, 2 * np.sqrt(np.diag(sigma)), rtol=1e-5)


def test_no_draws_gradient_is_left_at_the_exact_posterior(backend, family_name, regression, rng):
    X, y = map(backend.array, regression)
    mean, sigma, _ = linear_regression_posterior(*regression, PRIOR, NOISE)
    family = backend.family(family_name, mean, gaussian_from_covariance(family_name, sigma))
    noise = backend.array(rng.normal(size=DIM))

    def estimate(q):  # sticking the landing
        displaced = q.displaced(noise)
        theta = q.draw_at(displaced)
        residual, prior = (y - X @ theta) / NOISE, theta / PRIOR
        return -0.5 * (residual**2).sum() - 0.5 * (prior**2).sum() - q.sticking_log_prob(displaced)

    scales = backend.coordinates(family)
    for gradient, scale in zip(
        backend.coordinates(backend.grad(estimate, family)), scales, strict=True
    ):
        assert np.abs(gradient).max() < 1e-10 * max(1.0, np.abs(scale).max())
