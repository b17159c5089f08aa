"""What the packages' engines compute: with the same draws both are the same, and right."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from ngvi.inference.engine import Direction
from ngvi.inference.progress import Progress
from ngvi.inference.search import Search
from ngvi.inference.settings import Settings
from ngvi.inference.start import find_start
from ngvi.inference.sweep import sweeping
from tests import models
from tests.inference.results import conjugate, log_evidence
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
def engine(name, make, family="auto", curvature="auto"):
    """One for all tests, which leave it as it is but for its counts."""
    ppl = load(name)
    with ppl.float64():
        model, args = make(ppl)
        seed = 0
        if ppl.is_numpyro:
            import jax

            seed = jax.random.key(0)
        guide = ppl.guide(model, family)
        return ppl.module("inference.engine").make_engine(model, guide, args, {}, seed, curvature)


# -- the same steps -------------------------------------------------------------------


def searched(name, make, options):
    """A search with numpy's seed 5; what it found and where it ended."""
    options = dict(options)
    max_steps = options.pop("max_steps", 200)
    settings = Settings(0.05, max_steps, options.pop("deterministic", False))
    one = engine(name, make, **options)
    counts = np.array([one.evaluator.num_gradients, one.evaluator.num_hessian_products])
    with load(name).float64():
        rng = np.random.default_rng(5)
        # Not from zero: there NumPyro's gradient of a Bernoulli density is not the derivative.
        place = one.parameters.at(np.full(one.parameters.dim, 0.1), 1.0)
        found = find_start(one, rng, 2, place)
        outcome = Search(one, rng, settings, Progress(200, False)).run(found.place)
        stddevs = one.parameters.stddevs(outcome.place)
        ends = one.parameters.mean(outcome.place), np.concatenate(list(stddevs.values()))
    counts = [one.evaluator.num_gradients, one.evaluator.num_hessian_products] - counts
    return outcome, found.measured.mean, ends, list(stddevs), counts


