"""``fit`` needs no number, ends at the optimum, and says so only if it is there.

What the searches decide is tested on problems of numpy, what the packages compute for them in
``test_problem``; here is what takes a PPL.
"""

from __future__ import annotations

import contextlib
import warnings

import numpy as np
import pytest

from tests import models
from tests.inference.results import conjugate, log_evidence
from tests.ppl import SLOW_IN_NUMPYRO, load

#: The best full-covariance bound of a careful run of 10^5 draws (posteriordb).
BEST_EIGHT_SCHOOLS = -31.536


def finite(ppl, result):
    family = result.family
    return all(
        np.isfinite(ppl.numpy(value)).all() for value in (family.mean, family.covariance_matrix)
    )


def divergence(ppl, result):
    """``KL(q || p)`` from the exact posterior of the conjugate model."""
    mean, covariance, _ = models.exact_posterior()
    ratio = np.linalg.solve(covariance, ppl.numpy(result.family.covariance_matrix))
    shift = ppl.numpy(result.family.mean) - mean
    gap = np.trace(ratio) - len(mean) - np.linalg.slogdet(ratio)[1]
    return 0.5 * (gap + shift @ np.linalg.solve(covariance, shift))


def eight_schools(ppl):
    return models.eight_schools(ppl), *map(ppl.array, models.eight_schools_data())


# -- models that see all their data ---------------------------------------------------


def test_a_conjugate_model_is_exact(ppl):
    model, args = conjugate(ppl)
    result = ppl.fit(model, *args)
    assert result.verdict == "certified" and "8 of 8 starts reached it" in result.reason
    assert divergence(ppl, result) < 1e-3
    assert result.bound == pytest.approx(log_evidence(), abs=1e-3)
    assert result.cost.products == 0 and result.cost.gradients < 1000
    assert len(result.losses) == len(result.trace)
    with pytest.raises(ValueError, match=r"init= is .* another model.*'\w+' is missing"):
        ppl.fit(models.location(ppl), ppl.array(models.Y), init=result)


@SLOW_IN_NUMPYRO
def test_eight_schools_ends_at_the_best_bound_known_and_a_fit_that_is_cut_short_goes_on(ppl):
    model, *args = eight_schools(ppl)
    with pytest.warns(UserWarning, match=r"not converged: max_steps=3.*init=result"):
        short = ppl.fit(model, *args, max_steps=3)
    assert not short.converged
    assert finite(ppl, short)
    result = ppl.fit(model, *args, init=short, seed=1)
    assert result.converged
    log_weights = result.diagnostics.log_weights
    bound, error = log_weights.mean(), log_weights.std() / len(log_weights) ** 0.5
    assert BEST_EIGHT_SCHOOLS - 0.1 - 2 * error < bound < BEST_EIGHT_SCHOOLS + 4 * error
    # The shortest run of NUTS takes twice as many, 2,000 times ten leapfrogs.
    assert result.cost.gradients < 10_000


