"""What the packages' problems compute: with the same draws both are the same, and right."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from ngvi.inference.local_search import LocalSearch
from ngvi.inference.monitor import Monitor
from ngvi.inference.options import FitOptions
from ngvi.inference.search import Context
from tests import models
from tests.ppl import PPLS, load, slow_but


def logistic(ppl):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(50, 3))
    y = (X.sum(1) + rng.logistic(size=50) > 0).astype(float)
    return models.logistic(ppl), (ppl.array(X), ppl.array(y))


def eight_schools(ppl):
    return models.eight_schools(ppl), tuple(map(ppl.array, models.eight_schools_data()))


def effects(ppl):
    """Twelve locals given one global."""

    def model(y):
        mu = ppl.sample("mu", ppl.dist.Normal(ppl.array(0.0), 2.0))
        with ppl.plate("groups", 12):
            effect = ppl.sample("effect", ppl.dist.Normal(mu, 0.7))
            ppl.sample("y", ppl.dist.Poisson(ppl.np.exp(effect)), obs=y)

    return model, (ppl.array(np.arange(12.0) % 5),)


@functools.cache
def problem_of(name, make, family="auto", curvature="auto", by_modes=False):
    """One for all tests, which leave it as it is but for its counts."""
    ppl = load(name)
    with ppl.float64():
        model, args = make(ppl)
        seed = 0
        if ppl.is_numpyro:
            import jax

            seed = jax.random.key(0)
        new = ppl.package.ReparametrizedGaussianGuide if by_modes else ppl.guide
        run = model, new(model, family=family), args, {}
        return ppl.module("inference.set_up").make_problem(run, seed, curvature)


# -- the same steps -------------------------------------------------------------------


def searched(name, make, options):
    """A search with numpy's seed 5; what it found and where it ended."""
    options = dict(options)
    max_steps = options.pop("max_steps", 200)
    one = problem_of(name, make, **options)
    before = dataclasses.replace(one.objective.cost)
    with load(name).float64():
        rng, made = np.random.default_rng(5), FitOptions()
        # Not from zero: there NumPyro's gradient of a Bernoulli density is not the derivative.
        state = one.space.at(np.full(one.space.dim, 0.1), 1.0)
        first = one.objective.bound(state, one.objective.sample(rng, 2)).mean
        search = LocalSearch(Context(one, rng, 0.05, made), Monitor(max_steps), state)
        search.advance()
        stddevs = one.space.stddevs(search.state)
        ends = one.space.mean(search.state), np.concatenate(list(stddevs.values()))
    cost = one.objective.cost
    counts = [cost.gradients - before.gradients, cost.products - before.products]
    return search, first, ends, list(stddevs), counts


CASES = {
    "logistic": (logistic, {}),
    "eight schools": (eight_schools, {}),
    "eight schools, mean field": (eight_schools, {"family": "diagonal"}),
    # Its next steps are refused again and again, and rounding decides which one is not.
    "logistic, Hessians": (logistic, {"curvature": "hessian", "max_steps": 12}),
    # NumPyro takes these point by point, and Pyro a group at once.
    "effects by modes": (effects, {"by_modes": True}),
    "effects, sparse": (effects, {"family": "sparse_precision"}),
    "logistic, Stein": (logistic, {"curvature": "stein"}),
}


@pytest.mark.parametrize("case", slow_but("eight schools", CASES))
def test_both_packages_take_the_same_steps(case):
    (one, first, end, sites, counts), (other, *others) = (
        searched(name, *CASES[case]) for name in PPLS
    )
    for left, right in zip(first[:2], others[0][:2], strict=True):
        np.testing.assert_allclose(right, left, rtol=1e-8, atol=1e-8)
    assert other.status is one.status
    assert other.trace.num_draws == one.trace.num_draws
    for name in ("losses", "loss_errors", "step_sizes"):
        left, right = (np.array(getattr(search.trace, name)) for search in (one, other))
        np.testing.assert_allclose(right, left, rtol=1e-6, atol=1e-6, err_msg=name)
    for left, right in zip(end, others[1], strict=True):
        np.testing.assert_allclose(right, left, rtol=1e-6, atol=1e-6)
    assert others[2] == sites
    np.testing.assert_array_equal(others[3], counts)


# -- and right ------------------------------------------------------------------------


def test_a_draw_at_which_the_model_is_invalid_is_no_exception():
    """Pyro's: a scale below zero, and a matrix that is not positive definite, at every other draw
    of the guide that ``fit`` makes, but not at its start.
    """
    ppl = load("pyro")

    def model(y):
        z = ppl.sample("z", ppl.dist.Normal(ppl.array(0.0), 1.0))
        factor = ppl.np.linalg.cholesky(ppl.array([[1.0]]) * (1 - z))
        ppl.sample("y", ppl.dist.Normal(ppl.array(0.0), 1 + factor[0, 0] * z), obs=y)

    with ppl.precision("float64"):
        make_problem = ppl.module("inference.set_up").make_problem
        for seed in range(8):
            ppl.forget()
            guide = ppl.guide(model, init_scale=2.0, init_loc_fn=ppl.autoguide.init_to_feasible)
            problem = make_problem((model, guide, (ppl.array(0.3),), {}), seed)
            assert not problem.space.has_model_parameters
