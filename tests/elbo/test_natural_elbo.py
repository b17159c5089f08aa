"""``NaturalELBO``: natural gradients by Bonnet and Price, whatever the estimator, in both PPLs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tests.models import exact_posterior, logistic, logistic_data, regression, regression_data
from tests.once import once
from tests.reference import DENSE_FAMILIES, random_gaussian

DIM = 3


def moments_by_quadrature(mean, covariance, X, y):
    """``E[grad l]`` and ``E[hess l]`` of the logistic regression: its logits are Gaussian."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    spread = np.sqrt(np.einsum("ni,ij,nj->n", X, covariance, X))
    p = 1 / (1 + np.exp(-(X @ mean)[:, None] - spread[:, None] * nodes))
    weights = weights / weights.sum()
    gradient = X.T @ (y - p @ weights) - mean / 4.0
    return gradient, -(X.T * ((p * (1 - p)) @ weights)) @ X - np.eye(DIM) / 4.0


def loss_and_direction(ppl, model, data, family, **options):
    """A function of a seed: the loss, and minus the gradient at ``family`` as numpy arrays."""
    args = tuple(map(ppl.argument, data))
    guide = ppl.guide(model, family.name)
    ppl.set_up(guide, *args)
    run = ppl.loss_and_gradient(ppl.elbo("NaturalELBO", **options), model, guide, *args)

    def at(seed=0):
        loss, gradient = run(family, seed)
        return loss, [-part for part in ppl.coordinates(gradient)]

    return at


def assert_close(ppl, actual, expected, rtol):
    for one, other in zip(actual, ppl.coordinates(expected), strict=True):
        assert np.linalg.norm(one - other) <= rtol * np.linalg.norm(other)


@pytest.mark.fast_in_numpyro("covariance_cholesky-spherical-*", "diagonal-hessian-*")
@pytest.mark.parametrize(
    ("curvature", "options", "rtol"),
    [
        ("hessian", {"num_particles": 4000, "num_gradients": 4000}, 0.03),
        ("stein", {"num_particles": 20_000}, 0.05),
        ("spherical", {"num_particles": 200}, 0.02),
        ("auto", {"num_particles": 200}, 0.02),
    ],
)
@pytest.mark.parametrize("name", ["covariance_cholesky", "diagonal"])
def test_the_direction_is_bonnet_and_price_of_the_true_moments(
    ppl, name, curvature, options, rtol, rng
):
    """Every estimator is without bias."""
    data = logistic_data()
    family = ppl.family(name, *random_gaussian(name, DIM, rng))
    covariance = ppl.numpy(family.covariance_matrix)
    gradient, hessian = moments_by_quadrature(ppl.numpy(family.mean), covariance, *data)
    part = family.assemble_hessian(ppl.array(hessian))
    expected = family.bonnet_price(ppl.array(gradient), part)
    at = loss_and_direction(ppl, logistic(ppl), data, family, curvature=curvature, **options)
    assert_close(ppl, at()[1], expected, rtol)


def test_gauss_newton_has_the_same_gradient(ppl, rng):
    data, name = logistic_data(), "precision"
    family = ppl.family(name, *random_gaussian(name, DIM, rng))
    covariance = ppl.numpy(family.covariance_matrix)
    gradient, _ = moments_by_quadrature(ppl.numpy(family.mean), covariance, *data)
    options = {"num_particles": 2, "num_gradients": 4000}
    at = loss_and_direction(ppl, logistic(ppl), data, family, curvature="gauss_newton", **options)
    assert np.linalg.norm(at()[1][0] - covariance @ gradient) < 0.03 * np.linalg.norm(gradient)


@pytest.mark.fast_in_numpyro
def test_orthogonal_points_have_far_less_noise_than_hessians_that_cost_as_much(ppl, rng):
    data, name = logistic_data(), "covariance_cholesky"
    family = ppl.family(name, *random_gaussian(name, DIM, rng))

    def variance(curvature):
        at = loss_and_direction(ppl, logistic(ppl), data, family, curvature=curvature)
        many = [np.concatenate([part.ravel() for part in at(seed)[1]]) for seed in range(80)]
        return np.var(many, 0).sum()

    assert variance("spherical") < 0.2 * variance("hessian")


@pytest.mark.fast_in_numpyro("precision-hessian")
@pytest.mark.parametrize("curvature", ["auto", "hessian", "mean"])
@pytest.mark.parametrize("name", DENSE_FAMILIES)
def test_one_full_step_is_exact_for_a_conjugate_model(ppl, name, curvature, rng):
    family = ppl.family(name, *random_gaussian(name, DIM, rng))
    at = loss_and_direction(
        ppl, regression(ppl), regression_data(), family, curvature=curvature, num_particles=2
    )
    direction = type(family)(*map(ppl.array, at()[1]))
    new = family.natural_step(direction, 1.0)
    mean, covariance, _ = exact_posterior()
    np.testing.assert_allclose(ppl.numpy(new.mean), mean, rtol=1e-8)
    np.testing.assert_allclose(ppl.numpy(new.covariance_matrix), covariance, rtol=1e-7, atol=1e-9)


