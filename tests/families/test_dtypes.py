"""A family's dtype is that of its arrays, in everything it returns."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import random_gaussian


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.mark.fast_in_numpyro(
    "covariance_cholesky-float32",
    "precision_cholesky-float64",
    "precision-float32",
    "covariance-float64",
    "diagonal-*",
)
def test_every_result_has_the_familys_dtype(backend, family_name, dtype, rng):
    family = backend.family(family_name, *random_gaussian(family_name, 5, rng), dtype=dtype)
    other = backend.family(family_name, *random_gaussian(family_name, 5, rng), dtype=dtype)
    noise = backend.array(rng.normal(size=(2, 5)), dtype)
    hessian = backend.array(np.eye(5), dtype)
    arrays = backend.compiled(_results)(family, other, noise, hessian)
    slope = backend.grad(lambda f: f.draw(noise).sum() + f.draw_log_prob(noise).sum(), family)
    arrays.extend(slope.coordinates().values())
    assert {backend.dtype(array) for array in arrays} == {dtype}


def _results(family, other, noise, hessian):
    arrays = [
        family.mean,
        family.stddev,
        family.variance,
        family.covariance_matrix,
        family.precision_matrix,
        family.log_det_scale(),
        family.entropy(),
        family.sample(noise),
        family.whiten(noise),
        family.log_prob(noise),
        family.draw(noise),
        family.draw(noise[0]),
        family.draw_log_prob(noise),
        family.kl_divergence(other),
        family.inner(other, other),
        *family.free_coordinates(),
    ]
    direction = family.bonnet_price(noise[0], family.assemble_hessian(hessian))
    for result in [
        family.natural_gradient(other),
        family.euclidean_gradient(other),
        family.precondition(),
        family.retract(other),
        direction,
        family.natural_step(direction, 0.5),  # definite
        family.natural_step(direction, 1.0),  # corrected
        type(family)().initial(family.loc, 0.1),
    ]:
        arrays.extend(result.coordinates().values())
    return arrays


def test_float32_natural_gradients_are_accurate_to_float32(backend, family_name, rng):
    q, g = random_gaussian(family_name, 5, rng), random_gaussian(family_name, 5, rng)
    results = [
        backend.family(family_name, *q, dtype).natural_gradient(
            backend.family(family_name, *g, dtype)
        )
        for dtype in ("float32", "float64")
    ]
    for low, high in zip(*map(backend.coordinates, results), strict=True):
        # Two products of 5 terms each, at 6e-8 a rounding.
        np.testing.assert_allclose(low, high, rtol=1e-5, atol=1e-5)
