"""Sites, leave-one-out and influence of results, in both packages."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from scipy.stats import multivariate_normal

from tests import models
from tests.inference.results import by_row, conjugate_result, result, shared_result
from tests.ppl import PPLS, SLOW_IN_NUMPYRO, load

arviz = pytest.importorskip("arviz")


def test_the_sites_of_a_conjugate_model_add_up_to_its_posterior(ppl):
    sites = shared_result(ppl).sites()
    mean, covariance, _ = models.exact_posterior()
    precision = np.linalg.inv(covariance)
    shift, total = sites.total()
    np.testing.assert_allclose(total, precision, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(shift, precision @ mean, rtol=1e-8, atol=1e-8)
    assert len(sites) == models.NUM_DATA and sites.predictors is not None
    X, y = models.regression_data()
    noise = models.NOISE_SCALE**2
    np.testing.assert_allclose(sites.precision(3), np.outer(X[3], X[3]) / noise, atol=1e-8)
    np.testing.assert_allclose(sites.shift(3), X[3] * y[3] / noise, atol=1e-8)


def test_leave_one_out_of_a_conjugate_model_is_exact(ppl):
    found = shared_result(ppl).loo()
    X, y = models.regression_data()
    exact = []
    for index in range(len(y)):
        keep = np.arange(len(y)) != index
        mean, covariance, _ = models.exact_posterior(X[keep], y[keep])
        variance = X[index] @ covariance @ X[index] + models.NOISE_SCALE**2
        residual = y[index] - X[index] @ mean
        exact.append(-0.5 * (residual**2 / variance + np.log(2 * np.pi * variance)))
    pointwise = by_row(found)
    np.testing.assert_allclose(pointwise.values, exact, atol=1e-8)
    assert pointwise.dims == ("data",)
    good = pointwise.coords["psis_k"].values < 0.5
    assert good.sum() > 5
    np.testing.assert_allclose(
        pointwise.coords["psis"].values[good], np.array(exact)[good], atol=0.05
    )


@SLOW_IN_NUMPYRO
def test_rows_count_as_often_as_their_scale_says(ppl):
    X, y = models.regression_data()
    weights = np.where(np.arange(len(y)) % 2, 0.5, 2.0)

    def model(X, y, weights):
        beta = ppl.sample("beta", ppl.dist.Normal(ppl.array(np.zeros(3)), 1.0).to_event(1))
        with ppl.plate("data", len(y)), ppl.handlers.scale(scale=weights):
            ppl.sample("y", ppl.dist.Normal(X @ beta, 0.5), obs=y)

    def exact(weights):
        precision = np.eye(3) + 4.0 * X.T @ (weights[:, None] * X)
        covariance = np.linalg.inv(precision)
        return covariance @ X.T @ (4.0 * weights * y), covariance

    mean, covariance = exact(weights)
    args = tuple(map(ppl.array, (X, y, weights)))
    fitted = result(ppl, model, args, at=(mean, np.linalg.cholesky(covariance)))
    shift, precision = fitted.sites().total()
    np.testing.assert_allclose(precision, np.linalg.inv(covariance), rtol=1e-6)
    np.testing.assert_allclose(shift, precision @ mean, rtol=1e-6)
    fewer = fitted.without([3, 4])
    wanted = exact(np.where(np.isin(np.arange(len(y)), [3, 4]), 0.0, weights))
    np.testing.assert_allclose(ppl.numpy(fewer.posterior.mean), wanted[0], atol=1e-6)
    np.testing.assert_allclose(ppl.numpy(fewer.family.covariance_matrix), wanted[1], atol=1e-6)
    again = fewer.update(*(array[3:5] for array in args))
    np.testing.assert_allclose(ppl.numpy(again.posterior.mean), mean, atol=1e-6)


@SLOW_IN_NUMPYRO
@pytest.mark.parametrize("how", ["handler", "distribution"])
def test_what_a_mask_leaves_out_is_no_observation(ppl, how):
    X, y = models.regression_data()
    seen = np.arange(len(y)) % 4 > 0

    def model(X, y, seen):
        beta = ppl.sample("beta", ppl.dist.Normal(ppl.array(np.zeros(3)), 1.0).to_event(1))
        fn = ppl.dist.Normal(X @ beta, 0.5)
        with ppl.plate("data", len(y)):
            if how == "handler":
                with ppl.handlers.mask(mask=seen):
                    ppl.sample("y", fn, obs=y)
            else:
                ppl.sample("y", fn.mask(seen), obs=y)

    def loo(rows):
        posterior = models.exact_posterior(X[seen], y[seen])
        at = posterior[0], np.linalg.cholesky(posterior[1])
        args = ppl.array(X[rows]), ppl.array(y[rows]), ppl.array(seen[rows], "bool")
        return result(ppl, model, args, at=at).loo()

    found, wanted = loo(np.full(len(y), True)), loo(seen)
    assert found.n_data_points == wanted.n_data_points == seen.sum()
    for name in ("elpd_loo", "se", "p_loo") if hasattr(found, "elpd_loo") else ("elpd", "se", "p"):
        assert found[name] == pytest.approx(wanted[name], abs=1e-6)
    pointwise = by_row(found)
    np.testing.assert_allclose(pointwise.values[~seen], 0.0, atol=1e-12)
    assert set(pointwise.coords["how"].values[~seen]) == {"masked"}
    for k_hat in (found.pareto_k, pointwise.coords["psis_k"]):
        assert (k_hat.values[~seen] == 0).all()


@pytest.mark.fast_in_numpyro
def test_the_density_of_a_row_far_from_what_the_others_say_is_called_unreliable(ppl):
    x = np.append(np.linspace(-1.0, 1.0, 15), 3.0)
    y = 2.0 * x + 0.3 * np.cos(9.0 * x)
    y[-1] -= 4.0

    def model(x, y):
        slope = ppl.sample("slope", ppl.dist.Normal(ppl.array(0.0), 10.0))
        scale = ppl.sample("scale", ppl.dist.HalfNormal(ppl.array(3.0)))
        with ppl.plate("data", len(y)):
            ppl.sample("y", ppl.dist.Normal(slope * x, scale), obs=y)

    args = ppl.array(x), ppl.array(y)
    found = ppl.package.fit(model, *args, draws="gaussian", progress_bar=False).loo()
    assert (found.pareto_k.values > 0.7).tolist() == [False] * 15 + [True]
    assert "1 of 16 densities may be off" in by_row(found).attrs["note"]


def nested(ppl, centre_scale=3.0, spread=1.5, noise=0.5):
    def model(group, y):
        dist = ppl.dist
        centre = ppl.sample("centre", dist.Normal(ppl.array(0.0), centre_scale))
        with ppl.plate("groups", 3):
            effect = ppl.sample("effect", dist.Normal(centre, spread))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", dist.Normal(effect[..., group], noise), obs=y)

    group = np.repeat(np.arange(3), 2)
    y = np.array([0.4, 1.1, -0.3, 0.2, 2.0, 1.7])
    design = np.eye(3)[group]
    prior = spread**2 * np.eye(3) + centre_scale**2
    marginal = design @ prior @ design.T + noise**2 * np.eye(6)
    precision = np.zeros((4, 4))
    precision[0, 0] = centre_scale**-2 + 3 * spread**-2
    precision[0, 1:] = precision[1:, 0] = -(spread**-2)
    precision[1:, 1:] = spread**-2 * np.eye(3) + noise**-2 * design.T @ design
    mean = np.linalg.solve(precision, np.r_[0.0, noise**-2 * design.T @ y])
    at = mean, np.linalg.cholesky(np.linalg.inv(precision))
    args = ppl.index(group), ppl.array(y)
    return result(ppl, model, args, at=at), group, y, marginal


@SLOW_IN_NUMPYRO
def test_groups_are_left_out_by_the_name_of_their_plate(ppl):
    fitted, group, y, marginal = nested(ppl)
    found = fitted.loo("groups")
    everything = multivariate_normal(cov=marginal).logpdf(y)
    exact = [
        everything - multivariate_normal(cov=marginal[np.ix_(k, k)]).logpdf(y[k])
        for k in (group != g for g in range(3))
    ]
    pointwise = by_row(found)
    np.testing.assert_allclose(pointwise.values, exact, atol=1e-3)
    assert pointwise.dims == ("groups",)
    rows = fitted.loo()
    pointwise = by_row(rows)
    assert "plate='groups' leaves out all rows of an element" in pointwise.attrs["note"]
    shifts = fitted.influence("groups").shifts
    assert set(shifts) == {"centre", "effect"}


def crossed(ppl, shape=(4, 3), noise=0.7):
    y = np.random.default_rng(0).normal(size=shape)

    def model(y):
        dist = ppl.dist
        people, days = ppl.plate("people", shape[1], dim=-1), ppl.plate("days", shape[0], dim=-2)
        centre = ppl.sample("centre", dist.Normal(ppl.array(0.0), 2.0))
        with people:
            of_person = ppl.sample("of_person", dist.Normal(ppl.array(0.0), 1.0))
        with days:
            of_day = ppl.sample("of_day", dist.Normal(ppl.array(0.0), 1.0))
        with people, days:
            ppl.sample("y", dist.Normal(centre + of_person + of_day, noise), obs=y)

    day, person = np.indices(shape).reshape(2, -1)
    design = np.concatenate([np.ones((y.size, 1)), np.eye(shape[1])[person]], 1)
    design = np.concatenate([design, np.eye(shape[0])[day]], 1)
    prior = np.diag([4.0, *np.ones(sum(shape))])

    def posterior(kept):
        precision = np.linalg.inv(prior) + design[kept].T @ design[kept] / noise**2
        mean = np.linalg.solve(precision, design[kept].T @ y.ravel()[kept]) / noise**2
        return mean, np.linalg.cholesky(np.linalg.inv(precision))

    marginal = design @ prior @ design.T + noise**2 * np.eye(y.size)
    fitted = result(ppl, model, (ppl.array(y),), at=posterior(np.full(y.size, True)))
    return fitted, y.ravel(), marginal, posterior, day


@SLOW_IN_NUMPYRO
def test_rows_of_crossed_plates_are_numbered_as_the_data(ppl):
    fitted, y, marginal, posterior, day = crossed(ppl)
    everything = multivariate_normal(cov=marginal).logpdf(y)

    def exact(label):
        kept = [label != one for one in np.unique(label)]
        parts = (multivariate_normal(cov=marginal[np.ix_(k, k)]).logpdf(y[k]) for k in kept)
        return [everything - part for part in parts]

    for found, label in ((fitted.loo(), np.arange(len(y))), (fitted.loo("days"), day)):
        pointwise = by_row(found)
        np.testing.assert_allclose(pointwise.values.ravel(), exact(label), atol=1e-8)
    fewer = fitted.without([5])
    mean, _ = posterior(np.arange(len(y)) != 5)
    np.testing.assert_allclose(ppl.numpy(fewer.posterior.mean), mean, atol=1e-8)


@SLOW_IN_NUMPYRO
def test_observed_sites_of_one_plate_are_left_out_together(ppl):
    y, z = np.random.default_rng(1).normal(size=(2, 5))

    def model(y, z):
        dist, zero = ppl.dist, ppl.array(0.0)
        a, b = (ppl.sample(name, dist.Normal(zero, 2.0)) for name in "ab")
        with ppl.plate("rows", len(y)):
            ppl.sample("y", dist.Normal(a, 1.0), obs=y)
            ppl.sample("z", dist.Normal(a + b, 0.5), obs=z)

    design = np.concatenate([np.tile([1.0, 0.0], (5, 1)), np.tile([1.0, 1.0], (5, 1))])
    noise, both = np.diag(np.r_[np.ones(5), np.full(5, 0.25)]), np.r_[y, z]
    marginal = 4.0 * design @ design.T + noise
    precision = np.eye(2) / 4.0 + design.T @ np.linalg.solve(noise, design)
    mean = np.linalg.solve(precision, design.T @ np.linalg.solve(noise, both))
    at = mean, np.linalg.cholesky(np.linalg.inv(precision))
    found = result(ppl, model, (ppl.array(y), ppl.array(z)), at=at).loo()
    everything = multivariate_normal(cov=marginal).logpdf(both)
    kept = [np.tile(np.arange(5), 2) != row for row in range(5)]
    exact = [
        everything - multivariate_normal(cov=marginal[np.ix_(k, k)]).logpdf(both[k]) for k in kept
    ]
    pointwise = by_row(found)
    np.testing.assert_allclose(pointwise.values, exact, atol=1e-8)


def test_both_packages_have_the_same_numbers():
    X, y = models.logistic_data()
    rng = np.random.default_rng(0)
    at = rng.normal(size=3), np.tril(rng.normal(size=(3, 3))) + 2 * np.eye(3)
    found = []
    for name in PPLS:
        ppl = load(name)
        with ppl.float64():
            fitted = result(ppl, models.logistic(ppl), (ppl.array(X), ppl.array(y)), at=at)
            loo, moved = fitted.loo(), fitted.influence()
            values = by_row(loo)
            found.append([values.values, loo.pareto_k.values, moved.divergence, loo.se])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


# -- what is refused ------------------------------------------------------------------


def bare(ppl, body, *args):
    def model(*args):
        x = ppl.sample("x", ppl.dist.Normal(ppl.array(0.0), 1.0))
        body(x, *args)

    return result(ppl, model, args)


def test_a_likelihood_outside_of_plates_is_told_how_to_be_written(ppl):
    y = ppl.array([0.5, 1.0])
    fitted = bare(ppl, lambda x: ppl.sample("y", ppl.dist.Normal(x, 1.0).expand([2]), obs=y))
    with pytest.raises(ValueError, match=r"'y' is in no plate.*plate\('rows', len\(y\)\)"):
        fitted.loo()


def test_a_factor_has_no_rows(ppl):
    fitted = bare(ppl, lambda x: ppl.factor("penalty", -(x**2)))
    with pytest.raises(ValueError, match="its likelihood is in the factor 'penalty'"):
        fitted.sites()


@pytest.mark.fast_in_numpyro("1-*")
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("others", "There is no plate 'others' around all observed sites"),
        (None, "'a' in 'some'; 'b' in 'others'"),
    ],
)
@pytest.mark.parametrize("num_a", [1, 2])
def test_observed_sites_in_no_plate_together_have_no_rows(ppl, num_a, rows, words):
    def model():
        m = ppl.sample("m", ppl.dist.Normal(ppl.array(0.0), 1.0))
        for plate, site, size in (("some", "a", num_a), ("others", "b", 3)):
            with ppl.plate(plate, size):
                ppl.sample(site, ppl.dist.Normal(m, 1.0), obs=ppl.array(np.ones(size)))

    with pytest.raises(ValueError, match=words):
        result(ppl, model).loo(rows)


def test_a_mixture_has_a_summary_and_no_natural_parameters_to_subtract(pyro_backend):
    ppl = pyro_backend
    model, args = models.regression(ppl), tuple(map(ppl.array, models.regression_data()))
    guide = ppl.guide(model, ppl.families.Mixture("full", 2))
    mixed = result(ppl, model, args, guide=guide)
    assert len(mixed.summary()) == 3
    for asked in (mixed.sites, mixed.loo, lambda: mixed.without(0), lambda: mixed.update(*args)):
        with pytest.raises(ValueError, match="needs one Gaussian"):
            asked()


@pytest.mark.fast_in_numpyro
def test_a_model_of_discrete_latents_has_no_rows(ppl):
    X, group, y = models.data()
    args = tuple(map(ppl.argument, (X, group, y)))
    with pytest.raises(ValueError, match="sums out discrete latents"):
        result(ppl, models.mixture(ppl), args).loo()


@pytest.mark.fast_in_numpyro
def test_rows_may_have_no_predictors_of_their_own(ppl):
    """Counts of equal mean and dispersion: the model computes with numbers, not with rows."""
    y = np.repeat([0.0, 1.0, 2.0, 3.0, 4.0], [109, 65, 22, 3, 1])

    def counts(y):
        mean = ppl.sample("mean", ppl.dist.HalfNormal(ppl.array(5.0)))
        size = ppl.sample("size", ppl.dist.LogNormal(ppl.array(2.0), 1.0))
        if ppl.is_numpyro:
            of_rows = ppl.dist.NegativeBinomial2(mean, size)
        else:
            of_rows = ppl.dist.NegativeBinomial(size, logits=ppl.np.log(mean / size))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", of_rows, obs=y)

    with ppl.float64():
        fitted = ppl.fit(counts, ppl.array(y), effort="quick", draws="gaussian")
        mean, size = fitted.summary()["mean"][["mean", "size"]]
        at_mean = stats.nbinom.logpmf(y, size, size / (size + mean)).sum()
        found = fitted.loo()
        elpd = found["elpd_loo" if hasattr(found, "elpd_loo") else "elpd"]
        assert elpd == pytest.approx(at_mean, abs=3.0)


def test_missing_data_are_counted(ppl):
    fitted = conjugate_result(ppl)
    X, y = fitted.args
    y = ppl.numpy(y).copy()
    y[4] = np.nan
    with pytest.raises(ValueError, match=r"site 'y' holds NaN at 1 of 12 places, .* is \[4\]"):
        fitted.update(X, ppl.array(y))
    fitted.args = X, ppl.array(y)
    words = "1 of 12 log likelihoods of 'y' are NaN or minus infinity.*first at 4"
    with pytest.raises(ValueError, match=words):
        fitted.loo()


def test_missing_data_under_a_mask_are_told_or_do_not_count(ppl):
    def model(y, seen):
        m = ppl.sample("m", ppl.dist.Normal(ppl.array(0.0), 2.0))
        with ppl.plate("rows", len(y)), ppl.handlers.mask(mask=seen):
            ppl.sample("y", ppl.dist.Normal(m, 1.0), obs=y)

    y, seen = np.array([0.3, np.nan, -0.4, 1.2]), ppl.array([1, 0, 1, 1], "bool")
    at = np.array([1.1 / 3.25]), np.array([[3.25**-0.5]])
    fitted = result(ppl, model, (ppl.array(np.nan_to_num(y)), seen), at=at)
    wanted = fitted.influence().divergence
    fitted.args = ppl.array(y), seen
    if ppl.is_numpyro:  # whose masks hide derivatives as well
        np.testing.assert_allclose(fitted.influence().divergence, wanted, atol=1e-8)
        return
    with pytest.raises(ValueError, match=r"1 of 4 log likelihoods of 'y' are NaN.*first at 1"):
        fitted.influence()


def test_minibatches_are_no_rows(ppl):
    fitted = conjugate_result(ppl)
    fitted.args = (*fitted.args, models.SUBSAMPLE)
    with pytest.raises(ValueError, match="the model sees minibatches: give it all rows"):
        fitted.loo()


def test_arviz_1_gets_its_own_class(pyro_backend, monkeypatch):
    fields = [
        "kind",
        "elpd",
        "se",
        "p",
        "n_samples",
        "n_data_points",
        "scale",
        "warning",
        "good_k",
        "elpd_i",
        "pareto_k",
    ]
    own = dataclasses.make_dataclass("ELPDDataLOO", fields, kw_only=True)
    fitted = shared_result(pyro_backend)
    before = fitted.loo()
    monkeypatch.setitem(sys.modules, "arviz", SimpleNamespace(__version__="1.3.0"))
    utils = SimpleNamespace(ELPDData=object, ELPDDataLOO=own)
    monkeypatch.setitem(sys.modules, "arviz_stats", SimpleNamespace(utils=utils))
    found = fitted.loo()
    assert isinstance(found, own) and found.kind == "loo"
    pointwise = by_row(before)
    np.testing.assert_allclose(found.elpd_i, pointwise)
    assert found.elpd == pytest.approx(pointwise.values.sum())


@SLOW_IN_NUMPYRO
def test_a_result_of_what_has_changed_since_the_fit_says_so(ppl):
    offset, y = [0.0], np.linspace(0.0, 4.0, 12)

    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 5.0))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Normal(mu + offset[0], 1.0), obs=y)

    fitted = ppl.fit(model, ppl.array(y), effort="quick", progress_bar=False)
    # Nothing has changed.
    for ask in (fitted.summary, fitted.loo, fitted.predictive, lambda: fitted.without(0)):
        ask()
    fitted.update(ppl.array(y + 0.1))
    offset[0] = 100.0
    for name, *args in [("predictive",), ("loo",), ("without", 0), ("whitened_density",)]:
        with pytest.warns(UserWarning, match=r"posterior's mean is -[\d,.]+ nats, and at the fit"):
            getattr(fitted, name)(*args)
