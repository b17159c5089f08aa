"""What the packages' problems compute: with the same draws both are the same, and right."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from ngvi.inference.local_search import LocalSearch
from ngvi.inference.monitor import Monitor
from ngvi.inference.options import FitOptions
from tests import models
from tests.inference.results import conjugate
from tests.ppl import PPLS, SLOW_IN_NUMPYRO, load


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


def with_a_parameter(ppl):
    def model(y):
        scale = ppl.param("scale", ppl.array(2.0), constraint=ppl.dist.constraints.positive)
        z = ppl.sample("z", ppl.dist.Normal(ppl.array(np.zeros(2)), scale).to_event(1))
        ppl.sample("y", ppl.dist.Normal(z, 1.0).to_event(1), obs=y)

    return model, (ppl.array([1.0, 3.0]),)


@functools.cache
def problem_of(name, make, family="auto", curvature="auto"):
    """One for all tests, which leave it as it is but for its counts."""
    ppl = load(name)
    with ppl.float64():
        model, args = make(ppl)
        seed = 0
        if ppl.is_numpyro:
            import jax

            seed = jax.random.key(0)
        guide = ppl.guide(model, family)
        return ppl.module("inference.problem").make_problem(model, guide, args, {}, seed, curvature)


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
        search = LocalSearch(one, rng, 0.05, made, Monitor(max_steps), state)
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
    "effects, sparse": (effects, {"family": "sparse_precision"}),
    "logistic, Stein": (logistic, {"curvature": "stein"}),
}


@pytest.mark.parametrize("case", CASES)
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


# -- minibatches ----------------------------------------------------------------------


def of_rows(ppl):
    x = ppl.array(np.linspace(-1.0, 1.0, 12))

    def model():
        of_rows.runs += 1
        b = ppl.sample("b", ppl.dist.Normal(ppl.array(np.zeros(2)), 1.0).to_event(1))
        with ppl.plate("rows", 12, subsample_size=4) as rows:
            ppl.sample("y", ppl.dist.Normal(b[..., :1] + b[..., 1:] * x[rows], 1.0), obs=x[rows])

    return model, ()


# -- and right ------------------------------------------------------------------------


@SLOW_IN_NUMPYRO
def test_where_locals_are_known_five_points_are_enough_for_thirteen_latents(ppl):
    one = problem_of(ppl.name, effects, "sparse_precision")
    (group,) = one.objective.sample(np.random.default_rng(0), 1)
    assert group.points.noise.shape == (5, 13)
    # Their average is that of Hessians at independent draws.
    state = one.space.at(np.log(2.0) * np.ones(13), 0.4)
    several = one.objective.sample(np.random.default_rng(1), 40)
    means = [one.objective.bound(state, several[i::2]).mean.natural for i in (0, 1)]
    exact = problem_of(ppl.name, effects, "sparse_precision", "hessian")
    draws = exact.objective.sample(np.random.default_rng(2), 40)
    expected = exact.objective.bound(state, draws).mean.natural
    for mean in means:
        np.testing.assert_allclose(mean, expected, atol=0.08)


def test_the_log_density_at_a_point_has_its_gradient(ppl):
    one, theta = problem_of(ppl.name, conjugate), np.array([0.5, -1.0, 2.0])
    X, y = models.regression_data()
    values, gradients = one.objective.gradient(one.space.initial, np.stack([theta + 1.0, theta]))
    value, gradient = values[1], gradients[1]
    residual = (y - X @ theta) / models.NOISE_SCALE
    scales = [models.NOISE_SCALE] * len(y) + [models.PRIOR_SCALE] * 3
    squares = residual @ residual + theta @ theta / models.PRIOR_SCALE**2
    expected = -0.5 * squares - np.sum(np.log(np.sqrt(2 * np.pi) * np.array(scales)))
    assert value == pytest.approx(expected)
    expected = X.T @ residual / models.NOISE_SCALE - theta / models.PRIOR_SCALE**2
    np.testing.assert_allclose(gradient, expected)


@pytest.mark.parametrize("family", ["auto", "diagonal"])
def test_gradients_are_the_fisher_matrix_times_vectors(ppl, family):
    """Of many rows, one by one; their products with a small step are twice its divergence."""
    one = problem_of(ppl.name, eight_schools, family)
    state = one.space.at(np.linspace(-1.0, 1.0, one.space.dim), 0.7)
    metric = one.metric(state, [])
    draws = one.objective.sample(np.random.default_rng(1), 15)
    estimate = one.objective.bound(state, draws)
    gradients = metric.gradients(estimate.natural)
    assert gradients.shape == estimate.natural.shape
    np.testing.assert_allclose(gradients[14], metric.gradients(estimate.natural[14:])[0])
    np.testing.assert_allclose(gradients.mean(0), estimate.mean.gradient, atol=1e-9)
    np.testing.assert_allclose(
        estimate.natural @ gradients.T, gradients @ estimate.natural.T, rtol=1e-8, atol=1e-8
    )
    step = metric.step(estimate.mean, 1.0, 1e-4)
    assert 0.4e-4 < step.length < 1e-4 and 0 < step.step_size < 1
    assert metric.squares(step.change[None])[0] == pytest.approx(2 * step.length, rel=0.03)
    assert step.backward == pytest.approx(step.length, rel=0.03)
    assert step.slope == estimate.mean.gradient @ step.change > 0


def test_a_result_of_another_precision_is_taken_up_in_this_one_numpyro():
    jax = pytest.importorskip("jax")
    ppl = load("numpyro")
    with ppl.float64():
        space = problem_of("numpyro", conjugate).space
        single = jax.tree.map(lambda leaf: leaf.astype("float32"), space.initial)
        leaves = jax.tree.leaves(space.restored(single))
    assert {str(leaf.dtype) for leaf in leaves} == {"float64"}


def test_states_are_made_and_read_and_model_parameters_move(ppl):
    """Of the logarithm of the prior's scale ``s`` the gradient is ``E[|z|^2] / s^2 - d``."""
    one = problem_of.__wrapped__(ppl.name, with_a_parameter)
    space, objective = one.space, one.objective
    assert space.has_model_parameters and space.dim == 2 and space.eps == 2.0**-52
    state = space.at(np.array([1.0, 3.0]), 0.5)
    np.testing.assert_allclose(space.mean(state), [1.0, 3.0])
    assert list(space.stddevs(state)) == ["z"]
    np.testing.assert_allclose(space.stddevs(state)["z"], 0.5)
    initial = space.initial
    np.testing.assert_allclose(space.mean(space.at(None, 0.1)), space.mean(initial))
    draws = objective.sample(np.random.default_rng(0), 3)
    moved = space.moved(state, [np.array(-np.log(2.0))])
    np.testing.assert_allclose(*space.model_parameters(state).values(), np.log(2.0))
    np.testing.assert_allclose(*space.model_parameters(moved).values(), 0.0, atol=1e-15)
    # The state is a value: what was estimated elsewhere does not change it. And groups average.
    for where, some, scale in ((state, 3, 2.0), (moved, 3, 1.0), (state, 1, 2.0)):
        (gradient,) = objective.bound(where, draws[:some]).mean.parameters
        assert gradient == pytest.approx((1 + 9 + 2 * 0.25) / scale**2 - 2)


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
        make_problem = ppl.module("inference.problem").make_problem
        for seed in range(8):
            ppl.forget()
            guide = ppl.guide(model, init_scale=2.0, init_loc_fn=ppl.autoguide.init_to_feasible)
            problem = make_problem(model, guide, (ppl.array(0.3),), {}, seed)
            assert not problem.space.has_model_parameters
