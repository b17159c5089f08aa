"""What independent draws say of a place whose bound is known."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from ngvi.inference import audit as room
from ngvi.inference.audit import Audit, audit, difference, is_improper, jumps, missed, rare_loss
from ngvi.inference.precision import NUM_CHECKED
from tests.inference.numpy_engine import Place, Target, divergence, normal

CENTRE, SCALE = np.array([2.0, -1.0, 0.5]), np.array([0.3, 1.0, 2.0])
OPTIMUM = Place(CENTRE, np.log(SCALE))
AWAY = Place(CENTRE + 0.4 * SCALE, np.log(1.3 * SCALE))


def heavy(theta):
    """What makes the log weights vary without a gradient at the optimum: even, and not square."""
    whitened = (theta - CENTRE) / SCALE
    return 0.05 * np.sum(whitened**4 - 6 * whitened**2 + 3, 1)


def target(**options):
    return Target(**{"centre": CENTRE, "scale": SCALE, **options})


def of_seeds(function, count=50, **options):
    return [function(target(**options).engine(), np.random.default_rng(s)) for s in range(count)]


def jump(size):
    """Of a latent whose sign the gradients do not see."""
    return lambda theta: np.where(theta[:, 0] > CENTRE[0], size, 0.0)


# -- the bound ------------------------------------------------------------------------


@pytest.mark.parametrize("place", [OPTIMUM, AWAY])
def test_the_error_of_the_bound_covers(place):
    """In 50 audits, with log weights that vary also at the optimum; exact where they do not."""
    found = of_seeds(lambda engine, rng: audit(engine, place, rng), step=heavy)
    errors = np.array([one.error for one in found])
    assert errors.min() > 0
    theta = place.loc + np.exp(place.log_scale) * np.random.default_rng(99).normal(size=(10**6, 3))
    expected = -divergence(place, OPTIMUM) + heavy(theta).mean()
    covered = np.abs([one.bound - expected for one in found]) < 1.96 * errors
    assert covered.sum() >= 43  # of a binomial with 0.95, less than one in a thousand
    exact = audit(target().engine(), OPTIMUM, np.random.default_rng(0))
    assert exact.bound == pytest.approx(0.0, abs=1e-12) and exact.error < 1e-12


def edge(place):
    """A support that ends so many standard deviations away, with a penalty beyond it."""
    return lambda theta: np.where(theta[:, 0] > CENTRE[0] + place * SCALE[0], -1e4, 0.0)


def test_a_loss_that_an_audit_is_not_likely_to_meet_is_estimated():
    """Of 1.08 nats, for a ten-thousandth of the draws: 200 have a chance of one in fifty."""
    known = Audit(0.0, 0.0, 0.0)
    losses = of_seeds(lambda engine, rng: rare_loss(engine, OPTIMUM, rng, known), step=edge(3.7))
    losses = np.array(losses)
    assert np.mean(losses > 0) > 0.6
    assert np.mean(losses[losses > 0]) == pytest.approx(1.08, abs=0.3)


def test_a_loss_that_one_draw_makes_up_is_sure_if_it_is_enormous():
    """As of a recursion that explodes, where each draw further out is as far down as all before."""

    def explosion(theta):
        with np.errstate(over="ignore"):
            return -np.exp(8.0 * np.maximum((theta[:, 0] - CENTRE[0]) / SCALE[0] - 3.0, 0.0) ** 2)

    known = Audit(0.0, 0.0, 0.0)
    losses = of_seeds(lambda engine, rng: rare_loss(engine, OPTIMUM, rng, known), step=explosion)
    assert np.mean(np.array(losses) > room.NOTABLE_LOSS) > 0.9


@pytest.mark.parametrize("step", [None, heavy, edge(20.0)])
def test_where_nothing_is_rare_nothing_is_lost(step):
    def loss(engine, rng):
        return rare_loss(engine, OPTIMUM, rng, audit(engine, OPTIMUM, rng))

    assert np.max(of_seeds(loss, step=step)) < 0.2


def test_a_bound_that_a_few_draws_make_up_is_hardly_known():
    found = of_seeds(lambda engine, rng: audit(engine, OPTIMUM, rng), step=edge(2.3))
    assert np.mean([one.is_hardly_known for one in found]) > 0.7
    kurtic = of_seeds(lambda engine, rng: audit(engine, OPTIMUM, rng), step=heavy)
    assert not any(one.is_hardly_known for one in kurtic)


def test_the_draw_of_the_highest_weight_tells_of_mass_that_is_missed():
    def far(theta):  # an arm that begins two standard deviations away
        return np.where(theta[:, 1] > CENTRE[1] + 2.0 * SCALE[1], 8.0, 0.0)

    rng = np.random.default_rng(0)
    found = missed(target(step=far).engine(), OPTIMUM, rng, 3.0)
    assert found.shape == (3,) and found[1] > CENTRE[1] + 2.0 * SCALE[1]
    assert missed(target(step=heavy).engine(), OPTIMUM, rng, 20.0) is None
    assert missed(target().engine(), OPTIMUM, rng, 3.0) is None


def test_wider_draws_tell_of_mass_that_a_gaussian_hardly_ever_meets():
    def cell(theta):  # from five standard deviations on, half of one wide
        whitened = (theta[:, 1] - CENTRE[1]) / SCALE[1]
        return np.where((whitened > 5.0) & (whitened < 5.5), 16.0, 0.0)

    rng, engine = np.random.default_rng(0), target(step=cell).engine()
    assert missed(engine, OPTIMUM, rng, 3.0, 8192) is None
    found = missed(engine, OPTIMUM, rng, 3.0, 8192, wide=2.0)
    assert 5.0 < (found[1] - CENTRE[1]) / SCALE[1] < 5.5
    assert missed(target().engine(), OPTIMUM, rng, 3.0, wide=8.0) is None


def test_a_draw_whose_square_overflows_makes_a_bound_hardly_known_without_a_warning():
    """Of a Poisson with an exponential link on raw covariates, say, a draw is 1e170 nats down."""

    def cliff(theta):
        return np.where(theta[:, 0] > CENTRE[0] + 2.5 * SCALE[0], -1e170, 0.0)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = audit(target(step=cliff).engine(), OPTIMUM, np.random.default_rng(0))
        rare_loss(target(step=cliff).engine(), OPTIMUM, np.random.default_rng(0), found)
    assert found.is_hardly_known
    assert found.contradiction == 0.0


# -- jumps ----------------------------------------------------------------------------


def staircase(theta):
    """Of the last latent, in steps of half a standard deviation."""
    return 2.0 * np.floor((theta[:, 2] - CENTRE[2]) / SCALE[2] / 0.5)


def kink(theta):
    return 20.0 * np.abs(theta[:, 0] - CENTRE[0])


def cliff(theta):
    """As of a rate that is the exponential of a covariate in the hundreds."""
    return -np.exp(np.minimum(300.0 * (theta[:, 1] - CENTRE[1]), 500.0))


@pytest.mark.parametrize(
    ("step", "is_found"),
    [(jump(1.0), True), (staircase, True), (kink, False), (cliff, False), (None, False)],
)
def test_a_jump_beside_a_point_is_told_from_kinks_and_cliffs(step, is_found):
    engine, rng = target(step=step).engine(), np.random.default_rng(0)
    found = {jumps(engine, OPTIMUM, rng, CENTRE + shift * SCALE) for shift in (-1.0, -0.13, 0.7)}
    assert found == {is_found}


def test_the_digits_of_a_latent_are_no_jumps():
    """In single precision a year moves by the ten-thousandth part of one."""
    year, engine = 1987.0, target(step=kink).engine()
    place, values = Place(CENTRE + np.array([year, 0, 0]), np.log(SCALE)), engine.evaluator.values

    def in_single(place, theta):
        moved = theta.astype(np.float32).astype(float)
        return 50.0 * values(place, moved - [year, 0, 0])

    engine.evaluator.values, engine.parameters.eps = in_single, float(np.finfo(np.float32).eps)
    assert not jumps(engine, place, np.random.default_rng(0), place.loc + 0.7 * SCALE)
    assert in_single(place, place.loc[None] + 1e-5) == in_single(place, place.loc[None])


# -- rare draws -----------------------------------------------------------------------


def test_a_draw_without_density_is_a_bound_of_minus_infinity():
    def wall(place, value):
        return value if place.loc[0] < CENTRE[0] + SCALE[0] else -math.inf

    found = audit(target(change=wall).engine(), OPTIMUM, np.random.default_rng(0))
    assert found.bound == -math.inf and math.isnan(found.error)


def test_an_audit_costs_values_only_and_half_as_many_as_the_search_took_gradients():
    for gradients, draws in ((0, room.MIN_DRAWS), (900, 450), (10**5, room.MAX_DRAWS)):
        one = target(num_gradients=gradients)
        audit(one.engine(), OPTIMUM, np.random.default_rng(0))
        assert (one.num_gradients, one.num_values) == (gradients, draws)


# -- values against gradients ---------------------------------------------------------


def test_a_smooth_density_contradicts_nothing():
    """At the optimum the values promise no gain, whatever the draws: in 50 of 50 audits."""
    for options in ({}, {"step": heavy}):
        found = of_seeds(lambda engine, rng: audit(engine, OPTIMUM, rng), **options)
        assert max(one.contradiction for one in found) < 0.01


def test_away_from_the_optimum_the_values_promise_what_is_certain_of_the_gain():
    found = of_seeds(lambda engine, rng: audit(engine, AWAY, rng), num_gradients=2000)
    # Half the squared norm of the natural gradient, of ``(loc, log scale)``.
    gain = 0.5 * 3 * ((0.4 * 1.3) ** 2 + (1.3**2 - 1) ** 2 / 2)
    promised = np.array([one.contradiction for one in found])
    assert 0.3 * gain < np.median(promised) < gain and (promised > 0.05).all()


def test_a_jump_that_gradients_do_not_see_is_a_contradiction():
    """``E[jump(theta) z]`` is ``size / sqrt(2 pi)``; half its square is the gain."""
    found = of_seeds(lambda engine, rng: audit(engine, OPTIMUM, rng), step=jump(4.0))
    gain = 0.5 * 16.0 / (2 * math.pi)
    promised = np.array([one.contradiction for one in found])
    assert (promised > 0.05).all() and np.median(promised) < gain


# -- the difference -------------------------------------------------------------------


def test_two_places_that_are_close_are_told_apart():
    """Of values alone: the bounds' errors are far above the error of the difference."""
    near = Place(CENTRE + 0.02 * SCALE, np.log(SCALE))
    found = of_seeds(lambda engine, rng: difference(engine, near, OPTIMUM, rng), step=heavy)
    gain, error = np.array(found).T
    bounds = of_seeds(lambda engine, rng: audit(engine, near, rng), step=heavy)
    assert np.median(error) < 0.2 * np.median([bound.error for bound in bounds])
    expected = divergence(near, OPTIMUM)  # of the rest the mean does not depend on the place
    theta = np.random.default_rng(9).normal(size=(10**6, 3)) * SCALE + CENTRE
    expected += heavy(theta).mean() - heavy(theta + 0.02 * SCALE).mean()
    assert (np.abs(gain - expected) < 1.96 * error).sum() >= 43
    backward = of_seeds(lambda engine, rng: difference(engine, OPTIMUM, near, rng), step=heavy)
    np.testing.assert_allclose(backward[0], [-gain[0], error[0]])


