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


def test_a_step_is_not_longer_than_its_own_gradient_makes_it(pyro_backend, rng):
    point = {"q": ("diagonal", np.zeros(2), np.ones(2))}
    run = driver(pyro_backend, pyro_backend.optimiser("Snngm", AUTO), point)
    for size in [1.0] * 8 + [1e-3]:
        before = run.gaussian("q")[0]
        run.step({"q": ("diagonal", np.array([size, 0.0]), np.zeros(2))})
    assert 0.0 < np.linalg.norm(run.gaussian("q")[0] - before) <= 1.0001e-3


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


def test_float32_stays_float32_and_finite(backend, rng):
    point = start(rng)
    for size in (1e-20, 1.0, 1e15):
        run = driver(backend, backend.optimiser("Snngm", AUTO), point, dtype="float32")
        for gradient in random_gradients(point, 30, rng, size):
            run.step(gradient)
        for name in point:
            assert all(x.dtype == np.float32 for x in run.gaussian(name))
            assert all(np.isfinite(x).all() for x in run.gaussian(name))


def test_a_zero_gradient_moves_nothing(backend, rng):
    point = start(rng)
    run = driver(backend, backend.optimiser("Snngm", AUTO), point)
    for gradient in random_gradients(point, 3, rng, size=0.0):
        run.step(gradient)
    np.testing.assert_array_equal(run.gaussian("dense")[1], point["dense"][2])


@pytest.mark.filterwarnings("ignore:A step of")
def test_after_a_gradient_that_is_not_finite_it_continues_from_before(backend, rng):
    point = start(rng)
    first, second, third = random_gradients(point, 3, rng)
    second["dense"] = ("covariance_cholesky", np.full(3, np.nan), second["dense"][2])
    run = driver(backend, backend.optimiser("Snngm", AUTO), point)
    run.step(first)
    run.step(second)
    np.testing.assert_allclose(run.gaussian("dense")[0], point["dense"][1], rtol=1e-12)
    run.step(third)
    assert run.num_skipped == 1
    assert np.isfinite(run.gaussian("dense")[0]).all()


def test_other_strings_are_refused(backend):
    with pytest.raises(ValueError, match="auto"):
        backend.optimiser("Snngm", "adaptive")
