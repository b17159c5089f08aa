"""With the same draws both packages take the same steps."""

import numpy as np
import pytest

from ngvi.fit import search, start
from ngvi.fit.progress import Progress
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
        engine = adapter.module("fit.engine").Engine(model, guide, args, {}, seed, curvature)
        progress = Progress(200, False)
        settings = search.Settings(0.05, 200, options.get("deterministic", False))
        rng = np.random.default_rng(5)
        # Not from zero: there NumPyro's gradient of a Bernoulli density is not the derivative.
        locs = {site: np.full(dim, 0.1) for site, dim in engine.dims.items()}
        found = start.find_start(engine, rng, 2, engine.at(locs, 1.0))
        outcome = search.Search(engine, rng, settings, progress).run(*found)
        first = engine.mean(found.measured)[0][0]
        return outcome, engine, [adapter.numpy(v) for v in coordinates(first)]


def coordinates(family):
    values = family.coordinates()
    return values.values() if hasattr(values, "values") else values


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
    for left, right in zip(direction, other_direction, strict=True):
        np.testing.assert_allclose(right, left, rtol=1e-8, atol=1e-8)
    assert other.reason.name == one.reason.name
    assert other.trace.num_draws == one.trace.num_draws
    for name in ("losses", "loss_errors", "step_sizes"):
        left, right = (np.array(getattr(outcome.trace, name)) for outcome in (one, other))
        np.testing.assert_allclose(right, left, rtol=1e-6, atol=1e-6, err_msg=name)
    assert other_engine.num_gradients == engine.num_gradients
    assert other_engine.num_hessian_products == engine.num_hessian_products
    for number in ("locs", "stddevs"):
        (left,), (right,) = (
            getattr(e, number)(outcome.place).values()
            for e, outcome in ((engine, one), (other_engine, other))
        )
        np.testing.assert_allclose(right, left, rtol=1e-6, atol=1e-6, err_msg=number)
