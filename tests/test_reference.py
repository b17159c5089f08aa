"""The reference is checked against formulas that it does not use."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests import reference

#: Float64, condition numbers below 1e3 and sizes below 50: about 1e3 * 1e-16 * 50, rounded up.
ROUNDING = 1e-11


def _lemma_1(tril: np.ndarray) -> np.ndarray:
    """``J(C) = L {(C^-1 (x) C^-T) K + (I (x) C^-T C^-1)} L^T`` (Tan, Lemma 1), literally."""
    d = len(tril)
    commutation, elimination = np.zeros((d * d, d * d)), np.zeros((d * (d + 1) // 2, d * d))
    for i in range(d):
        for j in range(d):
            commutation[i * d + j, j * d + i] = 1  # vec(X^T) = K vec(X), columns stacked
    # Rows in the order of `flatten`: the lower triangle row by row.
    for row, (i, j) in enumerate(zip(*np.tril_indices(d), strict=True)):
        elimination[row, j * d + i] = 1
    inverse = np.linalg.inv(tril)
    inner = np.kron(inverse, inverse.T) @ commutation + np.kron(np.eye(d), inverse.T @ inverse)
    return elimination @ inner @ elimination.T


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_fisher_of_a_cholesky_factor_is_lemma_1(dim, rng):
    loc, tril = reference.random_gaussian("covariance_cholesky", dim, rng)
    expected = np.zeros((dim + dim * (dim + 1) // 2,) * 2)
    expected[:dim, :dim] = np.linalg.inv(tril @ tril.T)
    expected[dim:, dim:] = _lemma_1(tril)
    actual = reference.fisher("covariance_cholesky", loc, tril)
    assert reference.relative_error(actual, expected) < ROUNDING


def _design(n, d, rng):
    return np.column_stack([np.ones(n), rng.normal(size=(n, d - 1))])


def test_the_bound_of_a_conjugate_model_is_tight(rng):
    X = _design(30, 4, rng)
    y = X @ rng.normal(size=4) + 0.7 * rng.normal(size=30)
    mean, sigma, log_evidence = reference.linear_regression_posterior(X, y, 2.0, 0.7)
    marginal = stats.multivariate_normal(cov=4.0 * X @ X.T + 0.49 * np.eye(30))
    model = reference.Glm(X, y, "gaussian", prior_scale=2.0, noise_scale=0.7)
    assert np.isclose(log_evidence, marginal.logpdf(y), rtol=ROUNDING)
    assert np.isclose(model.bound(mean, sigma), log_evidence, rtol=ROUNDING)
    bound, mu, Sigma = model.optimum("covariance_cholesky")
    assert np.isclose(bound, log_evidence, rtol=ROUNDING)
    # The optimiser stops at a Newton decrement of 1e-12 nats: 1e-6 standard deviations.
    np.testing.assert_allclose(mu, mean, atol=1e-6)
    np.testing.assert_allclose(Sigma, sigma, atol=1e-6)


@pytest.mark.parametrize("likelihood", reference.LIKELIHOODS)
def test_the_bounds_gradient_equals_its_finite_differences(likelihood, family_name, rng):
    X = _design(20, 3, rng)
    model = reference.Glm(X, rng.integers(0, 2, size=20), likelihood)
    loc, scale = reference.random_gaussian(family_name, 3, rng)
    free = reference.flatten(family_name, loc, scale)

    def bound(free):
        mu, scale = reference.unflatten(family_name, free, 3)
        return model.bound(mu, reference.covariance(family_name, scale))

    step = 1e-5
    numerical = np.array(
        [(bound(free + step * e) - bound(free - step * e)) / (2 * step) for e in np.eye(free.size)]
    )
    analytical = reference.flatten(family_name, *model.gradient(family_name, loc, scale))
    # Central differences: error step^2 times third derivatives, and 1e-16 * 1e4 / step.
    assert reference.relative_error(numerical, analytical) < 1e-6


@pytest.mark.parametrize("likelihood", reference.LIKELIHOODS)
def test_the_optimum_is_stationary(likelihood, family_name, rng):
    X = _design(40, 3, rng)
    model = reference.Glm(X, rng.integers(0, 2, size=40), likelihood)
    bound, mu, sigma = model.optimum(family_name)
    diagonal = family_name == "diagonal"
    scale = np.sqrt(np.diag(sigma)) if diagonal else np.linalg.cholesky(sigma)
    gradient = reference.flatten(family_name, *model.gradient(family_name, mu, scale))
    # A decrement of 1e-12 nats with curvatures up to n = 40: slope sqrt(40 * 1e-12).
    assert np.abs(gradient).max() < 1e-5
    assert bound == model.bound(mu, sigma)
