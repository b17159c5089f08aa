"""Estimates are averages of exact derivatives, as much as a family needs of them."""

from __future__ import annotations

import numpy as np
import pytest

from numpyro_ngvi.networks.gauss_newton import GaussNewton
from tests.ppl import QUICKLY
from tests.reference import random_gaussian

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp

from ngvi.latents import forest
from numpyro_ngvi.estimators import Hessian, PointsBySite, hessian

DIM, NUM_DRAWS, NUM_DATA = 4, 6, 9


@pytest.fixture(autouse=True)
def _float64(numpyro_backend):
    return numpyro_backend


def density(theta, shift):
    """Not concave, with a dense Hessian that depends on ``theta``; a context of its own."""
    x = theta - shift
    return jnp.sum(jnp.sin(x)) + x[0] * x[1] ** 2 * x[2] - 0.1 * jnp.sum(x**4)


def draws_of(rng):
    return jnp.asarray(rng.normal(size=(NUM_DRAWS, DIM))), jnp.asarray(rng.normal(size=NUM_DRAWS))


def dense_derivatives(draws, context):
    derivatives = jax.jit(
        lambda t, c: (density(t, c), jax.grad(density)(t, c), jax.hessian(density)(t, c))
    )
    return map(
        np.stack,
        zip(*(derivatives(t, c) for t, c in zip(draws, context, strict=True)), strict=True),
    )


def run(estimator, draws, context, family, log_density=density):
    """The estimate at given draws; the context of each goes by its key."""

    def of_latents(latents, ordinary, key):
        return log_density(latents["x"], key)

    def estimate(draws, context):
        weights = jnp.full(len(draws), 1 / len(draws))
        points = PointsBySite({"x": family.whiten(draws)}, weights, context)
        return estimator(of_latents, {"x": family}, points)

    return jax.jit(estimate, compiler_options=QUICKLY)(draws, context)


def assert_is_price_of(estimate, family, gradient, hessian, rtol=1e-9):
    part = family.assemble_hessian(jnp.asarray(hessian))
    expected = family.bonnet_price(jnp.asarray(gradient), part)
    actual = estimate.directions["x"]
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-11)


@pytest.mark.parametrize("num_hessians", [NUM_DRAWS, 2])
@pytest.mark.parametrize("family_name", ["covariance_cholesky", "diagonal"])
def test_hessians_are_averages_of_dense_derivatives(
    numpyro_backend, family_name, num_hessians, rng
):
    family = numpyro_backend.family(family_name, *random_gaussian(family_name, DIM, rng))
    draws, context = draws_of(rng)
    actual = run(Hessian(num_hessians, 4), draws, context, family)
    values, gradients, hessians = dense_derivatives(draws, context)
    assert_is_price_of(actual, family, gradients.mean(0), hessians[:num_hessians].mean(0))
    np.testing.assert_allclose(actual.values, values[:num_hessians], rtol=1e-12)
    assert actual.kept.shape == (NUM_DRAWS,)
    assert actual.kept.all()


@pytest.mark.parametrize("is_separable", [False, True])
def test_a_diagonal_takes_two_products_or_as_many_as_latents_and_no_matrix(
    numpyro_backend, is_separable, monkeypatch, rng
):
    monkeypatch.setattr(hessian, "MAX_PROBED_DIAGONAL", 1)
    family = numpyro_backend.family("diagonal", *random_gaussian("diagonal", DIM, rng))
    draws, context = draws_of(rng)

    def separable(theta, shift):
        return jnp.sum(jnp.sin(theta - shift))

    actual = run(
        Hessian(NUM_DRAWS, 8), draws, context, family, separable if is_separable else density
    )
    if is_separable:
        gradients = np.cos(draws - context[:, None])
        hessians = np.stack([np.diag(h) for h in -np.sin(draws - context[:, None])])
    else:
        _, gradients, hessians = dense_derivatives(draws, context)
    assert_is_price_of(actual, family, gradients.mean(0), hessians.mean(0))


@pytest.mark.parametrize("bad", ["value", "gradient", "hessian"])
def test_a_draw_in_which_anything_is_not_finite_is_left_out(numpyro_backend, bad, rng):
    draws, context = draws_of(rng)
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
    actual = run(Hessian(NUM_DRAWS, 8), draws, context, family, spoiled)
    assert actual.kept.tolist() == [True, True, False, True, True, True]
    keep = np.asarray(actual.kept)
    _, gradients, hessians = dense_derivatives(draws, context)
    assert_is_price_of(actual, family, gradients[keep].mean(0), hessians[keep].mean(0))


