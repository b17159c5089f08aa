"""The benchmark of posteriordb, without the collection: what it measures and how it counts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("numpyro")
pytest.importorskip("rich")

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.autoguide import AutoMultivariateNormal
from rich.console import Console

from benchmarks.posteriordb.bounds import Bound, BoundEvaluator
from benchmarks.posteriordb.careful import Best, careful_run
from benchmarks.posteriordb.data import Posterior, Reference
from benchmarks.posteriordb.picture import profile
from benchmarks.posteriordb.report import Comparison, print_report
from benchmarks.posteriordb.runs import Cache, Run
from benchmarks.posteriordb.scores import Score
from benchmarks.posteriordb.stock import grid
from benchmarks.posteriordb.target import Target
from tests.ppl import load

LOC = np.array([1.0, -2.0])
COV = np.array([[2.0, 0.9], [0.9, 0.5]])
LOG_EVIDENCE = -3.0


@pytest.fixture
def gaussian_target():
    """A posterior that is Gaussian, with draws from it."""
    with load("numpyro").float64():
        precision = np.linalg.inv(COV)
        constant = LOG_EVIDENCE - 0.5 * np.linalg.slogdet(2 * np.pi * COV)[1]
        draws = np.random.default_rng(0).multivariate_normal(LOC, COV, 500)

        def log_prob(x):
            return constant - 0.5 * (x - LOC) @ jnp.asarray(precision) @ (x - LOC)

        yield SimpleNamespace(dim=2, log_prob=log_prob, reference_draws=draws)


def test_the_bound_of_the_posterior_is_the_log_evidence(gaussian_target):
    bound = BoundEvaluator(gaussian_target, 256, 2)(LOC, COV)
    assert bound.value == pytest.approx(LOG_EVIDENCE, abs=1e-10)
    assert bound.error < 1e-10


def test_the_bound_falls_short_by_the_divergence(gaussian_target):
    shift = np.array([0.3, 0.1])
    bound = BoundEvaluator(gaussian_target, 2**10, 4)(LOC + shift, 2 * COV)
    divergence = 0.5 * (shift @ np.linalg.solve(COV, shift) + 2 * (2 - 1 - np.log(2)))
    assert bound.value == pytest.approx(LOG_EVIDENCE - divergence, abs=max(1e-3, 4 * bound.error))


def test_a_gaussian_that_is_none_has_no_bound(gaussian_target):
    evaluator = BoundEvaluator(gaussian_target, 256, 2)
    assert evaluator(LOC, -COV).value == -np.inf
    assert evaluator(LOC * np.nan, COV).value == -np.inf


def test_the_careful_run_finds_a_gaussian_posterior(gaussian_target):
    best = careful_run(gaussian_target, BoundEvaluator(gaussian_target, 256, 2))
    assert best.bound.value == pytest.approx(LOG_EVIDENCE, abs=1e-6)
    np.testing.assert_allclose(best.mean, LOC, atol=1e-3)
    np.testing.assert_allclose(best.cov, COV, rtol=1e-3)


def test_the_vector_of_a_target_is_the_latent_vector_of_the_guides():
    def model():
        with numpyro.plate("three", 3):
            numpyro.sample("z", dist.HalfNormal(1.0))
        numpyro.sample("a", dist.Normal(0.0, 1.0))

    parameters = ["a", "z[1]", "z[2]", "z[3]"]
    draws = np.random.default_rng(0).uniform(size=(5, 4))
    reference = Reference(parameters, draws.mean(axis=0), np.cov(draws.T), draws, 5.0)
    posterior = Posterior("a-b", lambda data: (model, ()))
    guide = AutoMultivariateNormal(model)
    handlers.seed(guide, rng_seed=0)()
    with load("numpyro").float64():
        target = Target(posterior, {}, reference, model, ())
        x = target.reference_draws[0]
        np.testing.assert_allclose(target.parameters(target.reference_draws), draws)
        median = guide.median({"auto_loc": x, "auto_scale_tril": np.eye(4)})
        np.testing.assert_allclose(median["a"], draws[0, 0], rtol=1e-6)
        np.testing.assert_allclose(median["z"], draws[0, 1:], rtol=1e-6)
        shuffled = np.concatenate([x[3:], x[:3]])  # a, then z
        np.testing.assert_allclose(shuffled[target.order(["a", "z"])], x)


def run(method, seed=0, *, bound=-10.0, evaluations=100, **options):
    score = Score(bound, 0.001, 0.2, 0.01, 1.02)
    return Run("numpyro", "a-b", method, seed, evaluations, 1.5, [0.0], [[1.0]], score, **options)


def test_a_run_arrives_when_it_is_above_the_bound_for_good():
    steps, seconds = [10, 20, 30, 40], [0.1, 0.2, 0.3, 0.4]
    bounds = [-9.0, -11.0, -9.5, -9.4]
    history = {"steps": steps, "bounds": bounds, "step_seconds": seconds}
    assert run("Adam 0.1", **history).reached(-10.0) == (30, 0.3)
    assert run("Adam 0.1", **history).reached(-9.0) == (np.inf, np.inf)
    assert run("Adam 0.1", **history | {"bounds": [np.nan] * 4}).reached(-10.0)[0] == np.inf
    assert run("fit", bound=-9.9).reached(-10.0) == (100, 1.5)
    assert run("fit", bound=-10.1).reached(-10.0) == (np.inf, np.inf)


def test_the_grid_of_steps_ends_with_the_run():
    assert grid(50_000)[0] == 10
    assert grid(50_000)[-1] == 50_000
    assert grid(7)[-1] == 7


def test_the_report_compares_with_the_best_of_all_runs(tmp_path):
    cache = Cache(tmp_path)
    cache.save_best("a-b", Best(Bound(-10.0, 0.001), np.zeros(1), np.eye(1), {"unit": -10.0}))
    cache.save_run(run("fit", 0, bound=-10.2, converged=True, reason="because"))
    cache.save_run(run("fit", 1, bound=-9.95, evaluations=50, converged=True))
    history = {"steps": [1000, 2000], "bounds": [-12.0, -9.96], "step_seconds": [1.0, 2.0]}
    for seed in (0, 1):
        cache.save_run(run("Adam 0.1", seed, bound=-9.96, evaluations=2000, **history))
        cache.save_run(run("Adam 0.01", seed, bound=-np.inf, evaluations=2000))
    comparison = Comparison.load(cache, "numpyro", ["a-b"])
    assert comparison.best == {"a-b": -9.95}
    assert comparison.best_tuned() == {("a-b", 0): 2000, ("a-b", 1): 2000}
    with open(tmp_path / "report", "w") as file:
        print_report(comparison, Console(file=file, width=200))
    text = (tmp_path / "report").read_text()
    assert "within 0.1 nats of the best bound known: 50.0%" in text
    assert "a-b, seed 0: 0.250 nats short, converged: because" in text
    assert len(profile(comparison).axes[0].lines) == 4