@pytest.mark.fast_in_numpyro("auto")
@pytest.mark.parametrize("curvature", ["auto", "hessian", "stein"])
def test_at_the_exact_posterior_every_draw_has_the_evidence(ppl, curvature):
    mean, covariance, log_evidence = exact_posterior()
    family = ppl.family("covariance_cholesky", mean, np.linalg.cholesky(covariance))
    at = loss_and_direction(
        ppl, regression(ppl), regression_data(), family, curvature=curvature, num_particles=1
    )
    loss, direction = at()
    assert loss == pytest.approx(-log_evidence, rel=1e-10)
    if curvature != "hessian":  # whose gradients are those of draws
        assert max(np.abs(part).max() for part in direction) < 1e-9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_particles": 0}, "num_particles"),
        ({"num_particles": "10"}, "num_particles"),
        ({"curvature": "exact"}, "curvature"),
        ({"curvature": None}, "curvature"),
        ({"num_gradients": 5}, "num_gradients must be.* at least 10.*num_particles=10"),
    ],
)
def test_bad_options_are_refused(ppl, options, words):
    with pytest.raises(ValueError, match=words):
        ppl.elbo("NaturalELBO", **options)


# -- draws that are not finite ------------------------------------------------------------


def half_space(ppl):
    def model():
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
        # Where x < -1 there is no density, and its gradient is not finite either.
        ppl.factor("edge", ppl.param("shift", ppl.array(2.0)) * ppl.np.log(x + 1.0))

    return model


@pytest.mark.fast_in_numpyro("spherical-True")
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("vectorize_particles", [True, False])
@pytest.mark.parametrize("curvature", ["spherical", "hessian", "stein"])
def test_draws_that_are_not_finite_are_left_out_and_counted(ppl, curvature, vectorize_particles):
    options = {"curvature": curvature, "vectorize_particles": vectorize_particles}
    model, elbo = half_space(ppl), ppl.elbo("NaturalELBO", num_particles=40, **options)
    guide = ppl.guide(model, "diagonal")
    ppl.set_up(guide)
    family = ppl.family("diagonal", [0.0], [1.0])
    run = ppl.loss_and_gradient(elbo, model, guide)
    with pytest.warns(UserWarning, match="left out .* draws"):
        loss, gradient = run(family, 0)
    dropped = elbo.num_dropped
    assert np.isfinite(loss)
    assert all(np.isfinite(part).all() for part in ppl.coordinates(gradient))
    assert ppl.is_numpyro or np.isfinite(ppl.lib.param("shift").grad)
    assert dropped > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(family, 1)
    assert elbo.num_dropped > dropped


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:.*left out")
@pytest.mark.parametrize("curvature", ["spherical", "hessian"])
def test_with_no_draw_left_the_direction_is_nan_for_the_optimiser_to_skip(ppl, curvature):
    model = half_space(ppl)
    elbo = ppl.elbo("NaturalELBO", num_particles=4, num_gradients=4, curvature=curvature)
    guide = ppl.guide(model, "diagonal")
    ppl.set_up(guide)
    run = ppl.loss_and_gradient(elbo, model, guide)
    run(ppl.family("diagonal", [0.0], [0.1]), 0)
    loss, gradient = run(ppl.family("diagonal", [-50.0], [0.1]), 0)
    assert np.isnan(loss)
    assert all(np.isnan(part).all() for part in ppl.coordinates(gradient))
    assert elbo.num_dropped == {"hessian": 4, "spherical": 6}[curvature]


# -- a run --------------------------------------------------------------------------------


def test_by_default_blr_reaches_the_optimum_in_few_steps(ppl):
    """Through the stock ``SVI``, from the guide's own start."""
    X, y = logistic_data()
    svi = ppl.svi(logistic(ppl), "full", args=(X, y))
    svi.run(25)
    mean, covariance = svi.gaussian
    gradient, hessian = moments_by_quadrature(mean, covariance, X, y)
    root = np.linalg.cholesky(covariance)
    assert np.linalg.norm(root.T @ gradient) < 0.1
    assert np.linalg.norm(root.T @ hessian @ root + np.eye(DIM)) < 0.1


# -- a Hessian that is not the curvature --------------------------------------------------


def medians(ppl, num_groups=24):
    """Of groups: a Laplace likelihood is linear but for its kinks."""
    group = np.repeat(np.arange(num_groups), 2)
    y = np.sin(np.arange(len(group), dtype=float))

    def model(y):
        mean = ppl.sample("mean", ppl.dist.Normal(0.0, ppl.array(3.0)))
        with ppl.plate("groups", num_groups):
            level = ppl.sample("level", ppl.dist.Normal(mean, ppl.array(1.0)))
        with ppl.plate("rows", len(group)):
            ppl.sample("y", ppl.dist.Laplace(level[ppl.index(group)], ppl.array(0.1)), obs=y)

    return model, ppl.argument(y)