@SLOW_IN_NUMPYRO
def test_scales_far_from_one_need_no_care(ppl):
    """A regression with an unknown noise scale, its posterior 10^4 from the start and narrow."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.ones(50), rng.normal(60.0, 4.0, 50)])
    y = x @ [-6e4, 1.2e3] + 5e3 * rng.normal(size=50)

    def model(x, y):
        weights = ppl.sample("weights", ppl.dist.Normal(ppl.array([0.0, 0.0]), 1e6).to_event(1))
        sigma = ppl.sample("sigma", ppl.dist.HalfCauchy(ppl.array(1e4)))
        ppl.sample("y", ppl.dist.Normal(x @ weights, sigma).to_event(1), obs=y)

    result = ppl.fit(model, ppl.array(x), ppl.array(y), effort="quick")
    assert result.converged
    expected = np.linalg.lstsq(x, y, rcond=None)[0]
    sds = ppl.numpy(result.family.stddev)[:2]
    np.testing.assert_array_less(np.abs(ppl.numpy(result.family.mean)[:2] - expected), sds)


def test_going_on_keeps_the_parameters_of_the_model(ppl):
    def model(y):
        noise = ppl.param("noise", ppl.array(1.0), constraint=ppl.dist.constraints.positive)
        mean = ppl.sample("mean", ppl.dist.Normal(ppl.array(0.0), 10.0))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Normal(mean, noise), obs=y)

    y = ppl.array(np.random.default_rng(0).normal(5.0, 2.0, 30))
    first = ppl.fit(model, y, effort="quick")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one step is too few for a verdict
        again = ppl.fit(model, y, init=first, max_steps=1)
    noise = float(first.params["noise"])
    assert noise > 1.5
    assert float(again.params["noise"]) == pytest.approx(noise, rel=1e-3)


@SLOW_IN_NUMPYRO
def test_a_start_where_the_density_overflows_is_rescued(ppl):
    """``exp(10 rate)`` at ``rate ~ N(4, 1)``: the mean ascends, by the density's gradients."""

    def model(y):
        rate = ppl.sample("rate", ppl.dist.Normal(ppl.array(0.0), 100.0))
        ppl.sample("y", ppl.dist.Poisson(ppl.np.exp(10.0 * rate)), obs=y)

    start = ppl.start_at(rate=4.0)
    result = ppl.fit(model, ppl.array(3.0), init_loc_fn=start, effort="quick")
    assert result.converged
    assert ppl.numpy(result.family.loc)[0] == pytest.approx(np.log(3.0) / 10, abs=0.05)


@pytest.mark.fast_in_numpyro("real")
@pytest.mark.parametrize("support", ["real", "positive"])
def test_an_improper_posterior_is_named(ppl, support):
    constraint = getattr(ppl.dist.constraints, support)

    def model():
        ppl.sample("nowhere", ppl.dist.ImproperUniform(constraint, (), ()))

    with pytest.warns(UserWarning, match="'nowhere' runs away without limit.*proper prior"):
        result = ppl.fit(model)
    assert not result.converged
    assert finite(ppl, result)


@pytest.mark.fast_in_numpyro
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_ridge_without_an_end_has_doubtful_draws(ppl):
    """Rounding makes the covariance singular."""
    y = ppl.array(np.random.default_rng(910).normal(size=20))

    def model(y):
        support = ppl.dist.constraints.real_vector
        means = ppl.sample("means", ppl.dist.ImproperUniform(support, (), (2,)))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Normal(means.sum(), 1.0), obs=y)

    result = ppl.fit(model, y)
    assert not result.converged and not result.diagnostics.accuracy.is_accurate


@pytest.mark.parametrize("pyro_validates", [True, False])
def test_data_with_nan_are_an_error_that_names_them(ppl, pyro_validates):
    model, (X, y) = conjugate(ppl)
    y = ppl.numpy(y).copy()
    y[3] = np.nan
    validation = contextlib.nullcontext()
    if not ppl.is_numpyro:
        validation = ppl.lib.validation_enabled(pyro_validates)
    elif not pyro_validates:
        return
    with validation, pytest.raises(ValueError, match=r"'y'.* holds NaN at 1 of 12 places.*\[3\]"):
        ppl.fit(model, X, ppl.array(y))


def test_infinite_data_that_a_trace_hides_end_in_a_verdict_that_can_be_printed():
    """The model's own indexing is traced in NumPyro, so that its data are not seen at the door."""
    ppl = load("numpyro")
    y = ppl.array([1.0, np.inf, 2.0])
    with pytest.warns(UserWarning, match="not converged"):
        result = ppl.fit(models.location(ppl), y, effort="quick")
    assert not result.converged
    assert "not finite" in result.reason and "'y'" in result.reason
    assert finite(ppl, result) and len(result.trace) == 0
    assert "NOT converged" in str(result)


# -- minibatches and parameters -------------------------------------------------------


