"""``natural_step`` is the Bayesian learning rule, and a Gaussian whatever the curvature."""

from __future__ import annotations

import numpy as np
import pytest

from tests.reference import (
    ALL_FAMILIES,
    DENSE_FAMILIES,
    covariance,
    gaussian_from_covariance,
    random_gaussian,
    relative_error,
)

#: The bar of the issue.
TOLERANCE = 1e-8


def _direction(backend, family, gradient, hessian, dtype="float64"):
    structured = family.assemble_hessian(backend.array(hessian, dtype))
    return family.bonnet_price(backend.array(gradient, dtype), structured)


def _moments(backend, family_name, family):
    loc, scale = backend.coordinates(family)
    return loc, np.linalg.inv(covariance(family_name, scale))


@pytest.mark.parametrize("ratio", [1e-3, 1e-1, 1.0, 1e2, 1e3])
@pytest.mark.parametrize("dim", [1, 5])
def test_one_step_is_exact_for_a_conjugate_model(backend, family_name, dim, ratio, rng):
    # From starts that are up to a thousand times narrower and wider than the posterior.
    target, scale = random_gaussian(family_name, dim, rng)
    sigma = covariance(family_name, scale)
    loc, scale = random_gaussian(family_name, dim, rng)
    start = gaussian_from_covariance(family_name, ratio**2 * covariance(family_name, scale))
    family = backend.family(family_name, loc, start)
    precision = np.linalg.inv(sigma)
    direction = _direction(backend, family, precision @ (target - loc), -precision)
    new_loc, new_precision = _moments(backend, family_name, family.natural_step(direction, 1.0))
    assert relative_error(new_loc, target) < TOLERANCE
    assert relative_error(new_precision, precision) < TOLERANCE


@pytest.mark.parametrize("step_size", [0.1, 0.7, 1.0])
def test_it_mixes_precisions_and_moves_the_mean_by_the_new_one(
    backend, family_name, step_size, rng
):
    dim = 5
    loc, scale = random_gaussian(family_name, dim, rng)
    curvature = np.linalg.inv(covariance(family_name, random_gaussian(family_name, dim, rng)[1]))
    gradient = rng.normal(size=dim)
    family = backend.family(family_name, loc, scale)
    direction = _direction(backend, family, gradient, -curvature)
    new_loc, new_precision = _moments(
        backend, family_name, family.natural_step(direction, step_size)
    )
    old = np.linalg.inv(covariance(family_name, scale))
    expected = (1 - step_size) * old + step_size * curvature
    assert relative_error(new_precision, expected) < 1e-12
    shift = step_size * np.linalg.solve(expected, gradient)
    np.testing.assert_allclose(new_loc - loc, shift, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("family_name", DENSE_FAMILIES)
def test_an_eigenvalue_that_would_not_be_positive_is_corrected_and_only_that(
    backend, family_name, rng
):
    dim, step_size = 5, 0.8
    loc, scale = random_gaussian(family_name, dim, rng)
    root = np.linalg.inv(np.linalg.cholesky(np.linalg.inv(covariance(family_name, scale))))
    vectors = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    # Of the curvature in whitened coordinates; -1 and -30 are too negative for the step.
    values = np.array([-30.0, -1.0, -0.1, 0.5, 20.0])
    inverse = np.linalg.inv(root)
    curvature = inverse @ (vectors * values) @ vectors.T @ inverse.T
    family = backend.family(family_name, loc, scale)
    direction = _direction(backend, family, np.zeros(dim), -curvature)
    _, precision = _moments(backend, family_name, family.natural_step(direction, step_size))
    whitened = root @ precision @ root.T
    change = step_size * (values - 1)
    expected = np.where(1 + change > 0, 1 + change, 0.5)
    np.testing.assert_allclose(
        vectors.T @ whitened @ vectors, np.diag(expected), rtol=1e-9, atol=1e-9
    )


def _steps(backend, family_name, starts, gradients, hessians, step_sizes, dtype):
    """The coordinates after many steps, each from its own start."""
    cls = backend.family_class(family_name)
    arrays = [backend.array(a, dtype) for a in (*starts, gradients, hessians, step_sizes)]

    def step(loc, scale, gradient, hessian, step_size):
        family = cls(loc, scale)
        direction = family.bonnet_price(gradient, family.assemble_hessian(hessian))
        return tuple(family.natural_step(direction, step_size).coordinates().values())

    if backend.name == "numpyro":
        import jax

        locs, scales = jax.jit(jax.vmap(step))(*arrays)
        return np.asarray(locs), np.asarray(scales)
    moved = [step(*row) for row in zip(*arrays, strict=True)]
    return tuple(
        np.stack([backend.numpy(c) for c in column]) for column in zip(*moved, strict=True)
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_thousand_indefinite_curvatures_leave_a_gaussian(backend, family_name, dtype, rng):
    num, dim = 1000, 6
    starts = [
        np.stack(c)
        for c in zip(*(random_gaussian(family_name, dim, rng) for _ in range(num)), strict=True)
    ]
    hessians = rng.normal(size=(num, dim, dim)) * 10 ** rng.uniform(-2, 3, size=(num, 1, 1))
    hessians = hessians + np.swapaxes(hessians, 1, 2)
    gradients = rng.normal(size=(num, dim))
    step_sizes = rng.uniform(0.01, 1, size=num)
    locs, scales = _steps(backend, family_name, starts, gradients, hessians, step_sizes, dtype)
    assert np.isfinite(locs).all()
    sigmas = np.stack([covariance(family_name, scale) for scale in scales.astype(np.float64)])
    assert (np.linalg.eigvalsh(0.5 * (sigmas + np.swapaxes(sigmas, 1, 2))) > 0).all()


@pytest.mark.parametrize("family_name", ALL_FAMILIES)
def test_float32_never_returns_nan_for_badly_scaled_curvature(backend, family_name, rng):
    # Variances over twelve orders of magnitude, curvatures of either sign over twenty.
    num, dim = 200, 6
    hessians = rng.normal(size=(num, dim, dim)) * 10 ** rng.uniform(-8, 12, size=(num, 1, 1))
    hessians = hessians + np.swapaxes(hessians, 1, 2)
    hessians[::4] *= 10 ** rng.uniform(-6, 0, size=(num // 4, dim, 1))
    hessians = 0.5 * (hessians + np.swapaxes(hessians, 1, 2))
    hessians[1::4] = -np.eye(dim)  # on the border: the rule's eigenvalues are near zero
    deviations = 10 ** rng.uniform(-3, 3, size=(num, dim))
    scales = np.stack([gaussian_from_covariance(family_name, np.diag(s**2)) for s in deviations])
    starts = rng.normal(size=(num, dim)), scales
    locs, scales = _steps(
        backend, family_name, starts, rng.normal(size=(num, dim)), hessians, np.ones(num), "float32"
    )
    assert np.isfinite(locs).all()
    assert np.isfinite(scales).all()


def test_what_is_not_finite_is_left_to_the_optimiser(backend, family_name, rng):
    family = backend.family(family_name, *random_gaussian(family_name, 5, rng))
    direction = _direction(backend, family, np.zeros(5), np.full((5, 5), np.nan))
    scale = backend.coordinates(family.natural_step(direction, 0.5))[1]
    assert np.isnan(scale).any()
