"""Moments from gradients at orthogonal points: unbiased, and exact for cubic functions."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from ngvi.families import direction as fisher
from ngvi.families.curvature import natural_gradient_from_groups, natural_gradient_from_points
from ngvi.families.points import spherical_points
from tests.reference import DENSE_FAMILIES, random_gaussian

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


def test_a_group_integrates_cubic_functions_exactly(rng):
    (points,) = groups(3, 1)
    z, w = points
    first, third = rng.normal(size=(DIM, DIM)), rng.normal(size=(DIM, DIM, DIM))
    cubic = 2.0 + z @ first[0] + np.einsum("ni,ij,nj->n", z, first, z)
    cubic += np.einsum("ni,nj,nk,ijk->n", z, z, z, third)
    np.testing.assert_allclose(w.sum(), 1.0, rtol=1e-12)
    np.testing.assert_allclose(w @ cubic, 2.0 + np.trace(first), rtol=1e-11)
    np.testing.assert_allclose((w[:, None] * z).T @ z, np.eye(DIM), atol=1e-12)


def test_groups_are_unbiased_for_functions_of_any_degree():
    # E[z_1^4] = 3, E[exp(a z)] = exp(a^2 / 2), E[cos z] = exp(-1/2).
    count = 4000
    many = [g for seed in range(count // 40) for g in groups(seed, 40, dim=3)]
    a = np.array([0.5, -0.3, 0.8])
    for function, expected in (
        (lambda z: z[:, 0] ** 4, 3.0),
        (lambda z: np.exp(z @ a), np.exp(a @ a / 2)),
        (lambda z: np.cos(z[:, 1]), np.exp(-0.5)),
    ):
        estimates = np.array([g.weights @ function(g.noise) for g in many])
        error = estimates.std() / np.sqrt(count)
        assert abs(estimates.mean() - expected) < 4 * error
        assert error < 0.05


@pytest.mark.parametrize(
    "name", ["covariance_cholesky", "precision_cholesky", "precision", "covariance", "diagonal"]
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


@pytest.mark.parametrize("name", DENSE_FAMILIES)
def test_groups_tell_the_squared_fisher_norm_of_their_noise(backend, name, rng):
    family, num = backend.family(name, *random_gaussian(name, DIM, rng)), 4
    noise = np.concatenate([g.noise for g in groups(2, num)])
    weights = np.concatenate([g.weights for g in groups(2, num)]) / num
    draws = backend.numpy(family.sample(backend.array(noise)))
    weighted, noise = backend.array(weights[:, None] * np.sin(3.0 * draws)), backend.array(noise)
    mean, spread = natural_gradient_from_groups(family, weighted, noise, num)
    together = backend.coordinates(natural_gradient_from_points(family, weighted, noise))
    for one, other in zip(backend.coordinates(mean), together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
    rows = len(weights) // num
    each = [
        natural_gradient_from_points(family, num * weighted[i : i + rows], noise[i : i + rows])
        for i in range(0, len(weights), rows)
    ]
    apart = [fisher.subtract([one], [mean]) for one in each]
    squares = [float(fisher.inner([family], one, one)) for one in apart]
    np.testing.assert_allclose(float(spread.noise), sum(squares) / (num * (num - 1)), rtol=1e-9)
    np.testing.assert_allclose(
        float(spread.square), float(fisher.inner([family], [mean], [mean])), rtol=1e-9
    )


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
