"""``fit`` needs no number, ends at the optimum, and says so only if it is there."""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest

from tests.fit.results import NOISE_SCALE, PRIOR_SCALE, data

QUIET = {"progress_bar": False}

#: The best full-covariance bound of a careful run of 10^5 draws (posteriordb).
BEST_EIGHT_SCHOOLS = -31.536


def fit(ppl, model, *args, seed=0, **options):
    """The result of ``fit`` with this seed."""
    if ppl.is_numpyro:
        import jax

        options.setdefault("rng_key", jax.random.key(seed))
    else:
        ppl.ppl.set_rng_seed(seed)
    return ppl.package.fit(model, *args, **QUIET, **options)


def numpy(ppl, value):
    return ppl.backend.numpy(value)


def finite(ppl, result):
    family = result.family
    return all(
        np.isfinite(numpy(ppl, value)).all() for value in (family.mean, family.covariance_matrix)
    )


def conjugate_posterior():
    X, y = data()
    precision = X.T @ X / NOISE_SCALE**2 + np.eye(X.shape[1]) / PRIOR_SCALE**2
    return np.linalg.solve(precision, X.T @ y / NOISE_SCALE**2), np.linalg.inv(precision)


def eight_schools(ppl):
    y = ppl.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = ppl.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    dist, sample = ppl.dist, ppl.ppl.sample

    def model():
        zero = ppl.array(0.0)
        mu = sample("mu", dist.Normal(zero, 5.0))
        tau = sample("tau", dist.HalfCauchy(ppl.array(5.0)))
        with ppl.ppl.plate("schools", 8):
            raw = sample("raw", dist.Normal(zero, 1.0))
            sample("y", dist.Normal(mu + tau * raw, sigma), obs=y)

    return model


def test_a_conjugate_model_is_exact(ppl):
    model, args = ppl.conjugate()
    result = fit(ppl, model, *args)
    mean, covariance = conjugate_posterior()
    assert result.converged
    np.testing.assert_allclose(numpy(ppl, result.family.mean), mean, rtol=1e-6)
    np.testing.assert_allclose(numpy(ppl, result.family.covariance_matrix), covariance, rtol=1e-6)
    assert result.num_evaluations == result.num_gradients < 200
    assert len(result.losses) == result.num_steps


@pytest.mark.parametrize("seed", range(3))
def test_eight_schools_ends_at_the_best_bound_known(ppl, seed):
    result = fit(ppl, eight_schools(ppl), seed=seed)
    diagnostics = result.diagnose(num_draws=20000)
    assert result.converged
    assert diagnostics.bound > BEST_EIGHT_SCHOOLS - 0.1
    assert diagnostics.bound < BEST_EIGHT_SCHOOLS + 4 * diagnostics.bound_error
    assert result.num_evaluations < 6000