@pytest.mark.fast_in_numpyro
def test_parameters_of_the_model_are_optimised_too(ppl):
    """With ``y ~ N(z, 1)``, ``z ~ N(0, s^2)``, maximum likelihood has ``1 + s^2 = mean(y^2)``."""
    y = np.random.default_rng(1).normal(0.0, 3.0, 8)
    constraint = ppl.dist.constraints.positive

    def model(y):
        scale = ppl.param("scale", ppl.array(1.0), constraint=constraint)
        with ppl.plate("data", len(y)):
            z = ppl.sample("z", ppl.dist.Normal(ppl.array(0.0), scale))
            ppl.sample("y", ppl.dist.Normal(z, 1.0), obs=y)

    result = ppl.fit(model, ppl.array(y), effort="quick")
    assert result.converged
    expected = np.sqrt(np.mean(y**2) - 1.0)
    np.testing.assert_allclose(ppl.numpy(result.params["scale"]), expected, rtol=0.05)


# -- other optima ---------------------------------------------------------------------


def two_modes(ppl):
    """``|z|`` is known, and a sign is seven times as likely as the other."""

    def model(y):
        z = ppl.sample("z", ppl.dist.Normal(ppl.array(0.0), 5.0))
        ppl.sample("y", ppl.dist.Normal(ppl.np.abs(z), 0.3), obs=y)
        ppl.factor("sign", 2.0 * ppl.np.tanh(z))

    return model, ppl.array(4.0)


def test_other_optima_are_looked_for_and_all_are_kept(ppl):
    model, y = two_modes(ppl)
    start = {"init_loc_fn": ppl.start_at(z=-3.0)}
    result = ppl.fit(model, y, **start)
    assert result.verdict == "certified" and float(result.family.mean[0]) > 3.0
    high, low = result.optima[:2]
    assert high.bound - low.bound == pytest.approx(4.0, abs=0.1) and high.bound == result.bound
    assert high.num_starts > 0 and [one.bound for one in result.restarts[:2]] == [
        high.bound,
        low.bound,
    ]
    local = ppl.fit(model, y, effort="quick", **start)
    assert local.verdict == "local" and local.converged and float(local.family.mean[0]) < -3.0
    assert "other optima have not been looked for" in local.reason


# -- options --------------------------------------------------------------------------


def test_a_fit_in_float32_stays_there(ppl):
    with ppl.precision("float32"):
        result = ppl.fit(models.location(ppl), ppl.array(models.Y), effort="quick")
        assert result.converged
        assert ppl.dtype(result.family.loc) == "float32"
        loc = ppl.numpy(result.family.loc)[0]
        assert loc == pytest.approx(models.LOCATION_MEAN, abs=1e-3)


def _regression(ppl, X, y, prior, noise):
    """In float32, and its exact posterior and evidence by the design of all columns."""

    def model(X, y, prior):
        with ppl.plate("columns", len(prior)):
            weights = ppl.sample("weights", ppl.dist.Normal(ppl.array(0.0), prior))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Normal(X @ weights, noise), obs=y)

    with ppl.precision("float32"):
        result = ppl.fit(model, *map(ppl.array, (X, y, prior)), effort="quick")
        mean, sds = (
            ppl.numpy(one).astype(float) for one in (result.family.mean, result.family.stddev)
        )
    precision = X.T @ X / noise**2 + np.diag(prior**-2.0)
    exact = np.linalg.solve(precision, X.T @ y / noise**2)
    squares = (y @ y - exact @ X.T @ y) / noise**2
    logs = np.log(2 * np.pi * noise**2) * len(y) + 2 * np.log(prior).sum()
    evidence = -0.5 * (squares + logs + np.linalg.slogdet(precision)[1])
    return result, mean, sds, exact, np.linalg.inv(precision).diagonal() ** 0.5, evidence


