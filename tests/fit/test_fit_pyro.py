"""What fit does to and with Pyro: the parameter store, random numbers, partners, minibatches."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tests.fit.results import Ppl, data, exact_posterior, log_evidence

torch = pytest.importorskip("torch")
pyro = pytest.importorskip("pyro")

from pyro import distributions as dist  # noqa: E402
from pyro.infer.autoguide import AutoDelta, AutoGuideList  # noqa: E402

from pyro_ngvi import NaturalGaussianGuide, families, fit  # noqa: E402


@pytest.fixture
def conjugate(pyro_backend):
    return Ppl(pyro_backend).conjugate()


def quiet_fit(*args, **options):
    options.setdefault("progress_bar", False)
    return fit(*args, **options)


def moments(result):
    return result.family.mean.numpy(), result.family.covariance_matrix.numpy()


def test_a_conjugate_model_gets_its_exact_posterior(conjugate):
    model, args = conjugate
    result = quiet_fit(model, *args)
    assert result.converged
    for actual, expected in zip(moments(result), exact_posterior(), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-4)
    assert result.bound == pytest.approx(log_evidence(), abs=0.01)
    assert result.num_evaluations == result.num_gradients > 0


@pytest.mark.parametrize("curvature", ["hessian", "stein"])
def test_other_curvatures_converge_as_well(conjugate, curvature):
    model, args = conjugate
    result = quiet_fit(model, *args, curvature=curvature)
    assert result.converged
    assert result.bound == pytest.approx(log_evidence(), abs=0.1)
    assert (result.num_hessian_products > 0) == (curvature == "hessian")


def test_the_guide_and_the_store_end_at_the_result(conjugate):
    model, args = conjugate
    result = quiet_fit(model, *args)
    store = pyro.get_param_store()
    assert set(result.params) == set(store.keys())
    for name, value in result.params.items():
        torch.testing.assert_close(store[name].detach(), value)
    torch.testing.assert_close(result.guide.posterior.family().loc.detach(), result.family.loc)


def test_a_fit_starts_anew_whatever_is_in_the_store(conjugate):
    model, args = conjugate

    def other():
        pyro.sample("z", dist.Normal(torch.ones(7), 3.0).to_event(1))

    first = quiet_fit(other)
    second = quiet_fit(model, *args)
    assert (first.family.dim, second.family.dim) == (7, 3)
    assert second.converged


def test_the_store_is_as_it_was_after_an_error(conjugate):
    model, args = conjugate
    before = quiet_fit(model, *args).params

    def wrong():
        pyro.sample("z", dist.Normal(0.0, 1.0))
        raise RuntimeError("in the model")

    with pytest.raises(RuntimeError, match="in the model"):
        quiet_fit(wrong)
    for name, value in pyro.get_param_store().items():
        torch.testing.assert_close(value.detach(), before[name])


def test_a_result_is_where_the_next_fit_goes_on(conjugate):
    model, args = conjugate
    with pytest.warns(UserWarning, match="has not converged"):
        first = quiet_fit(model, *args, max_steps=1)
    assert not first.converged
    quiet_fit(lambda: pyro.sample("z", dist.Normal(torch.zeros(3), 1.0).to_event(1)))
    second = quiet_fit(model, *args, init=first)
    assert second.converged
    third = quiet_fit(model, *args, init=second)
    assert third.num_steps < second.num_steps
    with pytest.raises(ValueError, match="same latents"):
        quiet_fit(
            lambda: pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1)), init=first
        )


def test_the_options_of_a_family_survive_init(pyro_backend):
    def model():
        pyro.sample("z", dist.Normal(torch.zeros(6), torch.arange(1.0, 7.0)).to_event(1))

    first = quiet_fit(model, family=families.LowRankPrecision(rank=2))
    again = quiet_fit(model, init=first)
    assert again.family.specification() == first.family.specification() or (
        repr(again.family.specification()) == repr(first.family.specification())
    )
    assert again.converged


def test_random_numbers_and_dtypes_are_the_users(conjugate):
    model, args = conjugate
    pyro.set_rng_seed(3)
    torch.randint(2**32, (4,))
    expected = torch.get_rng_state()
    pyro.set_rng_seed(3)
    first = quiet_fit(model, *args)
    assert torch.equal(torch.get_rng_state(), expected)
    assert torch.get_default_dtype() is torch.float64
    pyro.set_rng_seed(3)
    assert quiet_fit(model, *args).bound == first.bound
    assert quiet_fit(model, *args).bound != first.bound
    state = torch.get_rng_state()
    one, other = (quiet_fit(model, *args, deterministic=True) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert one.bound == other.bound


def test_a_fit_in_float32_stays_there():
    def model(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    result = quiet_fit(model, torch.tensor([0.5, 1.5, 1.0]))
    assert result.converged
    assert result.family.loc.dtype is torch.float32
    assert float(result.family.loc) == pytest.approx(0.75, abs=1e-3)


def test_parameters_of_the_model_are_fitted_too(pyro_backend):
    X, y = (torch.tensor(value) for value in data())

    def model(X, y):
        scale = pyro.param("scale", torch.tensor(2.0), dist.constraints.positive)
        weights = pyro.sample("weights", dist.Normal(torch.zeros(3), 2.0).to_event(1))
        with pyro.plate("data", len(X)):
            pyro.sample("y", dist.Normal(X @ weights, scale), obs=y)

    pyro.set_rng_seed(1)
    result = quiet_fit(model, X, y)
    assert result.converged
    assert 0.2 < float(result.params["scale"]) < 1.0
    assert result.bound > log_evidence() - 1.0


def test_partners_in_a_list_are_fitted_with_the_gaussian(conjugate):
    model, args = conjugate

    def with_offset(X, y):
        offset = pyro.sample("offset", dist.Normal(0.0, 1.0))
        model(X, y - offset)

    guide = AutoGuideList(with_offset)
    guide.append(AutoDelta(pyro.poutine.block(with_offset, expose=["offset"])))
    guide.append(NaturalGaussianGuide(pyro.poutine.block(with_offset, hide=["offset"])))
    result = quiet_fit(with_offset, *args, guide=guide)
    assert result.converged
    assert abs(float(result.params["AutoGuideList.0.offset"])) < 0.5


def test_minibatches_lead_to_the_posterior_of_all_data(conjugate):
    model, args = conjugate
    pyro.set_rng_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = quiet_fit(model, *args, subsample_size=6, max_steps=400)
    mean, covariance = exact_posterior()
    sds = np.sqrt(np.diag(covariance))
    assert (np.abs(moments(result)[0] - mean) < 0.5 * sds).all()
    np.testing.assert_allclose(np.sqrt(np.diag(moments(result)[1])), sds, rtol=0.3)


def test_nan_in_the_data_is_a_verdict_and_names_the_site(conjugate):
    model, (X, y) = conjugate
    y = y.clone()
    y[0] = torch.nan
    with pytest.warns(UserWarning, match="not converged"):
        result = quiet_fit(model, X, y)
    assert not result.converged
    assert "'y'" in result.reason
    assert all(value.isfinite().all() for value in result.params.values())


def test_a_hopeless_start_is_rescued(pyro_backend):
    def model(y):
        rate = pyro.sample("rate", dist.Normal(torch.tensor(0.0), 100.0))
        pyro.sample("y", dist.Poisson((10.0 * rate).exp()), obs=y)

    start = pyro.infer.autoguide.initialization.init_to_value(values={"rate": torch.tensor(4.0)})
    result = quiet_fit(model, torch.tensor(3.0), init_loc_fn=start)
    assert result.converged
    assert float(result.family.loc) == pytest.approx(np.log(3.0) / 10, abs=0.05)


def test_an_interrupted_fit_keeps_what_it_has(pyro_backend, conjugate, monkeypatch):
    model, args = conjugate
    evaluator = pyro_backend.module("fit.evaluator").Evaluator
    measure, calls = evaluator.measure, []

    def interrupted(*arguments):
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(*arguments)

    monkeypatch.setattr(evaluator, "measure", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        result = quiet_fit(model, *args)
    assert not result.converged
    assert "init=result" in result.reason
    torch.testing.assert_close(result.guide.posterior.family().loc.detach(), result.family.loc)


def test_a_matrix_that_is_not_definite_ends_no_fit(pyro_backend):
    def model(y):
        scale = pyro.sample("scale", dist.Normal(torch.tensor(0.0), 1.0))
        matrix = torch.eye(2) + scale * torch.ones(2, 2)  # of no density below -1/2
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(2), matrix), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = quiet_fit(model, torch.ones(2))
    assert result.num_steps > 0
    assert all(value.isfinite().all() for value in result.params.values())


def test_bad_options_are_refused(conjugate):
    model, args = conjugate
    for options, message in (
        ({"tolerance": 0.0}, "tolerance"),
        ({"max_steps": 0}, "max_steps"),
        ({"curvature": "none"}, "curvature"),
        ({"family": "none"}, "family"),
        ({"guide": AutoDelta(model)}, "NaturalGaussianGuide"),
    ):
        with pytest.raises(ValueError, match=message):
            quiet_fit(model, *args, **options)
