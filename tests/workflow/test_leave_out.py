"""Sites, leave-one-out and influence on rows of numpy, beside exact refits."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm

from ngvi.estimators.nodes import TermMoments
from ngvi.latents.layout import Site
from ngvi.workflow.climb import climb
from ngvi.workflow.elpd import note
from ngvi.workflow.gaussian import DenseGaussian
from ngvi.workflow.influence import influence
from ngvi.workflow.loo import leave_out
from ngvi.workflow.sites import Sites
from ngvi.workflow.target import Target
from ngvi.workflow.units import Units
from tests.workflow.numpy_rows import LogisticRows, fitted, logistic_data, target, units


def refit(X, y, index):
    """The log predictive density of a row under the posterior that is fitted without it."""
    keep = np.arange(len(y)) != index
    q = fitted(target(LogisticRows(X[keep], y[keep])))
    mean, sd = X[index] @ q.mean, np.linalg.norm(X[index] @ q.factor)
    sign = 2 * y[index] - 1
    found = quad(lambda z: expit(sign * (mean + sd * z)) * norm.pdf(z), -9, 9, limit=200)
    return np.log(found[0])


def without_rows(of, rows):
    """The target in which these rows do not count."""
    return dataclasses.replace(of, weights=np.where(rows, 0.0, of.weights))


@pytest.fixture(scope="module", params=[False, True], ids=["logistic", "separable"])
def logistic(request):
    X, y = logistic_data(request.param)
    rows = LogisticRows(X, y)
    of = target(rows)
    return request.param, X, y, of, fitted(of), units(rows)


def test_sites_and_the_prior_add_up_to_the_posterior(logistic):
    _, _, _, of, q, by_row = logistic
    sites = Sites.of(of, q, by_row)
    shift, precision = sites.total()
    np.testing.assert_allclose(precision, q.precision, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(shift, q.precision @ q.mean, rtol=1e-3, atol=1e-5)
    by_hand = sum(sites.precision(row) for row in range(len(sites))) + sites.prior.curvature
    np.testing.assert_allclose(by_hand, precision, rtol=1e-10)
    by_hand = sum(sites.shift(row) for row in range(len(sites)))
    prior = sites.prior.gradient + sites.prior.curvature @ q.mean
    np.testing.assert_allclose(by_hand + prior, shift, rtol=1e-8, atol=1e-10)


def test_leave_one_out_is_near_exact_refits_where_psis_is_not(logistic):
    is_separable, X, y, of, q, by_row = logistic
    found = leave_out(of, q, by_row)
    some = np.argsort(-found.leverage)[:10]
    exact = np.array([refit(X, y, index) for index in some])
    error = np.abs(found.elpd[some] - exact).mean()
    of_psis = np.abs(found.psis[some] - exact).mean()
    if is_separable:
        assert (found.psis_k > 0.7).mean() > 0.05
        assert error < 0.5 * of_psis
    else:
        assert error < 0.02 and (found.psis_k < 0.7).all()
    assert (found.reliability < 0.7).all()
    assert (found.elpd < found.lpd + 1e-9).all()


@pytest.mark.parametrize("by_points", [False, True])
def test_a_row_that_counts_twice_is_as_two_that_are_left_out_together(by_points):
    X, y = logistic_data()
    X, y, weights = X[:40], y[:40], np.where(np.arange(40) < 5, 2.0, 1.0)
    twice = np.concatenate([np.arange(40), np.arange(5)])
    of, copied = (
        target(LogisticRows(X, y, weights=weights)),
        target(LogisticRows(X[twice], y[twice])),
    )
    q = fitted(copied)
    np.testing.assert_allclose(fitted(of).mean, q.mean, atol=1e-6)
    if by_points:
        of = target(LogisticRows(X, y, by_points, weights))
    found = leave_out(of, q, units(of.rows))
    without = [fitted(without_rows(copied, twice == row)) for row in range(7)]
    means = [X[row] @ p.mean for row, p in enumerate(without)]
    sds = [np.linalg.norm(X[row] @ p.factor) for row, p in enumerate(without)]
    signs, points = 2 * y - 1, np.linspace(-9, 9, 2001)
    likely = [expit(signs[i] * (means[i] + sds[i] * points)) * norm.pdf(points) for i in range(7)]
    exact = np.log(np.sum(likely, 1) * 0.009)
    np.testing.assert_allclose(found.elpd[:7], exact, atol=0.05 if by_points else 0.02)
    np.testing.assert_allclose(found.psis[:7], found.elpd[:7], atol=0.15)
    moved = influence(of, q, units(of.rows), [Site("beta", 0, (5,))])
    both = influence(copied, q, Units((("rows", 40),), twice), [Site("beta", 0, (5,))])
    order, of_both = np.argsort(moved.rows), np.argsort(both.rows)
    atol = 0.02 if by_points else 1e-5
    np.testing.assert_allclose(moved.divergence[order], both.divergence[of_both], atol=atol)


def grouped_rows():
    """Rows by points, each of which sees an intercept and one of eight effects."""
    rng = np.random.default_rng(4)
    group = np.repeat(np.arange(8), 3)
    X = np.column_stack([np.ones(24), np.eye(8)[group]])
    return LogisticRows(X, (rng.uniform(size=24) < 0.6).astype(float), True, prior_scale=1.5)


def test_leaving_out_ends_with_the_time_and_says_what_is_not_reliable():
    rows = grouped_rows()
    of = target(rows)
    q = fitted(of)
    by_group = Units((("groups", 8),), np.repeat(np.arange(8), 3))
    found = leave_out(of, q, by_group)
    without = [fitted(without_rows(of, np.arange(24) // 3 == g)) for g in range(8)]
    draws = np.random.default_rng(1).standard_normal((40_000, 9))
    exact = []
    for group, cavity in enumerate(without):
        logs = rows.parts(cavity.sample(draws))[0][:, 3 * group : 3 * group + 3].sum(1)
        exact.append(np.logaddexp.reduce(logs) - np.log(len(draws)))
    np.testing.assert_allclose(found.elpd, exact, atol=0.05)
    assert (found.reliability < 0.7).all()
    found.reliability[2] = 0.9
    assert "1 of 8 densities are not reliable" in note(found, by_group)


def test_a_mislabelled_row_and_an_outlier_are_the_most_influential():
    X, y = logistic_data()
    likely = expit(X @ fitted(target(LogisticRows(X, y))).mean)
    wrong = int(np.argmax(np.abs(likely - 0.5)))
    y[wrong] = float(likely[wrong] < 0.5)
    X[17], y[17] = 4.0 * X[17], float(likely[17] < 0.5)
    of = target(LogisticRows(X, y))
    q = fitted(of)
    found = influence(of, q, units(of.rows), [Site("beta", 0, (5,))])
    assert set(found.rows[:2]) == {wrong, 17}
    assert (np.diff(found.divergence) <= 0).all()
    assert "rows[17]" in repr(found) and "<table>" in found._repr_html_()
    assert found[0]["kl"] == found.divergence[0] and len(found[:3]) == 3
    table = pytest.importorskip("pandas") and found.table()
    assert list(table.columns) == ["row", "kl", "beta"] and table["row"].iloc[0] == found.rows[0]


def test_a_mean_field_is_left_its_own_part_of_each_site():
    """Its precisions are sums of the diagonals: what is subtracted must be those."""
    X, y = logistic_data()
    of = target(LogisticRows(X, y))
    q = climb(of, DenseGaussian(np.zeros(5), np.eye(5)), 1e-12).q
    assert not q.has_one_block and np.count_nonzero(q.factor) == 5
    sites = Sites.of(of, q, units(of.rows))
    np.testing.assert_allclose(sites.total()[1], q.precision, rtol=1e-5, atol=1e-12)
    found = leave_out(of, q, units(of.rows))
    element = int(np.argmin(found.leverage))
    own = sites.precision(element)
    cavity = DenseGaussian.of_precision(q.mean, q.precision - own)
    mean = q.mean - np.linalg.solve(cavity.precision, sites.gradient[element])
    at, sd = X[element] @ mean, np.linalg.norm(X[element] @ cavity.factor)
    sign = 2 * y[element] - 1
    exact = quad(lambda z: expit(sign * (at + sd * z)) * norm.pdf(z), -9, 9)[0]
    assert found.elpd[element] == pytest.approx(np.log(exact), abs=1e-6)
    moved = influence(of, q, units(of.rows), [Site("beta", 0, (5,))])
    place = list(moved.rows).index(element)
    assert moved.divergence[place] == pytest.approx(
        DenseGaussian(mean, cavity.factor).kl_divergence(q), rel=1e-6
    )


@pytest.mark.parametrize("rounding", [None, 1e-12])
def test_a_row_without_which_nothing_is_left_is_improper_and_named(rounding):
    """One latent, one row, and a flat prior; what is left but for rounding is nothing."""
    X, y = np.array([[1.0]]), np.array([1.0])
    rows = LogisticRows(X, y, prior_scale=np.inf)
    of = Target.of(rows)
    q = DenseGaussian(np.array([1.0]), np.array([[4.0]]))
    if rounding is not None:

        def left(scale):
            at = DenseGaussian(q.mean, np.array([[scale]]))
            return 1.0 - scale**2 * of.sites(at).curvature[0, 0, 0] - rounding

        q = DenseGaussian(q.mean, np.array([[brentq(left, 1.0, 4.0, xtol=1e-15)]]))
        assert 0 < 1.0 - leave_out(of, q, units(rows)).leverage[0] < 1e-11
    found = leave_out(of, q, units(rows))
    assert np.isinf(influence(of, q, units(rows), [Site("beta", 0, (1,))]).divergence[0])
    assert np.isnan(found.elpd[0]) and found.how[0] == "improper" and np.isinf(found.reliability[0])
    assert "without rows[0] the posterior is improper" in note(found, units(rows))


def test_kinks_are_seen():
    """Where derivatives by cases miss the curvature, quadrature of them would be false."""
    X, y = logistic_data()
    q = fitted(target(LogisticRows(X, y)))
    smooth, _ = LogisticRows(X, y).predictors()
    assert smooth.are_smooth(q)

    def derivatives(at):
        gap = at[0] - y
        return TermMoments(-np.abs(gap), [-np.sign(gap)], [np.zeros_like(gap)])

    laplace = dataclasses.replace(smooth, derivatives=derivatives)
    assert not laplace.are_smooth(q)