def test_a_difference_of_places_without_density_is_none():
    engine = target(change=lambda place, value: -math.inf).engine()
    found = difference(engine, OPTIMUM, AWAY, np.random.default_rng(0))
    assert np.isnan(found).all()


@pytest.mark.parametrize("flat", [1, 2])
def test_flat_directions_are_told_from_the_latents_that_rounding_moves_along(flat):
    scale = np.where(np.arange(3) < flat, 1e30, SCALE)
    wide = Place(CENTRE, np.log(np.where(np.arange(3) < flat, 1e20, SCALE)))
    rng = np.random.default_rng(0)
    assert is_improper(target(scale=scale).engine(), wide, rng)
    assert not is_improper(target(scale=np.where(scale > 1e20, 1e20, scale)).engine(), wide, rng)


# -- single precision -----------------------------------------------------------------


def density(theta):
    """Of a target whose steepness is one, a constant left out."""
    return normal((theta - CENTRE) / SCALE, np.log(SCALE))


def test_a_bound_that_double_precision_denies_is_not_believed():
    """The difference is known, but for what rounding of a large number may do."""
    single = {"eps": 2.0**-23, "in_double": density}
    far = target(step=lambda theta: 50.0, **single)
    found = audit(far.engine(), AWAY, np.random.default_rng(0))
    honest = audit(target(**single).engine(), AWAY, np.random.default_rng(0))
    assert found.rounded_up == pytest.approx(50.0) and honest.rounded_up == 0
    assert found.bound == pytest.approx(honest.bound)
    assert 0 < far.num_doubled <= NUM_CHECKED
    near = target(step=lambda theta: 0.9, **single)
    assert audit(near.engine(), AWAY, np.random.default_rng(0)).rounded_up == 0
    large = {**single, "in_double": lambda theta: density(theta) - 1e6}
    off = target(step=lambda theta: -1e6 + 90.0, **large)
    assert audit(off.engine(), AWAY, np.random.default_rng(0)).rounded_up == 0


@pytest.mark.parametrize(
    "options",
    [
        {"in_double": density},
        {"eps": 2.0**-23},
        {"eps": 2.0**-23, "in_double": lambda theta: np.full(len(theta), np.nan)},
    ],
    ids=["double already", "cannot", "not finite"],
)
def test_where_double_precision_says_nothing_values_are_what_they_are(options):
    one = target(step=lambda theta: 50.0, **options)
    found = audit(one.engine(), AWAY, np.random.default_rng(0))
    assert found.rounded_up == 0 and found.bound > 40
    if "eps" not in options:
        assert not one.num_doubled