@SLOW_IN_NUMPYRO
def test_float32_is_enough_for_two_hundred_scales_and_responses_in_thousands(ppl):
    """Columns between 0.01 and 100; measured: 0.003 sds, 0.0007 nats."""
    rng = np.random.default_rng(1)
    scales = np.concatenate([[1.0], 10.0 ** rng.uniform(-2.0, 2.0, 200)])
    X = np.column_stack([np.ones(600), rng.normal(size=(600, 200)) * scales[1:]])
    y = 3000.0 + X[:, 1:] @ (70.0 * rng.normal(size=200) / scales[1:]) + rng.normal(0, 200, 600)
    prior = np.where(np.arange(201) == 0, 1e4, 1e3 / scales)
    result, mean, sds, exact, exact_sds, evidence = _regression(ppl, X, y, prior, 200.0)
    assert result.converged
    assert (abs(mean - exact) < 0.05 * exact_sds).all()
    np.testing.assert_allclose(sds, exact_sds, rtol=0.01)
    assert abs(result.bound - evidence) < 0.05


@pytest.mark.slow
def test_float32_is_enough_for_a_sum_over_many_rows(ppl):
    """Of 200,000 terms, whose sum has steps of 0.03 nats; measured: 0.002."""
    rng = np.random.default_rng(2)
    X = np.column_stack([np.ones(200_000), rng.normal(size=(200_000, 3))])
    y = X @ [5.0, 1.0, 1.0, 1.0] + rng.normal(size=len(X))
    result, mean, _, exact, exact_sds, evidence = _regression(ppl, X, y, np.full(4, 10.0), 1.0)
    assert result.converged
    assert (abs(mean - exact) < 0.05 * exact_sds).all()
    assert abs(result.bound - evidence) < 0.05


# -- Pyro's parameter store, random numbers and factorisations ------------------------


@pytest.fixture
def pyro(pyro_backend):
    return pyro_backend


def test_the_guide_and_the_store_end_at_the_result_whatever_was_there(pyro):
    def other():
        pyro.sample("z", pyro.dist.Normal(pyro.array(np.ones(7)), 3.0).to_event(1))

    model, args = conjugate(pyro)
    first = pyro.fit(other, effort="quick")
    result = pyro.fit(model, *args, effort="quick")
    assert (first.family.dim, result.family.dim) == (7, 3)
    store = pyro.lib.get_param_store()
    assert set(result.params) == set(store.keys())
    for name, value in result.params.items():
        np.testing.assert_array_equal(pyro.numpy(store[name]), pyro.numpy(value))
    live = result.guide.posterior.family().loc
    np.testing.assert_array_equal(pyro.numpy(live), pyro.numpy(result.family.loc))


def test_the_store_is_as_it_was_after_an_error(pyro):
    before = pyro.fit(models.location(pyro), pyro.array(models.Y), effort="quick").params

    def wrong():
        pyro.sample("z", pyro.dist.Normal(0.0, 1.0))
        raise RuntimeError("in the model")

    with pytest.raises(RuntimeError, match="in the model"):
        pyro.fit(wrong)
    for name, value in pyro.lib.get_param_store().items():
        np.testing.assert_array_equal(pyro.numpy(value), pyro.numpy(before[name]))


def test_random_numbers_and_dtypes_are_the_users(pyro):
    import torch

    model, args = models.location(pyro), (pyro.array(models.Y),)

    def run(**options):
        options = {"progress_bar": False, "curvature": "stein", "effort": "quick", **options}
        return pyro.package.fit(model, *args, **options).bound

    torch.manual_seed(3)
    torch.randint(2**32, (4,))
    expected = torch.get_rng_state()
    pyro.lib.set_rng_seed(3)
    first = run()
    assert torch.equal(torch.get_rng_state(), expected)
    assert torch.get_default_dtype() is torch.float64
    pyro.lib.set_rng_seed(3)
    assert run() == first != run()


def test_a_matrix_that_is_not_definite_ends_no_fit(pyro):
    import torch

    def model(y):
        scale = pyro.sample("scale", pyro.dist.Normal(torch.tensor(0.0), 1.0))
        matrix = torch.eye(2) + scale * torch.ones(2, 2)  # of no density below -1/2
        pyro.sample("y", pyro.dist.MultivariateNormal(torch.zeros(2), matrix), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = pyro.fit(model, torch.ones(2), max_steps=30, effort="quick")
    assert len(result.trace) > 0
    assert finite(pyro, result)
