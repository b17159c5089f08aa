"""What independent draws say of a state whose bound is known, and what checks make of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ngvi.inference.options import FitOptions, ValidationOptions
from ngvi.inference.problem import Prices
from ngvi.inference.search import Context, Status
from ngvi.inference.verdict.certificate import UNKNOWN
from ngvi.inference.verdict.checks import CHECKS, first_finding, support
from ngvi.inference.verdict.optima import Optimum
from ngvi.inference.verdict.validation import (
    NUM_IN_DOUBLE,
    Validation,
    excess,
    rare_loss,
    unseen_jump,
    validate,
)
from tests.inference.numpy_problem import State, Target, divergence, gaussian

CENTRE, SCALE = np.array([2.0, -1.0, 0.5]), np.array([0.3, 1.0, 2.0])
OPTIMUM = State(CENTRE, np.log(SCALE))
AWAY = State(CENTRE + 0.4 * SCALE, np.log(1.3 * SCALE))
OPTIONS = ValidationOptions()


def density(theta):
    return gaussian(theta, CENTRE, SCALE)


def whitened(theta):
    return (theta - CENTRE) / SCALE


def heavy(theta):
    """Log weights vary without a gradient at the optimum: even, and not square."""
    return 0.05 * np.sum(whitened(theta) ** 4 - 6 * whitened(theta) ** 2 + 3, 1)


def jump(size):
    return lambda theta: np.where(theta[:, 0] > CENTRE[0], size, 0.0)


def edge(sds, loss=-1e4):
    """A support that ends so many standard deviations away, with a penalty beyond it."""
    return lambda theta: np.where(whitened(theta)[:, 0] > sds, loss, 0.0)


def target(**options):
    return Target(density, 3, **options)


def validated(state=OPTIMUM, seed=0, **options):
    rng = np.random.default_rng(seed)
    return validate(target(**options).problem(), state, rng, OPTIONS)


def of_seeds(function, count=50):
    return [function(seed) for seed in range(count)]


def lost(known, seed, **options):
    rng = np.random.default_rng(seed)
    return rare_loss(target(**options).problem(), OPTIMUM, rng, known, OPTIONS)


# -- the bound -------------------------------------------------------------------------


@pytest.mark.parametrize("state", [OPTIMUM, AWAY])
def test_the_error_of_the_bound_covers(state):
    found = of_seeds(lambda seed: validated(state, seed, unseen=heavy))
    theta = state.mean + state.scale * np.random.default_rng(99).normal(size=(10**6, 3))
    expected = -divergence(state, OPTIMUM) + heavy(theta).mean()
    covered = [abs(one.bound - expected) < 1.96 * one.error for one in found]
    assert np.sum(covered) >= 43  # of a binomial with 0.95, less than one in a thousand
    lower = [one.lower < expected for one in found]
    assert np.sum(lower) >= 43


def test_of_an_exact_posterior_all_is_known():
    found = validated()
    assert found.bound == pytest.approx(0.0, abs=1e-12) and found.error < 1e-12
    assert found.gap == pytest.approx(0.0, abs=1e-12) and not found.is_heavy_tailed
    # The log weights of a posterior that is off by half a standard deviation.
    off = validated(State(CENTRE + 0.5 * SCALE, np.log(SCALE)))
    assert off.spread == pytest.approx(0.5 * 3**0.5, rel=0.2)
    assert 0.2 < off.gap < 0.5


def test_a_draw_without_density_is_a_bound_of_minus_infinity():
    found = validated(unseen=edge(1.0, -math.inf))
    assert found.bound == found.lower == -math.inf and math.isnan(found.error)


# -- values against gradients ----------------------------------------------------------


@pytest.mark.parametrize("unseen", [None, heavy])
def test_a_smooth_density_contradicts_nothing_at_the_optimum(unseen):
    assert max(validated(seed=seed, unseen=unseen).mismatch for seed in range(50)) < 0.01


def test_nor_at_the_optimum_of_a_family_with_one_scale():
    """Where the gradients of all scales add up to zero, and are none by themselves."""
    sphere = State(CENTRE, np.full(3, -0.5 * np.log(np.mean(SCALE**-2.0))))
    found = of_seeds(lambda seed: validated(sphere, seed, has_free_scales=False).mismatch)
    assert max(found) == 0.0 < 0.1 < validated(sphere).mismatch


def test_a_jump_that_gradients_do_not_see_is_a_mismatch():
    """``E[jump(theta) z]`` is ``size / sqrt(2 pi)``; half its square is the gain."""
    promised = np.array(of_seeds(lambda seed: validated(seed=seed, unseen=jump(4.0)).mismatch))
    assert (promised > 0.05).mean() > 0.9 and np.median(promised) < 0.5 * 16.0 / (2 * math.pi)


def kinked(theta):
    return density(theta) - np.abs(whitened(theta) - 0.3).sum(1)


@pytest.mark.parametrize(
    ("smooth", "unseen", "size"),
    [
        (density, None, 0.0),
        (kinked, None, 0.0),
        (density, jump(1.0), 1.0),
        (kinked, jump(3.0), 3.0),
    ],
)
def test_the_integral_of_gradients_along_a_line_leaves_jumps(smooth, unseen, size):
    """A line through the mean crosses a jump there, whichever way it goes."""
    problem = Target(smooth, 3, unseen=unseen).problem()
    found = of_seeds(lambda seed: unseen_jump(problem, OPTIMUM, np.random.default_rng(seed)), 20)
    np.testing.assert_allclose(found, size, atol=0.05)


def test_a_second_look_at_lines_costs_no_more_than_the_fit_has_taken():
    target_of_kinks = Target(kinked, 3)
    target_of_kinks.cost.gradients, target_of_kinks.cost.prices = 500, Prices(gradient=0.1)
    unseen_jump(target_of_kinks.problem(), OPTIMUM, np.random.default_rng(0))
    assert target_of_kinks.cost.gradients == 572


def test_an_optimum_whose_gradients_do_not_see_a_jump_is_none():
    """Its gain is below the tolerance at the optimum, and farther away none knows."""
    small = target(unseen=jump(0.5)).problem()
    assert validated(unseen=jump(0.5)).mismatch < 0.05
    optimum = Optimum(OPTIMUM, validated(unseen=jump(0.5)))
    context = Context(small, np.random.default_rng(0), 0.05, FitOptions())
    found = first_finding(context, optimum)
    assert found.name == "gradients" and "changes by 0.5 nats" in found.sentence


# -- rare losses -----------------------------------------------------------------------


def test_a_loss_that_a_validation_is_not_likely_to_meet_is_estimated():
    """Of 1.08 nats, for a ten-thousandth of the draws: 200 have a chance of one in fifty."""
    losses = np.array(of_seeds(lambda seed: lost(Validation(0.0, 0.0), seed, unseen=edge(3.7))))
    assert np.mean(losses > 0) > 0.6
    assert np.mean(losses[losses > 0]) == pytest.approx(1.08, abs=0.3)


@pytest.mark.parametrize("unseen", [None, heavy, edge(20.0)])
def test_where_nothing_is_rare_nothing_is_lost(unseen):
    losses = of_seeds(lambda s: lost(validated(seed=s, unseen=unseen), s + 99, unseen=unseen), 20)
    assert max(losses) < 0.2


@pytest.mark.filterwarnings("error")
def test_a_bound_that_a_few_draws_make_up_is_heavy_tailed_however_low_they_are():
    found = of_seeds(lambda seed: validated(seed=seed, unseen=edge(2.3)), 20)
    assert np.mean([one.is_heavy_tailed for one in found]) > 0.6
    overflow = validated(unseen=edge(2.0, -1e170))
    assert overflow.error > 1e100 and overflow.mismatch == 0.0
    lost(overflow, 1, unseen=edge(2.0, -1e170))


# -- single precision ------------------------------------------------------------------

SINGLE = {"eps": 2.0**-23, "double": density}


@pytest.mark.parametrize(
    ("options", "rounded_up"),
    [
        ({"unseen": lambda theta: 50.0, **SINGLE}, 50.0),
        ({"unseen": lambda theta: 0.9, **SINGLE}, 0.0),  # what rounding may do
        ({**SINGLE}, 0.0),
        (  # 90 nats of a million are rounding
            {"unseen": lambda t: 90.0 - 1e6, **SINGLE, "double": lambda t: density(t) - 1e6},
            0.0,
        ),
        ({"unseen": lambda theta: 50.0, "double": density}, 0.0),  # double already
        ({"unseen": lambda theta: 50.0, "eps": 2.0**-23}, 0.0),  # cannot be had
        ({**SINGLE, "double": lambda theta: np.full(len(theta), np.nan)}, 0.0),
    ],
)
def test_a_bound_that_double_precision_denies_is_not_believed(options, rounded_up):
    one = target(**options)
    found = validate(one.problem(), AWAY, np.random.default_rng(0), OPTIONS)
    assert found.rounded_up == pytest.approx(rounded_up)
    assert one.num_doubled <= NUM_IN_DOUBLE and (one.eps < 1e-10) == (not one.num_doubled)
    theta = AWAY.mean + AWAY.scale * np.random.default_rng(0).normal(size=(4, 3))
    values = one.log_density(AWAY, theta)
    off = excess(one.problem(), AWAY, theta, values)
    np.testing.assert_allclose(off, rounded_up, atol=1e-9)


# -- checks ----------------------------------------------------------------------------


def found_by_checks(**options):
    one = target(**options)
    rng = np.random.default_rng(0)
    known = validate(one.problem(), OPTIMUM, rng, OPTIONS)
    context = Context(one.problem(), rng, 0.05, FitOptions())
    return first_finding(context, Optimum(OPTIMUM, known)), context, Optimum(OPTIMUM, known)


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        ({"unseen": edge(1.0, -math.inf)}, "support", "a support ends"),
        ({"unseen": lambda t: 50.0, **SINGLE}, "precision", "log density is 50 nats off"),
        ({"unseen": jump(6.0)}, "gradients", "the log density jumps: its values"),
        ({"unseen": edge(3.5)}, "rare losses", "at a few draws"),
        ({"unseen": lambda t: 0.5, "is_exact": True}, "integral", "is 0.5 nats off"),
    ],
)
def test_each_check_finds_its_planted_fault(options, name, words):
    found, context, optimum = found_by_checks(**options)
    assert found.name == name and words in found.sentence
    assert not found.sentence.endswith(".")
    for check in CHECKS[: [c.__name__.replace("_", " ") for c in CHECKS].index(name)]:
        assert check(context, optimum) is None


def test_fresh_draws_without_a_density_are_named():
    _, context, optimum = found_by_checks()
    assert support(context, optimum) is None
    optimum.status, optimum.certificate = Status.NOISE, UNKNOWN
    assert "a support ends within the range" in support(context, optimum).sentence


@pytest.mark.parametrize(
    "options",
    [{}, {"unseen": heavy}, {"is_exact": True}, {**SINGLE}, {"unseen": edge(20.0)}],
    ids=["Gaussian", "heavy", "an integral", "single precision", "an edge far away"],
)
def test_all_checks_are_silent_on_a_clean_target(options):
    found, _, _ = found_by_checks(**options)
    assert found is None
