"""What ArviZ gets of a result, and that its functions take it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from ngvi.inference.draws.diagnostics import undefined
from tests import models
from tests.inference.results import conjugate, conjugate_result, result
from tests.ppl import SLOW_IN_NUMPYRO

NAMES = ["a", "b", "c", "d"]


@pytest.fixture(scope="module")
def arviz():
    return pytest.importorskip("arviz")


def hierarchy(ppl):
    X, group, y = models.data()
    return result(ppl, models.hierarchy(ppl), (ppl.array(X), ppl.index(group), ppl.array(y)))


@SLOW_IN_NUMPYRO
def test_all_groups_are_there_with_dimensions_from_plates(ppl, arviz):
    fitted = hierarchy(ppl)
    data = fitted.to_arviz(40, coords={"groups": NAMES}, dims={"X": ["data", "column"]})
    X, group, y = models.data()
    assert data["posterior"]["effect"].dims == ("chain", "draw", "groups")
    assert list(data["posterior"]["groups"].values) == NAMES
    for name in ("log_likelihood", "posterior_predictive", "prior_predictive"):
        assert data[name]["y"].dims == ("chain", "draw", "data")
        assert data[name]["y"].shape == (1, 40, len(y))
    assert set(data["prior"].data_vars) >= {"sigma", "weights", "centre", "effect"}
    assert data["observed_data"]["y"].dims == ("data",)
    assert data["constant_data"]["X"].dims == ("data", "column")
    assert set(data["constant_data"].data_vars) == {"X", "group"}
    draws = {k: v[0].values for k, v in data["posterior"].data_vars.items()}
    mean = draws["weights"] @ X.T + draws["effect"][:, group]
    scale = draws["sigma"][:, None]
    expected = -0.5 * ((y - mean) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(data["log_likelihood"]["y"][0], expected, rtol=1e-6)
    replicated = data["posterior_predictive"]["y"][0] - mean
    assert 0.8 < replicated.std() < 1.4
    assert "left_out" not in data["posterior"].attrs


@pytest.mark.fast_in_numpyro
def test_its_functions_take_it(ppl, arviz):
    if not arviz.__version__.startswith("0."):
        pytest.skip("of ArviZ 0")
    pytest.importorskip("matplotlib").use("agg")
    data = conjugate_result(ppl).to_arviz(200)
    found = arviz.loo(data, pointwise=True)
    assert found.elpd_loo < 0 and found.loo_i.shape == (models.NUM_DATA,)
    table = arviz.compare({"one": data, "other": data})
    assert set(table.index) == {"one", "other"}
    arviz.plot_ppc(data)
    arviz.plot_forest(data)


def test_groups_that_a_model_does_not_have_are_left_out_and_it_says_why(ppl, arviz):
    def model(y):
        dist = ppl.dist
        mu = ppl.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", dist.Normal(mu, 1.0), obs=y)

    fitted = result(ppl, model, (ppl.array(models.Y),))
    data = fitted.to_arviz(5)
    assert "prior" not in data and "log_likelihood" in data
    assert "prior" in data["posterior"].attrs["left_out"]
    bare = fitted.to_arviz(5, log_likelihood=False, predictive=False, prior=False)
    assert not {"log_likelihood", "posterior_predictive", "prior"} & set(_groups(bare))


@SLOW_IN_NUMPYRO
def test_a_model_with_discrete_latents_has_no_log_likelihood_of_draws(ppl, arviz):
    X, group, y = models.data()
    args = (ppl.array(X), ppl.index(group), ppl.array(y))
    data = result(ppl, models.mixture(ppl), args).to_arviz(3, prior=False)
    assert "log_likelihood" not in data and "posterior_predictive" in data
    assert "component" in data["posterior"].attrs["left_out"]


def _groups(data):
    return data.groups() if hasattr(data, "groups") and callable(data.groups) else data.children


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"coords": {"group": NAMES}}, "coords= has 4 labels of 'group'; the axes with names are"),
        ({"coords": {"groups": NAMES[1:]}}, "coords= has 3 labels of 'groups'; the axes"),
        ({"dims": {"effects": ["groups"]}}, "dims= gives 'effects' the axes ['groups']; shapes"),
        ({"dims": {"effect": ["a", "b"]}}, "gives 'effect' the axes ['a', 'b']"),
    ],
)
def test_names_that_fit_nothing_are_refused(options, words, pyro_backend, arviz):
    fitted = hierarchy(pyro_backend)
    with pytest.raises(ValueError, match=re.escape(words)):
        fitted.to_arviz(2, log_likelihood=False, predictive=False, prior=False, **options)


# -- the summary ----------------------------------------------------------------------


def test_the_summary_says_how_far_off_its_numbers_may_be(ppl):
    pytest.importorskip("pandas")
    mean, covariance, _ = models.exact_posterior()
    exact = conjugate_result(ppl).summary()
    assert list(exact.columns) == ["mean", "sd", "5%", "95%", "mean_error", "sd_error"]
    assert list(exact.index) == [f"weights[{i}]" for i in range(3)]
    np.testing.assert_allclose(exact["mean"], mean, atol=0.02)
    np.testing.assert_allclose(exact["sd"], np.sqrt(np.diag(covariance)), rtol=0.05)
    assert exact[["mean_error", "sd_error"]].max().max() < 0.05
    ppl.forget()
    shifted = conjugate_result(ppl, shift=0.3).summary("weights", prob=0.5)
    assert list(shifted.columns)[2:4] == ["25%", "75%"]
    np.testing.assert_allclose(shifted["mean_error"], 0.3, atol=0.15)


@SLOW_IN_NUMPYRO
def test_a_summary_is_of_sites_in_their_own_space(ppl):
    pytest.importorskip("pandas")
    fitted = hierarchy(ppl)
    table = fitted.summary(["weights", "sigma"])
    assert list(table.index) == ["weights[0]", "weights[1]", "weights[2]", "sigma"]
    labels = {"coords": {"groups": NAMES, "x": [5, 6, 7]}, "dims": {"weights": ["x"]}}
    named = fitted.summary(["effect", "weights"], **labels)
    assert list(named.index) == [f"effect[{i}]" for i in NAMES] + [
        f"weights[{i}]" for i in (5, 6, 7)
    ]
    np.testing.assert_array_equal(named[4:], table[:3])
    with pytest.raises(ValueError, match="coords= has 3 labels of 'groups'; the axes"):
        fitted.summary(coords={"groups": NAMES[1:]})
    assert table["mean"][:3].sum() == pytest.approx(1.0)
    assert table.loc["sigma", "5%"] > 0


@pytest.mark.parametrize("why", ["minibatches", "each worker has a part of the rows"])
def test_a_summary_without_weights_of_all_data_says_why(pyro_backend, why):
    pytest.importorskip("pandas")
    options = {"subsample_size": 5} if why == "minibatches" else {}
    model, args = conjugate(pyro_backend)
    fitted = result(pyro_backend, model, args, options)
    if not options:
        vars(fitted)["diagnostics"] = undefined(why)
    table = fitted.summary()
    assert table[["mean_error", "sd_error"]].isna().all().all()
    assert table["sd"].min() > 0 and why in table.attrs["note"]


def test_notebooks_get_tables(ppl):
    fitted = conjugate_result(ppl)
    assert "<table>" in fitted._repr_html_() and "within 0.02 nats" in fitted._repr_html_()
