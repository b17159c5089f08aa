"""``Snngm()`` needs no step size: near and far, large and small, noisy or not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optim.runs import Loop, kl_divergence
from tests.optim.table5 import driver, random_gradients, start
from tests.ppl import PPLS, load

AUTO = "auto"


@pytest.fixture
def target(rng):
    """A Gaussian 1e3 away whose standard deviations differ by four orders of magnitude."""
    scales = np.logspace(-2, 2, 4)
    root = np.tril(rng.normal(size=(4, 4)), -1) * 0.3 + np.eye(4)
    return np.array([3.0, -30.0, 300.0, 1000.0]), (scales[:, None] * root) @ (
        scales[:, None] * root
    ).T


def exact(target):
    loc, sigma = target
    precision = np.linalg.inv(sigma)
    return lambda mu, S: (-precision @ (mu - loc), -precision)


def noisy(target, rng):
    """As one draw sees the same Gaussian, in the expected Hessian as well."""
    loc, sigma = target
    precision = np.linalg.inv(sigma)
    root = np.linalg.cholesky(precision)

    def moments(mu, S):
        noise = 0.5 * rng.normal(size=(len(loc), len(loc)))
        hessian = -root @ (np.eye(len(loc)) + noise + noise.T) @ root.T
        return -precision @ (mu - loc) + root @ rng.normal(size=len(loc)), hessian

    return moments


def test_a_badly_scaled_posterior_far_away_is_found_without_a_number(pyro_backend, target):
    # In one package: both take the same steps, below.
    optimiser = pyro_backend.package.Snngm()
    loop = Loop(pyro_backend, optimiser, exact(target), "covariance_cholesky",
                np.zeros(4), np.eye(4))  # fmt: skip
    path = loop.path(300)
    assert kl_divergence(path[-1], target) < 1e-3
    assert loop.run.num_skipped == 0


def test_noise_averages_out(pyro_backend, rng):
    target = np.array([1.0, -1.0, 0.5]), np.diag([1.0, 4.0, 0.25])
    optimiser = pyro_backend.optimiser("Snngm", AUTO)
    loop = Loop(pyro_backend, optimiser, noisy(target, rng), "covariance_cholesky",
                np.zeros(3), np.eye(3))  # fmt: skip
    gaps = [kl_divergence(q, target) for q in loop.path(800)]
    assert np.mean(gaps[-100:]) < 0.5 * np.mean(gaps[50:150])
    assert np.mean(gaps[-100:]) < 0.05


def one_draw(target, rng):
    """What a stock ELBO knows of the same Gaussian: one gradient, and its product with the draw."""
    loc, sigma = target
    precision = np.linalg.inv(sigma)

    def moments(mu, S):
        root, noise = np.linalg.cholesky(S), rng.normal(size=len(loc))
        gradient = -precision @ (mu + root @ noise - loc)
        hessian = np.linalg.solve(root.T, np.outer(noise, gradient))
        return gradient, 0.5 * (hessian + hessian.T)

    return moments


def test_the_noise_of_latents_at_their_optimum_does_not_hold_up_another(pyro_backend, rng):
    """One standard deviation has to grow by six orders of magnitude, a KL divergence of 13."""
    target = np.zeros(4), np.diag([1.0, 1.0, 1.0, 1e8])
    loop = Loop(pyro_backend, pyro_backend.optimiser("Snngm", AUTO), one_draw(target, rng),
                "covariance_cholesky", np.zeros(4), np.diag([1.0, 1.0, 1.0, 1e-4]))  # fmt: skip
    assert kl_divergence(loop.path(300)[-1], target) < 4.0


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_both_packages_take_the_same_steps(rng, size):
    point = start(rng)
    gradients = random_gradients(point, 60, rng, size)
    for gradient in gradients[:30]:  # all alike at first, so that steps grow
        for name, (family, loc, scale) in gradients[0].items():
            gradient[name] = (family, loc + 0.1 * gradient[name][1], scale)
    runs = []
    for name in PPLS:
        backend = load(name)
        with backend.float64():
            run = driver(backend, backend.optimiser("Snngm", AUTO), point)
            steps = []
            for gradient in gradients:
                run.step(gradient)
                steps.append(np.concatenate([x.ravel() for n in point for x in run.gaussian(n)]))
        runs.append(np.array(steps))
    np.testing.assert_allclose(*runs, rtol=1e-8, atol=1e-8 * np.abs(runs[0]).max())
