"""Moments and densities are those of ``scipy.stats.multivariate_normal``."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from tests.reference import covariance, random_gaussian

#: Condition numbers below 1e3 in float64.
RTOL = 1e-11


@pytest.fixture(params=[1, 5])
def q(request, backend, family_name, rng):
    """A family and the same Gaussian in scipy."""
    loc, scale = random_gaussian(family_name, request.param, rng)
    return backend.family(family_name, loc, scale), stats.multivariate_normal(
        loc, covariance(family_name, scale)
    )


def test_moments(backend, q):
    family, expected = q
    sigma = np.atleast_2d(expected.cov)
    zeros, eye = np.zeros((1, family.dim)), np.eye(family.dim)
    centre, *rows = backend.numpy(family.sample(backend.array(np.concatenate([zeros, eye]))))
    assert family.entropy().shape == family.log_det_scale().shape == ()
    np.testing.assert_allclose((rows - centre).T @ (rows - centre), sigma, rtol=RTOL, atol=RTOL)
    for actual, value in [
        (family.mean, expected.mean),
        (family.variance, np.diag(sigma)),
        (family.stddev, np.sqrt(np.diag(sigma))),
        (family.covariance_matrix, sigma),
        (family.precision_matrix, np.linalg.inv(sigma)),
        (family.entropy(), expected.entropy()),
        (family.log_det_scale(), np.linalg.slogdet(sigma)[1] / 2),
    ]:
        np.testing.assert_allclose(backend.numpy(actual), value, rtol=RTOL, atol=RTOL)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 2)])
def test_log_prob(backend, q, shape, rng):
    family, expected = q
    value = rng.normal(size=(*shape, family.dim))
    actual = backend.numpy(family.log_prob(backend.array(value)))
    assert actual.shape == shape
    np.testing.assert_allclose(actual, expected.logpdf(value).reshape(shape), rtol=RTOL)


@pytest.mark.parametrize("shape", [(), (4,), (3, 2)])
def test_whiten_inverts_sample(backend, q, shape, rng):
    family, _ = q
    noise = rng.normal(size=(*shape, family.dim))
    back = family.whiten(family.sample(backend.array(noise)))
    np.testing.assert_allclose(backend.numpy(back), noise, rtol=RTOL, atol=RTOL)


def test_number_of_free_coordinates(backend, q, family_name):
    family, _ = q
    d = family.dim
    expected = 2 * d if family_name == "diagonal" else d + d * (d + 1) // 2
    assert family.num_parameters == expected


def test_initial_is_isotropic(backend, family_name, rng):
    loc = rng.normal(size=4)
    family = backend.family_class(family_name)().initial(backend.array(loc), 0.3)
    np.testing.assert_array_equal(backend.numpy(family.mean), loc)
    # Squaring, rooting and dividing by 0.3 rounds a few times.
    np.testing.assert_allclose(
        backend.numpy(family.covariance_matrix), 0.09 * np.eye(4), rtol=1e-14, atol=1e-17
    )


def test_the_lower_factor_is_the_covariances_cholesky_factor(backend, q, family_name):
    family, expected = q
    if family_name == "diagonal":
        pytest.skip("of dense families")
    np.testing.assert_allclose(
        backend.numpy(family.lower_factor),
        np.linalg.cholesky(np.atleast_2d(expected.cov)),
        rtol=RTOL,
        atol=RTOL,
    )
