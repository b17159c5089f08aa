"""Moments from gradients at orthogonal points: unbiased, and exact for cubic functions."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from ngvi.families.curvature import natural_gradient_from_points
from ngvi.families.points import spherical_points
from tests.reference import random_gaussian

DIM = 4


def groups(seed, num_groups, dim=DIM):
    return spherical_points(np.random.default_rng(seed), dim, num_groups)


def direction(backend, family, gradient, points):
    """The natural gradient from one group, as numpy arrays."""
    draws = family.sample(backend.array(points.noise))
    gradients = backend.array(gradient(backend.numpy(draws)))
    weights = backend.array(points.weights)
    noise = backend.array(points.noise)
    return backend.coordinates(
        natural_gradient_from_points(family, weights[:, None] * gradients, noise)
    )


def exact(backend, family, gradient, hessian):
    """The natural gradient by Bonnet and Price."""
    part = family.assemble_hessian(backend.array(hessian))
    return backend.coordinates(family.bonnet_price(backend.array(gradient), part))


@pytest.mark.parametrize(
    "name", ["covariance_cholesky", "precision_cholesky", "precision", "diagonal"]
)
def test_the_direction_is_exact_for_a_quadratic_log_density(backend, name, rng):
    family = backend.family(name, *random_gaussian(name, DIM, rng))
    root = rng.normal(size=(DIM, DIM))
    hessian, centre = -root @ root.T, rng.normal(size=DIM)
    (points,) = groups(1, 1)

    def gradient(draws):
        return (draws - centre) @ hessian

    actual = direction(backend, family, gradient, points)
    mean = backend.numpy(family.mean)
    for one, other in zip(actual, exact(backend, family, gradient(mean), hessian), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


@functools.cache
def steps(backend, num_groups, dim, num_steps):
    """The points of some steps of ``NaturalELBO``, from the PPL's own random numbers."""
    draw = backend.module("estimators").orthogonal_points
    if backend.name == "numpyro":
        import jax

        draw = jax.jit(functools.partial(draw, dim=dim, num_groups=num_groups, dtype="float64"))
        many = [draw(jax.random.key(seed)) for seed in range(num_steps)]
    else:
        like = backend.array(np.zeros(1))
        many = [draw(dim, num_groups, like) for _ in range(num_steps)]
    return [tuple(map(backend.numpy, one)) for one in many]


def test_the_points_of_a_step_integrate_cubic_functions_exactly(backend, rng):
    ((z, w),) = steps(backend, 3, DIM, 1)
    assert z.shape == (3 * (2 * DIM + 1), DIM)
    np.testing.assert_allclose(w.sum(), 1.0, rtol=1e-12)
    np.testing.assert_allclose((w[:, None] * z).T @ z, np.eye(DIM), atol=1e-12)
    third = rng.normal(size=(DIM, DIM, DIM))
    np.testing.assert_allclose(w @ np.einsum("ni,nj,nk,ijk->n", z, z, z, third), 0, atol=1e-12)
    first = z[:DIM] / np.linalg.norm(z[0])
    np.testing.assert_allclose(first @ first.T, np.eye(DIM), atol=1e-12)


def test_the_points_of_steps_are_unbiased_for_functions_of_any_degree(backend):
    # E[z_1^4] = 3, E[exp(a z)] = exp(a^2 / 2), E[cos z] = exp(-1/2).
    many = steps(backend, 3, 2, 1500)
    a = np.array([0.5, -0.8])
    for function, expected in (
        (lambda z: z[:, 0] ** 4, 3.0),
        (lambda z: np.exp(z @ a), np.exp(a @ a / 2)),
        (lambda z: np.cos(z[:, 1]), np.exp(-0.5)),
    ):
        estimates = np.array([w @ function(z) for z, w in many])
        error = estimates.std() / np.sqrt(len(many))
        assert abs(estimates.mean() - expected) < 4 * error
        assert error < 0.05
