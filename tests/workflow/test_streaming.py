"""New rows, and fewer: updates of a result."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.workflow.streaming import is_part
from tests import models
from tests.inference.results import result, shared_result
from tests.ppl import SLOW_IN_NUMPYRO, load

FIRST = 7


def halves(ppl):
    """A result of the first rows, at their exact posterior, and the other rows."""
    X, y = models.regression_data()
    mean, covariance, evidence = models.exact_posterior(X[:FIRST], y[:FIRST])
    args = ppl.array(X[:FIRST]), ppl.array(y[:FIRST])
    at = mean, np.linalg.cholesky(covariance)
    first = result(ppl, models.regression(ppl), args, at=at)
    return first, (ppl.array(X[FIRST:]), ppl.array(y[FIRST:])), evidence


@SLOW_IN_NUMPYRO
def test_an_update_of_a_conjugate_model_is_the_posterior_of_all_rows(ppl, tmp_path):
    first, rest, evidence = halves(ppl)
    before = ppl.numpy(first.posterior.mean).copy()
    both = first.update(*rest)
    mean, covariance, of_all = models.exact_posterior()
    np.testing.assert_allclose(ppl.numpy(both.posterior.mean), mean, atol=1e-8)
    np.testing.assert_allclose(ppl.numpy(both.family.covariance_matrix), covariance, atol=1e-8)
    np.testing.assert_array_equal(ppl.numpy(first.posterior.mean), before)
    assert both.bound - first.bound == pytest.approx(of_all - evidence, abs=1e-6)
    assert both.converged and both.change.num_updates == 1 and both.change.drift < 1e-6
    assert both.bound_error == pytest.approx(first.bound_error, abs=1e-6)
    assert both.diagnostics.pareto_k < 0.5
    both.save(tmp_path / "both")
    again = type(both).load(tmp_path / "both", models.regression(ppl))
    found = [one.diagnostics.log_weights.mean() for one in (again, both)]
    assert found[0] == pytest.approx(found[1])
    assert again.change.numbers() == both.change.numbers()
    drawn = ppl.numpy(both.sample(2000)["weights"])
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.05)


def test_leaving_rows_out_of_a_conjugate_model_is_exact(ppl):
    X, y = models.regression_data()
    keep = ~np.isin(np.arange(len(y)), [3, 5])
    mean, covariance, evidence = models.exact_posterior(X[keep], y[keep])
    fewer = shared_result(ppl).without([3, 5])
    np.testing.assert_allclose(ppl.numpy(fewer.posterior.mean), mean, atol=1e-8)
    np.testing.assert_allclose(ppl.numpy(fewer.family.covariance_matrix), covariance, atol=1e-8)
    assert fewer.bound == pytest.approx(evidence, abs=1e-6)
    assert fewer.diagnostics.pareto_k < 0.5
    assert fewer.without(3).change.left_out.tolist() == [3, 5]


def test_ten_batches_of_a_regression_are_nearly_a_fit_of_all_rows():
    ppl = load("pyro")
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1000, 4))
    y = (rng.uniform(size=1000) < 1 / (1 + np.exp(-X @ rng.normal(size=4) / 2))).astype(float)
    with ppl.float64():
        model = models.logistic(ppl)
        full = ppl.fit(model, ppl.array(X), ppl.array(y))
        some = ppl.fit(model, ppl.array(X[:100]), ppl.array(y[:100]))
        for start in range(100, 1000, 100):
            rows = slice(start, start + 100)
            some = some.update(ppl.array(X[rows]), ppl.array(y[rows]))
            assert some.cost.gradients == 0  # of the prior and earlier rows
        assert some.converged and 0 < some.change.drift < 0.05
        assert some.change.num_updates == 9
        assert some.bound_error == pytest.approx((2 * some.change.drift) ** 0.5, rel=0.02)
        assert abs(some.bound - full.bound) < 3 * some.bound_error
        step = ppl.numpy(some.posterior.mean) - ppl.numpy(full.posterior.mean)
        precision = np.linalg.inv(ppl.numpy(full.family.covariance_matrix))
        assert 0.5 * step @ precision @ step < 0.05
        assert len(some.sites()) == 100
        # The same rows again count twice, which is said; others like them are no news.
        again = {"X": X[rows], "y": y[rows]}
        assert is_part(again, {"X": X, "y": y}) and is_part({"X": X, "y": y}, again)
        assert not is_part(again, {"X": X[:500], "y": y[:500]})
        assert not is_part({"y": y[rows][:5]}, {"y": y})
        some_again = {k: np.concatenate([v[::-5], v + 7.0]) for k, v in again.items()}
        assert is_part(some_again, {"X": X, "y": y})  # in another order, among new ones
        ages = {"age": rng.integers(20, 80, 100), "y": rng.integers(0, 2, 100)}
        assert not is_part({k: rng.permutation(v)[:40] for k, v in ages.items()}, ages)
        with pytest.warns(UserWarning, match="counts them twice"):
            some.update(ppl.array(X[rows]), ppl.array(y[rows]))


def test_an_update_far_from_the_optimum_of_all_rows_is_not_certified(pyro_backend):
    """By a fit of all rows the end is 0.4 nats below their optimum, and more than the tolerance."""
    ppl, rng = pyro_backend, np.random.default_rng(0)
    X, w = rng.normal(size=(80, 12)), rng.normal(size=12)
    y = (rng.uniform(size=80) < 1 / (1 + np.exp(-X @ w))).astype(float)
    with ppl.float64():
        model, half = models.logistic(ppl), slice(40)
        full = ppl.fit(model, ppl.array(X), ppl.array(y))
        some = ppl.fit(model, ppl.array(X[half]), ppl.array(y[half]))
        with pytest.warns(UserWarning, match="update: .* count as Gaussians"):
            both = some.update(ppl.array(X[40:]), ppl.array(y[40:]))
        noise = np.random.default_rng(0).standard_normal((2000, 12))
        with full._at_end() as (problem, state):
            best = problem.log_weights(state, noise)
        with full._with_fields(params=both.params)._at_end() as (problem, state):
            gaps = best - problem.log_weights(state, noise)
    assert 0.05 < gaps.mean() < both.change.left_open
    assert (some.verdict, both.verdict, both.converged) == ("certified", "approximate", False)
    found = both.diagnostics
    assert found.verdict == "doubtful"
    assert found.accuracy.fault.startswith("earlier rows count as Gaussians")
    # Both bounds are of all rows.
    assert 0 <= found.importance_weighted_bound - both.bound < both.bound_error
    assert abs(both.bound - full.bound) < 3 * both.bound_error


@pytest.mark.fast_in_numpyro
def test_new_rows_that_make_another_optimum_the_better_one_are_local(ppl):
    def model(weight, y):
        z = ppl.sample("z", ppl.dist.Normal(ppl.array(0.0), 1.0))
        near, far = (ppl.np.exp(-5.0 * (z - at) ** 2) for at in (0.5, -2.0))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Normal(weight * (1.5 * near + 2.0 * far), 0.3), obs=y)

    before, new = (tuple(map(ppl.array, (np.full(4, w), np.full(4, 2.0 * w)))) for w in (0.0, 1.0))
    one = result(ppl, model, before, at=(np.full(1, 0.3), np.eye(1)))
    other = one.update(*new)
    assert (one.verdict, other.verdict, other.converged) == ("certified", "local", True)
    assert "other optima have not been looked for" in other.reason
    assert other.without([0]).verdict == "local"


# -- what is refused ------------------------------------------------------------------


@pytest.mark.fast_in_numpyro
def test_new_groups_are_new_latents(ppl):
    def model(group, y, count):
        with ppl.plate("groups", count):
            effect = ppl.sample("effect", ppl.dist.Normal(ppl.array(0.0), 1.0))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Normal(effect[..., group], 0.5), obs=y)

    fitted = result(ppl, model, (ppl.index([0, 1]), ppl.array([0.1, 0.2]), 2))
    with pytest.raises(ValueError, match=r"'effect' has shape \(3,\), not \(2,\)"):
        fitted.update(ppl.index([0]), ppl.array([0.3]), 3)
    with pytest.raises(ValueError, match="of known groups"):
        fitted.update(ppl.index([2]), ppl.array([0.3]), 2)


@pytest.mark.fast_in_numpyro("vector-*")
@pytest.mark.parametrize(
    ("kind", "old", "new", "words"),
    [
        ("vector", np.ones((4, 2)), np.ones((3, 3)), r"'y', and its plates want \(3, 2\)"),
        ("vector", np.ones((4, 2)), np.ones(3), r"'y', and its plates want \(3, 2\)"),
        ("binary", [1.0, 0.0], [1.0, 7.5, 0.0], "Observed site 'y' .*outside its support"),
        ("number", [0.1, 0.2], [0.3, 0.1], r"'y', and its plates want \(3,\)|not run"),
        ("indexed", [0.1, 0.2], [0.3, 0.1], r"update\(\) .*does not run: .*out.of"),
    ],
)
def test_rows_that_do_not_fit_the_model_are_refused_by_the_site(ppl, kind, old, new, words):
    zero = ppl.array(np.zeros(2) if kind == "vector" else 0.0)

    def model(x, y):
        mean = ppl.sample("mean", ppl.dist.Normal(zero, 1.0).to_event(zero.ndim))
        fn = ppl.dist.Normal(mean, 1.0).to_event(zero.ndim)
        fn = ppl.dist.Bernoulli(logits=mean) if kind == "binary" else fn
        with ppl.plate("rows", len(x)) as rows:
            ppl.sample("y", fn, obs=y[rows] if kind == "indexed" else y)

    fitted = result(ppl, model, (ppl.array(np.ones(len(old))), ppl.array(old)))
    with pytest.raises(ValueError, match=words):
        fitted.update(ppl.array(np.ones(3)), ppl.array(new))


def test_chains_of_other_rows_are_those_of_its_draws_and_count_their_gradients(pyro_backend):
    fewer = shared_result(pyro_backend).without(0)
    with pytest.raises(ValueError, match="rows added or left out.* with_draws\\('nuts'\\)"):
        fewer.nuts(10)
    made = fewer.with_draws("nuts")
    steps = made.diagnostics.chains.sample_stats["n_steps"].sum()
    assert made.cost.gradients - fewer.cost.gradients > steps > 0


def test_a_flat_prior_needs_its_rows(ppl):
    def model(y):
        mu = ppl.sample("mu", ppl.dist.ImproperUniform(ppl.dist.constraints.real, (), ()))
        with ppl.plate("rows", len(y)):
            ppl.sample("y", ppl.dist.Normal(mu, 1.0), obs=y)

    at = np.array([1.5]), np.array([[0.5**0.5]])
    fitted = result(ppl, model, (ppl.array([1.0, 2.0]),), at=at)
    assert ppl.numpy(fitted.without(0).posterior.mean) == pytest.approx(2.0)
    with pytest.raises(ValueError, match=r"without\(\) leaves no row"):
        fitted.without([0, 1])