CASES = {
    "logistic": (logistic, {}),
    "logistic, deterministic": (logistic, {"deterministic": True}),
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
    assert other.reason is one.reason
    assert other.trace.num_draws == one.trace.num_draws
    for name in ("losses", "loss_errors", "step_sizes"):
        left, right = (np.array(getattr(outcome.trace, name)) for outcome in (one, other))
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


def test_points_share_the_runs_of_a_sweep_and_tell_nothing_of_each_other():
    """As those of climbs do, whose gradients took nine tenths of a fit."""
    of_rows.runs = 0
    one = sweeping(engine("pyro", of_rows))
    points, place = np.random.default_rng(0).normal(size=(7, 2)), one.parameters.initial
    with load("pyro").float64():
        one.evaluator.values_and_gradients(place, points)
        of_rows.runs = 0
        together = one.evaluator.values_and_gradients(place, points)
        assert of_rows.runs == 3  # of 12 rows in minibatches of 4
        apart = [one.evaluator.values_and_gradients(place, point[None]) for point in points]
    for found, parts in zip(together, zip(*apart, strict=True), strict=True):
        np.testing.assert_allclose(found, np.concatenate(parts), rtol=1e-12)


# -- and right ------------------------------------------------------------------------


@SLOW_IN_NUMPYRO
def test_where_locals_are_known_five_points_are_enough_for_thirteen_latents(ppl):
    one = engine(ppl.name, effects, "sparse_precision")
    (group,) = one.evaluator.draws(np.random.default_rng(0), 1)
    assert group.points.noise.shape == (5, 13)
    # Their average is that of Hessians at independent draws.
    place = one.parameters.at(np.log(2.0) * np.ones(13), 0.4)
    several = one.evaluator.draws(np.random.default_rng(1), 40)
    means = [one.evaluator.measure(place, several[i::2]).mean.vector for i in (0, 1)]
    exact = engine(ppl.name, effects, "sparse_precision", "hessian")
    draws = exact.evaluator.draws(np.random.default_rng(2), 40)
    expected = exact.evaluator.measure(place, draws).mean.vector
    for mean in means:
        np.testing.assert_allclose(mean, expected, atol=0.08)


def test_few_draws_at_a_place_of_independent_latents_are_those_of_mean_field(ppl):
    one, easy = (engine(ppl.name, eight_schools, *how) for how in ((), ("diagonal", "stein")))
    mean, scale = np.linspace(-1.0, 2.0, 10), np.linspace(0.1, 2.0, 10)
    place = one.parameters.independent(one.parameters.at(mean, scale))
    draws = one.evaluator.groups.few(np.random.default_rng(1), 3)
    assert draws[0].points.noise.shape == (10, 10)
    measured = one.evaluator.measure(place, draws)
    expected = easy.evaluator.measure(easy.parameters.at(mean, scale), draws)
    for found, known in zip(
        (*measured[:2], *measured.mean[:2]), (*expected[:2], *expected.mean[:2]), strict=True
    ):
        np.testing.assert_allclose(found, known)


def test_at_the_exact_posterior_every_group_is_the_evidence_and_has_no_gradient(ppl):
    one = engine(ppl.name, conjugate)
    mean, _, _ = models.exact_posterior()
    draws = one.evaluator.draws(np.random.default_rng(0), 3)
    measured = one.evaluator.measure(one.parameters.at(mean, 1.0), draws)
    assert np.ptp(measured.values) < 1e-9  # exact for quadratics, at any of them
    assert measured.value < log_evidence()
    step = one.geometry(one.parameters.at(mean, 1.0), []).step(measured.mean, 1.0, np.inf)
    end = one.evaluator.measure(step.place, draws)
    np.testing.assert_allclose(end.values, log_evidence())
    np.testing.assert_allclose(end.vectors, 0.0, atol=1e-8)


def test_the_log_density_at_a_point_has_its_gradient(ppl):
    one, theta = engine(ppl.name, conjugate), np.array([0.5, -1.0, 2.0])
    X, y = models.regression_data()
    values, gradients = one.evaluator.values_and_gradients(
        one.parameters.initial, np.stack([theta + 1.0, theta])
    )
    value, gradient = values[1], gradients[1]
    residual = (y - X @ theta) / models.NOISE_SCALE
    scales = [models.NOISE_SCALE] * len(y) + [models.PRIOR_SCALE] * 3
    squares = residual @ residual + theta @ theta / models.PRIOR_SCALE**2
    expected = -0.5 * squares - np.sum(np.log(np.sqrt(2 * np.pi) * np.array(scales)))
    assert value == pytest.approx(expected)
    expected = X.T @ residual / models.NOISE_SCALE - theta / models.PRIOR_SCALE**2
    np.testing.assert_allclose(gradient, expected)


@pytest.mark.parametrize("family", ["auto", "diagonal"])
def test_covectors_are_the_fisher_matrix_times_vectors(ppl, family):
    """Of many rows, one by one; their products with a small step are twice its divergence."""
    one = engine(ppl.name, eight_schools, family)
    place = one.parameters.at(np.linspace(-1.0, 1.0, one.parameters.dim), 0.7)
    geometry = one.geometry(place, [])
    draws = one.evaluator.draws(np.random.default_rng(1), 15)
    measured = one.evaluator.measure(place, draws)
    covectors = geometry.covectors(measured.vectors)
    assert covectors.shape == measured.vectors.shape
    np.testing.assert_allclose(covectors[14], geometry.covectors(measured.vectors[14:])[0])
    np.testing.assert_allclose(covectors.mean(0), measured.mean.covector, atol=1e-9)
    np.testing.assert_allclose(
        measured.vectors @ covectors.T, covectors @ measured.vectors.T, rtol=1e-8, atol=1e-8
    )
    step = geometry.step(measured.mean, 1.0, 1e-4)
    assert 0.4e-4 < step.length < 1e-4 and 0 < step.rho < 1
    assert geometry.squares(step.change[None])[0] == pytest.approx(2 * step.length, rel=0.03)
    assert step.backward == pytest.approx(step.length, rel=0.03)
    assert step.slope == measured.mean.covector @ step.change > 0


def test_a_direction_that_is_not_finite_leads_nowhere(ppl):
    one = engine(ppl.name, conjugate)
    size = one.geometry(one.parameters.initial, []).covectors(np.zeros((1, 12))).shape[1]
    bad = Direction(np.full(size, np.nan), np.full(size, np.nan))
    assert one.geometry(one.parameters.initial, []).step(bad, 1.0, 1.0) is None


def test_a_result_of_another_precision_is_taken_up_in_this_one_numpyro():
    jax = pytest.importorskip("jax")
    ppl = load("numpyro")
    with ppl.float64():
        parameters = engine("numpyro", conjugate).parameters
        single = jax.tree.map(lambda leaf: leaf.astype("float32"), parameters.initial)
        leaves = jax.tree.leaves(parameters.restored(single))
    assert {str(leaf.dtype) for leaf in leaves} == {"float64"}


def test_places_are_made_and_read_and_ordinary_parameters_move(ppl):
    """Of the logarithm of the prior's scale ``s`` the gradient is ``E[|z|^2] / s^2 - d``."""
    one = engine.__wrapped__(ppl.name, with_a_parameter)
    parameters, evaluator = one.parameters, one.evaluator
    assert parameters.has_ordinary and parameters.dim == 2 and parameters.eps == 2.0**-52
    place = parameters.at(np.array([1.0, 3.0]), 0.5)
    np.testing.assert_allclose(parameters.mean(place), [1.0, 3.0])
    assert list(parameters.stddevs(place)) == ["z"]
    np.testing.assert_allclose(parameters.stddevs(place)["z"], 0.5)
    initial = parameters.initial
    np.testing.assert_allclose(parameters.mean(parameters.at(None, 0.1)), parameters.mean(initial))
    draws = evaluator.draws(np.random.default_rng(0), 3)
    moved = parameters.moved(place, [np.array(-np.log(2.0))])
    np.testing.assert_allclose(parameters.own(place), [np.log(2.0)])
    np.testing.assert_allclose(parameters.own(moved), [0.0], atol=1e-15)
    # The place is a value: what was measured elsewhere does not change it. And groups average.
    for where, some, scale in ((place, 3, 2.0), (moved, 3, 1.0), (place, 1, 2.0)):
        (gradient,) = evaluator.measure(where, draws[:some]).mean.ordinary
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
        make_engine = ppl.module("inference.engine").make_engine
        for seed in range(8):
            ppl.forget()
            guide = ppl.guide(model, init_scale=2.0, init_loc_fn=ppl.autoguide.init_to_feasible)
            engine = make_engine(model, guide, (ppl.array(0.3),), {}, seed)
            assert not engine.parameters.has_ordinary
