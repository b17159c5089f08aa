"""Moments of a log density are averages of exact Hessians, as much as a family needs of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optim.table5 import QUICKLY
from tests.reference import random_gaussian

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp

from numpyro_ngvi.curvature import gauss_newton_moments, hessian, hessian_moments, moments

DIM, NUM_DRAWS, NUM_DATA = 4, 6, 9


@pytest.fixture(autouse=True)
def _float64(numpyro_backend):
    return numpyro_backend


def density(theta, shift):
    """Not concave, with a dense Hessian that depends on ``theta``; a context of its own."""
    x = theta - shift
    return jnp.sum(jnp.sin(x)) + x[0] * x[1] ** 2 * x[2] - 0.1 * jnp.sum(x**4)


def points(rng):
    return jnp.asarray(rng.normal(size=(NUM_DRAWS, DIM))), jnp.asarray(rng.normal(size=NUM_DRAWS))


def part(family_name, hessian):
    return np.diag(hessian) if family_name == "diagonal" else hessian


def of_dense(draws, context):
    derivatives = jax.jit(lambda t, c: (jax.grad(density)(t, c), jax.hessian(density)(t, c)))
    return map(
        np.stack,
        zip(*(derivatives(t, c) for t, c in zip(draws, context, strict=True)), strict=True),
    )


def run(function, draws, context, family, log_density=density, num_hessians=NUM_DRAWS):
    compiled = jax.jit(
        lambda draws, context: function(log_density, draws, context, family, num_hessians),
        compiler_options=QUICKLY,
    )
    return compiled(draws, context)


@pytest.mark.parametrize("num_hessians", [NUM_DRAWS, 2])
@pytest.mark.parametrize("family_name", ["covariance_cholesky", "diagonal"])
def test_the_moments_are_averages_of_dense_derivatives(
    numpyro_backend, family_name, num_hessians, rng
):
    family = numpyro_backend.family(family_name, *random_gaussian(family_name, DIM, rng))
    draws, context = points(rng)
    actual = run(hessian_moments, draws, context, family, num_hessians=num_hessians)
    gradients, hessians = of_dense(draws, context)
    np.testing.assert_allclose(actual.gradient, gradients.mean(0), rtol=1e-11)
    expected = part(family_name, hessians[:num_hessians].mean(0))
    np.testing.assert_allclose(actual.hessian, expected, rtol=1e-10, atol=1e-12)
    values = [density(t, c) for t, c in zip(draws, context, strict=True)]
    np.testing.assert_allclose(actual.values, values[:num_hessians], rtol=1e-12)
    assert actual.kept.shape == (NUM_DRAWS,)
    assert actual.kept.all()


@pytest.mark.parametrize("limit", ["PRODUCTS_AT_ONCE", "MAX_BATCHED_PRODUCTS"])
def test_neither_products_nor_draws_need_to_fit_in_memory_at_once(
    numpyro_backend, limit, monkeypatch, rng
):
    family = numpyro_backend.family("precision", *random_gaussian("precision", DIM, rng))
    draws, context = points(rng)
    expected = run(hessian_moments, draws, context, family)
    monkeypatch.setattr(hessian if limit == "PRODUCTS_AT_ONCE" else moments, limit, 3)
    actual = run(hessian_moments, draws, context, family)
    np.testing.assert_allclose(actual.gradient, expected.gradient, rtol=1e-12)
    np.testing.assert_allclose(actual.hessian, expected.hessian, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("bad", ["value", "gradient", "hessian"])
def test_a_draw_in_which_anything_is_not_finite_is_left_out(numpyro_backend, bad, rng):
    draws, context = points(rng)
    draws = draws.at[2].set(0.0)

    def spoiled(theta, shift):
        at = theta[0] ** 2
        spoil = {
            "value": lambda: jnp.where(at == 0, jnp.inf, 0.0),
            "gradient": lambda: jnp.where(at == 0, 0.0, 1e-30) * jnp.sqrt(at),
            # |x|^(3/2), whose second derivative is not finite at zero.
            "hessian": lambda: 1e-30 * jnp.abs(theta[0]) ** 1.5,
        }[bad]()
        return density(theta, shift) + spoil

    family = numpyro_backend.family("diagonal", np.zeros(DIM), np.ones(DIM))
    actual = run(hessian_moments, draws, context, family, spoiled)
    assert actual.kept.tolist() == [True, True, False, True, True, True]
    keep = np.asarray(actual.kept)
    gradients, hessians = of_dense(draws, context)
    np.testing.assert_allclose(actual.gradient, gradients[keep].mean(0), rtol=1e-10)
    np.testing.assert_allclose(actual.hessian, np.diag(hessians[keep].mean(0)), rtol=1e-10)


def test_without_a_finite_draw_the_moments_are_nan(numpyro_backend, rng):
    draws, context = points(rng)
    family = numpyro_backend.family("diagonal", np.zeros(DIM), np.ones(DIM))
    actual = run(
        hessian_moments, draws, context, family, lambda t, c: density(t, c) * jnp.log(-1.0)
    )
    assert not actual.kept.any()
    assert jnp.isnan(actual.gradient).all()
    assert jnp.isnan(actual.hessian).all()


# -- Gauss-Newton -------------------------------------------------------------------------


def regression(rng, num_data):
    X, y = rng.normal(size=(num_data, DIM)), rng.normal(size=num_data)
    scale = rng.uniform(1.0, 3.0, size=num_data)

    def split(theta, shift):
        eta = jnp.asarray(X) @ theta - shift
        log_likelihood = -jnp.logaddexp(0.0, eta) - 0.5 * (eta - jnp.asarray(y)) ** 2
        return log_likelihood, jnp.asarray(scale), -0.25 * jnp.sum(theta**4)

    return split, scale


@pytest.mark.parametrize("num_data", [2, NUM_DATA], ids=["fewer examples than latents", "more"])
@pytest.mark.parametrize("family_name", ["covariance_cholesky", "diagonal"])
def test_gauss_newton_squares_gradients_of_examples(numpyro_backend, family_name, num_data, rng):
    split, scale = regression(rng, num_data)
    family = numpyro_backend.family(family_name, *random_gaussian(family_name, DIM, rng))
    draws, context = points(rng)
    actual = run(gauss_newton_moments, draws, context, family, split)
    of_examples = jax.jit(jax.jacrev(lambda t, c: split(t, c)[0]), compiler_options=QUICKLY)
    gradients, hessians = [], []
    for theta, shift in zip(draws, context, strict=True):
        rows = np.asarray(of_examples(theta, shift))
        gradients.append(scale @ rows - theta**3)
        hessians.append(-(scale[:, None] * rows).T @ rows - 3.0 * np.diag(theta**2))
    np.testing.assert_allclose(actual.gradient, np.mean(gradients, 0), rtol=1e-11)
    expected = part(family_name, np.mean(hessians, 0))
    np.testing.assert_allclose(actual.hessian, expected, rtol=1e-11, atol=1e-12)


def test_gauss_newton_needs_no_forward_mode_of_a_likelihood(numpyro_backend, rng):
    """Of a ``custom_vjp``, say."""
    split, _ = regression(rng, NUM_DATA)

    @jax.custom_vjp
    def identity(x):
        return x

    identity.defvjp(lambda x: (x, None), lambda _, cotangent: (cotangent,))
    family = numpyro_backend.family("diagonal", np.zeros(DIM), np.ones(DIM))
    draws, context = points(rng)
    expected = run(gauss_newton_moments, draws, context, family, split)
    actual = run(
        gauss_newton_moments,
        draws,
        context,
        family,
        lambda theta, shift: split(identity(theta), shift)[:2] + split(theta, shift)[2:],
    )
    np.testing.assert_allclose(actual.hessian, expected.hessian, rtol=1e-12)
