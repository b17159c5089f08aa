"""With the same draws both packages take the same steps."""

import numpy as np
import pytest

from ngvi.fit import search, start
from ngvi.fit.progress import Progress
from ngvi.fit.settings import Settings
from tests import backends
from tests.fit.results import Ppl

Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def logistic(ppl):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(50, 3))
    y = (X.sum(1) + rng.logistic(size=50) > 0).astype(float)
    dist = ppl.dist

    def model(X, y):
        beta = ppl.ppl.sample("beta", dist.Normal(ppl.array(np.zeros(3)), 2.0).to_event(1))
        with ppl.ppl.plate("data", len(y)):
            ppl.ppl.sample("y", dist.Bernoulli(logits=X @ beta), obs=y)

    return model, (ppl.array(X), ppl.array(y))


def eight_schools(ppl):
    dist, sample, array = ppl.dist, ppl.ppl.sample, ppl.array

    def model(y, sigma):
        mu = sample("mu", dist.Normal(array(0.0), 5.0))
        tau = sample("tau", dist.HalfCauchy(array(5.0)))
        with ppl.ppl.plate("schools", len(y)):
            eta = sample("eta", dist.Normal(array(0.0), 1.0))
            sample("y", dist.Normal(mu + tau * eta, sigma), obs=y)

    return model, (array(Y), array(SIGMA))


def searched(name, make, options):
    """A search with numpy's seed 5."""
    adapter = backends.load(name)
    with adapter.float64():
        ppl = Ppl(adapter)
        model, args = make(ppl)
        family = options.get("family", "auto")
        seed = 0
        if name == "numpyro":
            import jax

            seed = jax.random.key(0)
        guide = adapter.package.NaturalGaussianGuide(model, family)
        curvature = options.get("curvature", "auto")
        engine = adapter.module("fit.engine").make_engine(model, guide, args, {}, seed, curvature)
        progress = Progress(200, False)
        settings = Settings(0.05, 200, options.get("deterministic", False))
        rng = np.random.default_rng(5)
        # Not from zero: there NumPyro's gradient of a Bernoulli density is not the derivative.
        place = engine.parameters.at(np.full(engine.parameters.dim, 0.1), 1.0)
        found = start.find_start(engine, rng, 2, place)
        outcome = search.Search(engine, rng, settings, progress).run(*found)
        return outcome, engine, found.measured.mean


CASES = {
    "logistic": (logistic, {}),
    "logistic, deterministic": (logistic, {"deterministic": True}),
    "eight schools": (eight_schools, {}),
    "eight schools, mean field": (eight_schools, {"family": "diagonal"}),
    "logistic, Hessians": (logistic, {"curvature": "hessian"}),
    "logistic, Stein": (logistic, {"curvature": "stein"}),
}


@pytest.mark.parametrize("case", CASES)
def test_both_packages_take_the_same_steps(case):
    make, options = CASES[case]
    (one, engine, direction), (other, other_engine, other_direction) = (
        searched(name, make, options) for name in backends.BACKENDS
    )
    for left, right in zip(direction[:2], other_direction[:2], strict=True):
        np.testing.assert_allclose(right, left, rtol=1e-8, atol=1e-8)
    assert other.reason.name == one.reason.name
    assert other.trace.num_draws == one.trace.num_draws
    for name in ("losses", "loss_errors", "step_sizes"):
        left, right = (np.array(getattr(outcome.trace, name)) for outcome in (one, other))
        np.testing.assert_allclose(right, left, rtol=1e-6, atol=1e-6, err_msg=name)
    for count in ("num_gradients", "num_hessian_products"):
        assert getattr(other_engine.evaluator, count) == getattr(engine.evaluator, count)
    for number in ("mean", "stddevs"):
        left, right = (
            getattr(e.parameters, number)(outcome.place)
            for e, outcome in ((engine, one), (other_engine, other))
        )
        assert_close(left, right)


def assert_close(left, right):
    if isinstance(left, dict):
        assert list(left) == list(right)
        left, right = (np.concatenate(list(values.values())) for values in (left, right))
    np.testing.assert_allclose(right, left, rtol=1e-6, atol=1e-6)