def test_scales_far_from_one_need_no_care(ppl):
    """A regression with an unknown noise scale, its posterior 10^4 from the start and narrow."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(50), rng.normal(60.0, 4.0, 50)])
    y = ppl.array(x @ [-6e4, 1.2e3] + 5e3 * rng.normal(size=50))
    x = ppl.array(x)

    def model():
        weights = ppl.ppl.sample("weights", ppl.dist.Normal(ppl.array([0.0, 0.0]), 1e6).to_event(1))
        sigma = ppl.ppl.sample("sigma", ppl.dist.HalfCauchy(ppl.array(1e4)))
        ppl.ppl.sample("y", ppl.dist.Normal(x @ weights, sigma).to_event(1), obs=y)

    result = fit(ppl, model)
    assert result.converged
    expected = np.linalg.lstsq(numpy(ppl, x), numpy(ppl, y), rcond=None)[0]
    sds = numpy(ppl, result.family.stddev)[:2]
    np.testing.assert_array_less(np.abs(numpy(ppl, result.family.mean)[:2] - expected), sds)


def test_the_same_draws_give_the_same_result(ppl):
    model = eight_schools(ppl)
    first, second = (fit(ppl, model, seed=seed, deterministic=True) for seed in (1, 2))
    assert first.converged
    np.testing.assert_array_equal(first.losses, second.losses)
    np.testing.assert_array_equal(numpy(ppl, first.family.mean), numpy(ppl, second.family.mean))
    assert first.trace.distances[-1] < 1e-4


def test_a_fit_that_is_cut_short_says_so_and_can_go_on(ppl):
    model = eight_schools(ppl)
    with pytest.warns(UserWarning, match=r"not converged: max_steps=3.*init=result"):
        short = fit(ppl, model, max_steps=3)
    assert not short.converged
    assert finite(ppl, short)
    longer = fit(ppl, model, init=short)
    assert longer.converged
    whole = fit(ppl, model)
    assert longer.num_steps < whole.num_steps + 3


def test_an_improper_posterior_is_named(ppl):
    def model():
        flat = ppl.dist.Normal(ppl.array(0.0), 1.0).mask(False)
        ppl.ppl.sample("nowhere", flat)

    with pytest.warns(UserWarning, match=r"widens without limit .*'nowhere'.*proper prior"):
        result = fit(ppl, model)
    assert not result.converged
    assert finite(ppl, result)


def test_data_with_nan_end_in_a_verdict(ppl):
    model, (X, y) = ppl.conjugate()
    y = numpy(ppl, y).copy()
    y[3] = np.nan
    validation = contextlib.nullcontext()
    if not ppl.is_numpyro:
        validation = ppl.ppl.validation_enabled(False)
    with validation, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fit(ppl, model, X, ppl.array(y))
    assert not result.converged
    assert "not finite" in result.reason
    assert "NaN" in result.reason
    assert finite(ppl, result)


def test_minibatches_end_near_the_posterior_of_all_data(ppl):
    model, args = ppl.conjugate()
    result = fit(ppl, model, *args, subsample_size=6)
    mean, covariance = conjugate_posterior()
    ratio = np.linalg.solve(covariance, numpy(ppl, result.family.covariance_matrix))
    shift = numpy(ppl, result.family.mean) - mean
    gap = 0.5 * (
        np.trace(ratio)
        - len(mean)
        - np.linalg.slogdet(ratio)[1]
        + shift @ np.linalg.solve(covariance, shift)
    )
    assert result.converged
    assert gap < 0.1


def test_parameters_of_the_model_are_optimised_too(ppl):
    """With ``y ~ N(z, 1)``, ``z ~ N(0, s^2)``, maximum likelihood has ``1 + s^2 = mean(y^2)``."""
    y = ppl.array(np.random.default_rng(1).normal(0.0, 3.0, 20))
    constraint = ppl.dist.constraints.positive

    def model():
        scale = ppl.ppl.param("scale", ppl.array(1.0), constraint=constraint)
        with ppl.ppl.plate("data", 20):
            z = ppl.ppl.sample("z", ppl.dist.Normal(ppl.array(0.0), scale))
            ppl.ppl.sample("y", ppl.dist.Normal(z, 1.0), obs=y)

    result = fit(ppl, model)
    assert result.converged
    expected = np.sqrt(np.mean(numpy(ppl, y) ** 2) - 1.0)
    np.testing.assert_allclose(numpy(ppl, result.params["scale"]), expected, rtol=0.03)


@pytest.mark.parametrize("curvature", ["hessian", "stein"])
def test_other_curvatures_end_at_the_same_place(ppl, curvature):
    model, args = ppl.conjugate()
    result = fit(ppl, model, *args, curvature=curvature)
    mean, _ = conjugate_posterior()
    sds = numpy(ppl, result.family.stddev)
    assert np.all(np.abs(numpy(ppl, result.family.mean) - mean) < 0.3 * sds)
    assert (result.num_hessian_products > 0) == (curvature == "hessian")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": 0.0}, "tolerance must be positive"),
        ({"max_steps": 0}, "max_steps must be an integer"),
        ({"curvature": "exact"}, "Unknown curvature='exact'"),
        ({"family": "round"}, "Unknown family='round'"),
    ],
)
def test_bad_options_are_named(ppl, options, message):
    model, args = ppl.conjugate()
    with pytest.raises(ValueError, match=message):
        fit(ppl, model, *args, **options)


def test_a_result_of_another_model_is_refused(ppl):
    model, args = ppl.conjugate()
    earlier = fit(ppl, model, *args)
    with pytest.raises(ValueError, match=r"init= holds 3 latents.*the model has 10"):
        fit(ppl, eight_schools(ppl), init=earlier)