# -- Gauss-Newton -------------------------------------------------------------------------


def regression(rng, num_data):
    X, y = rng.normal(size=(num_data, DIM)), rng.normal(size=num_data)
    scale = rng.uniform(1.0, 3.0, size=num_data)

    def split(latents, ordinary, shift):
        eta = jnp.asarray(X) @ latents["x"] - shift
        log_likelihood = -jnp.logaddexp(0.0, eta) - 0.5 * (eta - jnp.asarray(y)) ** 2
        return log_likelihood, jnp.asarray(scale), -0.25 * jnp.sum(latents["x"] ** 4)

    return split, scale


def gauss_newton(split, draws, context, family):
    return run(GaussNewton(NUM_DRAWS, 8, split), draws, context, family)


@pytest.mark.parametrize("num_data", [2, NUM_DATA], ids=["fewer examples than latents", "more"])
@pytest.mark.parametrize("family_name", ["covariance_cholesky", "diagonal"])
def test_gauss_newton_squares_gradients_of_examples(numpyro_backend, family_name, num_data, rng):
    split, scale = regression(rng, num_data)
    family = numpyro_backend.family(family_name, *random_gaussian(family_name, DIM, rng))
    draws, context = draws_of(rng)
    actual = gauss_newton(split, draws, context, family)
    by_rows = jax.jit(jax.jacrev(lambda t, c: split({"x": t}, (), c)[0]), compiler_options=QUICKLY)
    gradients, hessians = [], []
    for theta, shift in zip(draws, context, strict=True):
        rows = np.asarray(by_rows(theta, shift))
        gradients.append(scale @ rows - theta**3)
        hessians.append(-(scale[:, None] * rows).T @ rows - 3.0 * np.diag(theta**2))
    assert_is_price_of(actual, family, np.mean(gradients, 0), np.mean(hessians, 0))


@pytest.mark.parametrize(
    ("name", "options"),
    [("LowRankPrecision", {"rank": 2}), ("MatrixNormal", {"matrices": ((0, 2, 2),)})],
)
def test_a_large_family_gets_the_gradients_of_examples_and_no_matrix(
    numpyro_backend, name, options, monkeypatch, rng
):
    split, scale = regression(rng, 3)
    specification = getattr(numpyro_backend.families, name)(**options)
    family = specification.initial(jnp.zeros(DIM), 1.0)
    draws, context = draws_of(rng)
    rows, gradients = [], []
    by_rows = jax.jit(jax.jacrev(lambda t, c: split({"x": t}, (), c)[0]))
    for theta, shift in zip(draws, context, strict=True):
        of_draw = np.asarray(by_rows(theta, shift))
        rows.append(np.sqrt(scale / NUM_DRAWS)[:, None] * of_draw)
        gradients.append(scale @ of_draw - theta**3)
    monkeypatch.setattr(forest, "MAX_DENSIFIED_DIM", 1)
    actual = gauss_newton(split, draws, context, family).directions["x"]
    prior = (3 * draws**2).mean(0)
    means, rows = jnp.asarray(np.mean(gradients, 0)), jnp.asarray(np.concatenate(rows))
    expected = family.natural_gradient_from_rows(means, rows, prior)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


def test_gauss_newton_needs_no_forward_mode_of_a_likelihood(numpyro_backend, rng):
    """Of a ``custom_vjp``, say."""
    split, _ = regression(rng, NUM_DATA)

    @jax.custom_vjp
    def identity(x):
        return x

    def reversed_only(latents, ordinary, shift):
        parts = split({"x": identity(latents["x"])}, ordinary, shift)
        return parts[:2] + split(latents, ordinary, shift)[2:]

    identity.defvjp(lambda x: (x, None), lambda _, cotangent: (cotangent,))
    family = numpyro_backend.family("diagonal", np.zeros(DIM), np.ones(DIM))
    draws, context = draws_of(rng)
    expected = gauss_newton(split, draws, context, family)
    actual = gauss_newton(reversed_only, draws, context, family)
    for one, other in zip(
        jax.tree.leaves(actual.directions), jax.tree.leaves(expected.directions), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-12)