@pytest.mark.fast_in_numpyro
def test_hessians_that_miss_the_curvature_are_not_taken(ppl):
    model, y = medians(ppl)
    guide = ppl.guide(model, "sparse_precision", init_scale=1.0)  # which meets the kinks
    ppl.set_up(guide, y)
    run = ppl.loss_and_gradient(ppl.elbo("NaturalELBO"), model, guide, y)
    with pytest.warns(UserWarning, match="'y' has a curvature.*'spherical' is used instead"):
        loss, _ = run(ppl.initial(guide))
    assert np.isfinite(loss)


@pytest.mark.fast_in_numpyro
def test_a_hessian_that_cannot_be_taken_is_refused_and_the_default_takes_none(ppl):
    def model():
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(np.zeros(2)), 1.0).to_event(1))
        ppl.factor("smooth", ppl.np.cos(0.01 * x).sum(-1))
        ppl.factor("custom", once(x - 1.0).sum(-1))

    def at(**options):
        family = ppl.family("diagonal", np.full(2, 0.5), np.full(2, 0.7))
        return loss_and_direction(ppl, model, (), family, **options)()

    told = f"of 'custom' {'cannot' if ppl.is_numpyro else 'has'}.*curvature='stein'"
    for curvature in ("hessian", "mean"):
        with pytest.raises(ValueError, match=told):
            at(curvature=curvature, num_particles=2)
    guide = ppl.guide(model, "diagonal", init_scale=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss, direction = at()
        at(curvature="stein", num_particles=2)
        svi = ppl.svi(model, guide)
        svi.run(6)
    assert np.isfinite(loss)
    # E[grad l] of two quadratics and a cosine that does not matter.
    np.testing.assert_allclose(direction[0], 0.0, atol=1e-3)
    np.testing.assert_allclose(svi.gaussian[0], 0.5, atol=1e-3)


def by_factor(ppl, log_density):
    def model():
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(np.full(2, 0.1)), 1.0).to_event(1))
        ppl.factor("edge", log_density(x).sum(-1))

    return model


KINKS = {
    "abs": lambda np: lambda x: -5.0 * np.abs(x),
    "relu": lambda np: lambda x: -20.0 * np.where(x > 0.0, x, 0.0 * x),
}


def loss_with_hessians(ppl, log_density):
    model = by_factor(ppl, log_density)
    guide = ppl.guide(model, "diagonal", init_scale=1.0)
    ppl.set_up(guide)
    elbo = ppl.elbo("NaturalELBO", num_particles=2, curvature="hessian")
    return ppl.loss_and_gradient(elbo, model, guide)(ppl.initial(guide))[0]


@pytest.mark.fast_in_numpyro("relu")
@pytest.mark.parametrize("name", KINKS)
def test_the_site_of_a_kink_is_named(ppl, name):
    with pytest.raises(ValueError, match="'edge' has a curvature that its Hessian misses.*'stein'"):
        loss_with_hessians(ppl, KINKS[name](ppl.np))


# -- a loss that is scaled ------------------------------------------------------------


@pytest.mark.parametrize("curvature", ["stein", "hessian", "gauss_newton", "mean"])
def test_a_guide_that_is_scaled_with_its_model_is_refused_with_the_way_out(ppl, curvature):
    """As for losses by row: of the model's part alone the posterior would be too wide."""

    def model(y):
        mean = ppl.sample("mean", ppl.dist.Normal(ppl.array(0.0), 10.0))
        with ppl.plate("data", 4):
            ppl.sample("y", ppl.dist.Normal(mean, 1.0), obs=y)

    def scaled(function):
        return ppl.handlers.scale(function, scale=0.25)

    guide = ppl.guide(scaled(model), "diagonal")
    y = ppl.array([1.0, 2.0, 3.0, 4.0])
    elbo = ppl.elbo("NaturalELBO", num_particles=2, curvature=curvature)
    ppl.set_up(guide, y)
    with pytest.raises(ValueError, match=r"draw is scaled by 0\.25.*scale off.*tempered"):
        ppl.svi(scaled(model), scaled(guide), ppl.optimiser("BLR"), elbo, args=(y,)).step()


@pytest.mark.fast_in_numpyro
def test_float32_works_throughout(ppl):
    curvatures = (
        ["gauss_newton", "stein"]
        if ppl.is_numpyro
        else ["hessian", "gauss_newton", "stein", "mean"]
    )
    with ppl.precision("float32"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for curvature in curvatures:
            ppl.forget()
            family = ppl.family("covariance_cholesky", np.zeros(DIM), 0.3 * np.eye(DIM))
            options = {"curvature": curvature, "num_particles": 2}
            at = loss_and_direction(ppl, logistic(ppl), logistic_data(), family, **options)
            loss, direction = at()
            assert np.isfinite(loss)
            assert {part.dtype.name for part in direction} == {"float32"}
            assert all(np.isfinite(part).all() for part in direction)
