"""Every way of the search, on an engine whose optimum is known."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from ngvi.inference import search
from ngvi.inference.engine import Direction, Measured
from ngvi.inference.outcome import Outcome, Reason
from ngvi.inference.progress import Progress
from ngvi.inference.search import Search
from ngvi.inference.settings import Settings
from ngvi.optim.radius import GROWTH, INITIAL_RADIUS, SHRINKAGE
from tests.inference.numpy_engine import Metric, Place, Target, divergence, metric

CENTRE, SCALE = np.array([2.0, -1.0, 0.5]), np.array([0.3, 1.0, 2.0])
OPTIMUM = Place(CENTRE, np.log(SCALE))


def target(**options):
    options = {"centre": CENTRE, "scale": SCALE, **options}
    return Target(**options)


def new_search(target, tolerance=0.05, max_steps=200, **options):
    settings = Settings(tolerance, max_steps, **options)
    progress = Progress(max_steps, enabled=False)
    return Search(target.engine(), np.random.default_rng(0), settings, progress)


def begin(one):
    """The search at its first place."""
    one.place = one.engine.parameters.initial
    one._use(one.engine.evaluator.draws(one.rng, 1))


def searched(target, **options):
    one = new_search(target, **options)
    return one, one.run(one.engine.parameters.initial)


def gap(outcome):
    return divergence(outcome.place, OPTIMUM)


# -- to the optimum -------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"deterministic": True}])
def test_a_search_ends_at_the_optimum(options):
    one, outcome = searched(target(), **options)
    assert outcome.reason is Reason.CONVERGED and outcome.converged
    assert gap(outcome) < 0.01
    assert outcome.remaining == one.gain + one.noise < 0.05
    assert len({len(values) for values in vars(outcome.trace).values()}) == 1
    assert outcome.trace.losses[-1] == pytest.approx(gap(outcome), abs=1e-6)
    assert outcome.trace.step_sizes[-1] == 0.0  # fresh draws, or the last word


@pytest.mark.parametrize("steepness", [0.05, 20.0])
def test_a_metric_that_is_wrong_is_no_obstacle(steepness):
    """Of a flat bound the natural gradients are too short, and of a steep one too long."""
    for max_pairs in (0, 6):
        wrong = target(steepness=steepness, max_pairs=max_pairs)
        _, outcome = searched(wrong, max_steps=500)
        assert outcome.converged
        assert steepness * gap(outcome) < 0.05


def test_noise_asks_for_as_many_draws_as_it_needs():
    few, many = (searched(target(noise=noise))[1] for noise in (0.1, 0.6))
    assert few.converged and many.converged
    assert few.trace.num_draws[-1] < many.trace.num_draws[-1]
    assert gap(many) < 0.2


def test_draws_that_are_nearly_enough_are_joined_by_the_fresh_ones():
    one = new_search(target(noise=0.5))
    begin(one)
    one._use(one.engine.evaluator.draws(one.rng, 4))
    first, one.noise = list(one.draws), 2 * search.NOISE_PART * 0.05
    assert one._confirm()[0] is None
    assert one.draws[:4] == first and len(one.draws) == len(one.measured.values) == 8
    one.noise = 5.99 * search.NOISE_PART * 0.05  # six times too much: that many more draws
    assert one._confirm()[0] is None
    assert len(one.draws) == 48 and one.draws[0].seed not in {group.seed for group in first}


def test_noise_beyond_all_draws_is_a_reason():
    one, outcome = searched(target(noise=30.0))
    assert outcome.reason is Reason.NOISE
    assert len(one.draws) == search.MAX_GROUPS
    assert outcome.remaining > 0.05
    assert searched(target(noise=30.0), deterministic=True)[1].reason is Reason.NOISE


def test_the_most_draws_may_be_enough(monkeypatch):
    monkeypatch.setattr(search, "MAX_GROUPS", 2)
    monkeypatch.setattr(search, "NOISE_PART", 1e-9)
    assert searched(target(noise=0.05))[1].reason is Reason.CONVERGED


def test_fresh_draws_that_are_not_finite_confirm_nothing(monkeypatch):
    monkeypatch.setattr(search, "MAX_GROUPS", 2)
    one = new_search(target())
    begin(one)
    one._use(one.engine.evaluator.draws(one.rng, 2))
    one.gain, one.engine.evaluator.change = 0.0, lambda place, value: math.nan
    assert one._confirm()[0] is Reason.NOISE


# -- why a stage ends -----------------------------------------------------------------


def test_steps_may_be_used_up():
    _, outcome = searched(target(), max_steps=2)
    assert outcome.reason is Reason.MAX_STEPS
    assert len(outcome.trace) == 2


def test_a_posterior_without_limit_is_found_out():
    _, outcome = searched(target(scale=np.full(3, 1e30)))
    assert outcome.reason is Reason.UNBOUNDED
    assert len(outcome.trace) % search.CHECK_EVERY in (0, 1)


def test_steps_that_lead_nowhere_are_given_up():
    """The bound is far from its optimum, says its gradient, and does not rise."""

    def flat(place, value):
        return -1e6 - 1e-9 * place.loc[0]

    _, outcome = searched(target(steepness=1e4, change=flat))
    assert outcome.reason is Reason.STUCK
    assert len(outcome.trace) <= search.STALL + search.MAX_REFUSED


def test_without_a_step_there_is_no_way(monkeypatch):
    one = new_search(target())
    monkeypatch.setattr(Metric, "step", lambda *_: None)
    assert one.run(one.engine.parameters.initial).reason is Reason.STUCK


def test_a_cliff_all_around_is_the_end():
    here = target().initial

    def cliff(place, value):
        return value if divergence(place, here) == 0.0 else math.nan

    _, outcome = searched(target(change=cliff))
    assert outcome.reason is Reason.STUCK
    assert len(outcome.trace) == search.MAX_REFUSED
    assert divergence(outcome.place, here) == 0.0


def test_a_wall_on_the_way_shortens_the_steps_and_is_no_end():
    """Beyond the wall the bound is not finite; the optimum is on this side."""

    def wall(place, value):
        return math.nan if place.loc[0] > 2.5 or place.log_scale[1] > 0.3 else value

    one, outcome = searched(target(change=wall))
    assert outcome.converged
    assert gap(outcome) < 0.01


# -- trials ---------------------------------------------------------------------------


def tried(gains, status=None, gap=0.01, **options):
    """What trials that gain so much make of a search, each with an error of a hundredth."""
    one = new_search(target(), **options)
    begin(one)
    first = one.place
    found, places = iter(gains), []

    def stage(tolerance, max_steps):
        assert max_steps == search.TRIAL_STEPS and tolerance < search.STAGE_PART * 0.05
        assert sum(len(g.points.weights) for g in one.draws) >= search.TRIAL_POINTS
        places.append(dataclasses.replace(first))
        one.place = places[-1]
        return status

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one, "_stage", stage)
        patch.setattr(search, "difference", lambda *_: (next(found), 0.01))
        one.gain, one.noise = gap, 0.0
        return one, one._tried(), [first, *places]


def test_trials_go_on_while_ordinary_draws_see_a_gain():
    one, reason, places = tried([0.3] * search.MAX_TRIALS)
    assert reason is Reason.RIDGE
    assert one.place is places[-1] and len(places) == 1 + search.MAX_TRIALS
    assert one.gain == 0.3
    one, reason, places = tried([0.3, 0.3, 0.001])
    assert reason is Reason.CONVERGED
    assert one.place is places[3] and one.gain == 0.05  # the trial before had seen more
    assert tried([0.001])[0].gain == 0.01  # what the search expects still counts


def test_a_trial_that_loses_is_taken_back():
    one, reason, places = tried([0.3, -0.2])
    assert reason is Reason.CONVERGED and one.place is places[1]
    one, reason, places = tried([-0.2])
    assert one.place is places[0] and one.noise == 0.01


def test_a_trial_whose_error_hides_a_gain_establishes_nothing():
    one, reason, _ = tried([0.012], tolerance=0.012)
    assert reason is Reason.NOISE and one.gain == 0.012
    assert tried([0.01], tolerance=0.021)[1] is Reason.CONVERGED


def test_trials_without_density_tell_nothing():
    one, reason, places = tried([math.nan])
    assert reason is Reason.CONVERGED and one.place is places[0]
    assert (one.gain, one.noise) == (0.01, 0.01)
    assert tried([math.nan], gap=0.2)[1] is Reason.NOISE


@pytest.mark.parametrize("status", [Reason.MAX_STEPS, Reason.UNBOUNDED])
def test_trials_end_with_the_steps_and_where_there_is_no_limit(status):
    assert tried([0.3, 0.3], status)[1] is status
    assert tried([0.3, 0.001], Reason.STALLED)[1] is Reason.CONVERGED


def test_a_flat_bound_few_latents_and_parameters_are_tried(monkeypatch):
    calls = []
    true = Search._tried
    monkeypatch.setattr(Search, "_tried", lambda self: calls.append(self) or true(self))
    five = {"centre": np.linspace(-1.0, 1.0, 5), "scale": np.ones(5)}
    for options, count in (
        ({}, 1),
        (five, 0),
        (five | {"steepness": 0.1}, 1),
        (five | {"steepness": 3.0}, 0),
        (five | {"of_ordinary": lambda value: (0.0, 0.0)}, 1),
    ):
        calls.clear()
        one, outcome = searched(target(**options), max_steps=500)
        assert outcome.converged and len(calls) == count, options
        assert outcome.remaining == one.gain + one.noise <= 0.1


def valley(information):
    """An intercept and the effects of its groups, whose precision is one beside the data's.

    Along the valley, where the effects fall as the intercept rises, only the prior has a slope.
    """
    design = np.column_stack([np.ones(8), np.eye(8)])
    precision = information * design.T @ design + np.eye(9)
    scale = np.diag(precision) ** -0.5
    return scale, precision * np.outer(scale, scale)


@pytest.mark.parametrize("information", [1e2, 1e4])
def test_gaussians_without_correlations_come_to_the_end_of_a_valley(information):
    """From half a nat below, where the metric promises next to nothing."""
    scale, coupling = valley(information)
    along = np.append(1.0, -np.ones(8)) / 3
    coupled = {"centre": along, "scale": scale, "coupling": coupling}
    start = Place(np.append(1e-3, np.zeros(8)), np.log(scale))

    def left(place):
        gap = (place.loc - along) / scale
        return 0.5 * gap @ coupling @ gap

    outcome = new_search(target(**coupled, is_restricted=True)).run(start)
    assert outcome.converged and left(outcome.place) < 0.01 < 0.4 < left(start)
    if information == 1e4:  # as dense Gaussians it would be believed too soon
        outcome = new_search(target(**coupled)).run(start)
        assert outcome.converged and left(outcome.place) > 0.1


def test_gaussians_without_correlations_come_to_the_end_of_many_flat_directions():
    """Of a chain, along five of which as much is left, in units of the bound."""
    steps = np.arange(20)
    precision = np.linalg.inv(0.99 ** np.abs(np.subtract.outer(steps, steps)))
    scale = precision.diagonal() ** -0.5
    coupling = precision * np.outer(scale, scale)
    curvatures, axes = np.linalg.eigh(coupling)
    flat = curvatures < 0.3
    assert flat.sum() == 5
    axes = axes[:, flat] * np.sqrt(0.4 / curvatures[flat])
    # Rounding decides from which of them few steps do not come to the end: from a third.
    signs = [[1, *rest] for rest in itertools.product((1, -1), repeat=4)]
    starts = [Place(axes @ sign, np.zeros(20)) for sign in signs]
    chain = {"centre": np.zeros(20), "scale": np.ones(20), "coupling": coupling}

    def left(steps, start):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search, "RESTRICTED_STEPS", steps)
            outcome = new_search(target(**chain, is_restricted=True)).run(start)
        assert outcome.converged
        return 0.5 * outcome.place.loc @ coupling @ outcome.place.loc

    assert all(left(search.RESTRICTED_STEPS, start) < 0.01 for start in starts)
    assert any(left(search.TRIAL_STEPS, start) > 0.1 for start in starts)


def test_a_trial_whose_steps_promise_ever_more_is_no_end():
    one = new_search(target(is_restricted=True))
    begin(one)
    for promised, is_rising in (
        ([], False),
        ([0.01, 0.001, 0.004], True),
        ([0.01, 0.004, 0.006], False),
        ([1e-8, 1e-9, 1e-7], False),  # rounding
    ):
        before = len(one.trace)
        for gain in promised:
            one.trace.add(one.measured, one.draws, 1.0, gain)
        assert one._is_rising(before) == is_rising


def test_the_optimum_of_a_search_with_fresh_draws_is_tried():
    one = new_search(target())
    there = Outcome(OPTIMUM, Reason.CONVERGED, 0.03, one.trace)
    verified = one.verified(there)
    assert verified.converged and gap(verified) < 1e-6
    assert verified.remaining == 0.05  # all that a trial of one place can exclude
    away = Outcome(Place(CENTRE + 3 * SCALE, np.log(SCALE)), Reason.CONVERGED, 0.03, one.trace)
    assert gap(one.verified(away)) < 0.05


# -- fixed draws that are no good -----------------------------------------------------


def overfitted(one, fewer, judged):
    """A bias of the stage's draws pulls the mean away, without end, if they are fewer than that."""
    measure = type(one.engine.evaluator).measure

    def biased(self, place, draws):
        found = measure(self, place, draws)
        if draws is one.judge:
            judged.append((place, found.value))
        if draws is one.judge or len(draws) >= fewer:
            return found
        pull = np.array([0.0, 0.0, 5.0])
        covector = found.mean.covector + np.concatenate([pull, np.zeros(3)])
        vector = covector / metric(place)
        values = found.values + pull @ place.loc
        return Measured(
            values,
            np.tile(vector, (len(values), 1)),
            found.mean._replace(vector=vector, covector=covector),
        )

    patch = pytest.MonkeyPatch()
    patch.setattr(type(one.engine.evaluator), "measure", biased)
    patch.setattr(search, "CHECK_EVERY", 2)
    patch.setattr(search, "LONGER", 0.5)
    return patch


def test_draws_are_overfitted_if_the_bound_rises_over_them_alone():
    one, judged = new_search(target(noise=0.0)), []
    patch = overfitted(one, 100, judged)
    assert one.begin(OPTIMUM) is Reason.OVERFITTED
    patch.undo()
    assert len(judged) >= 2 and judged[-1][1] < judged[0][1]
    assert one.best is max(judged, key=lambda pair: pair[1])[0]


def test_more_draws_follow_those_that_were_overfitted():
    one = new_search(target(noise=0.0))
    patch = overfitted(one, 8, [])
    status = one.begin(OPTIMUM)
    assert status is Reason.OVERFITTED and len(one.draws) < 8
    patch.setattr(search, "LONGER", 100.0)
    outcome = one.finish(status)
    patch.undo()
    assert outcome.converged and gap(outcome) < 0.01
    assert len(one.draws) >= 8


def test_draws_are_not_overfitted_while_others_gain_too():
    one = new_search(target())
    begin(one)
    one.judge = one.draws
    assert not one._is_overfitted(50.0)  # nothing to compare with
    one.place = one.engine.parameters.at(0.5 * CENTRE, 1.0)
    gained = one.engine.evaluator.measure(one.place, one.draws).value - one.judged[0]
    assert gained > search.MIN_GAIN and not one._is_overfitted(gained)
    assert not one._is_overfitted(gained)  # this time the others have gained nothing,
    assert one._is_overfitted(gained)  # and twice is enough
    one.unlearnt = 0
    one.judged[-1] += 2 * search.LEARNT_PART * gained
    assert one._is_overfitted(gained)  # or once to lose
    assert not one._is_overfitted(0.9 * search.MIN_GAIN)  # but little was to be gained
    one.judge = []
    assert not one._is_overfitted(50.0)


def test_steps_that_gain_less_than_they_are_to_reach_are_a_stall(monkeypatch):
    """The slope promises a nat at every step, and the values do not keep it."""

    def promise(self):
        self.gain = 1.0
        mean = self.measured.mean
        return Direction(1e-6 * mean.vector, 1e-6 * mean.covector)

    monkeypatch.setattr(Search, "_direction", promise)
    _, outcome = searched(target())
    assert outcome.reason is Reason.STALLED
    assert len(outcome.trace) == search.STALLED + 1


# -- one step -------------------------------------------------------------------------


def proposed(**options):
    """A search, its first step, and what is measured at its end."""
    one = new_search(target(**options))
    begin(one)
    step = one._propose(1e-6)
    return one, step, one.engine.evaluator.measure(step.place, one.draws)


def with_slope(measured, step, slope):
    """Another end, at which the bound has this derivative along the step."""
    size = step.change @ step.change
    mean = Direction(measured.mean.vector, slope * step.change / size)
    return measured._replace(mean=mean)


def test_the_radius_grows_past_a_step_at_whose_end_the_bound_rises():
    one, step, measured = proposed()
    ends = one._slope_at_the_end(step, with_slope(measured, step, 0.5))
    assert ends == pytest.approx(0.5)
    one._accept(step, ends, measured)
    assert one.radius == max(INITIAL_RADIUS, GROWTH * step.length)
    assert one.place is step.place and one.measured is measured


def test_the_radius_is_half_a_step_that_nearly_went_too_far():
    one, step, measured = proposed()
    ends = -0.95 * step.slope
    assert one._slope_at_the_end(step, with_slope(measured, step, ends)) is not None
    one._accept(step, ends, measured)
    assert one.radius == 0.5 * step.length
    # By rounding the divergence of a step that leads nowhere may be below zero.
    one._accept(step._replace(length=-1e-17), ends, measured)
    assert 0 < one.radius < 1e-12


def test_a_step_may_lose_a_small_part_of_its_slope_and_never_much():
    """However steep: of a slope of thousands a step that loses hundreds is no progress."""
    one, step, measured = proposed()

    def is_taken(loss, step=step, slope=0.1):
        values = np.full(1, one.measured.value - loss)
        end = with_slope(measured, step, slope)._replace(values=values)
        return one._slope_at_the_end(step, end) is not None

    for slope, slack in ((0.5, 0.5 * search.SLACK_PART), (2000.0, search.MAX_SLACK)):
        steep = step._replace(slope=slope)
        assert is_taken(0.99 * slack, steep) and not is_taken(1.01 * slack, steep)
        # A step at whose end the bound falls faster than it rose has gone too far if it lost.
        assert not is_taken(1e-6, steep, -1.01 * slope) and is_taken(-1e-6, steep, -1.01 * slope)
    assert not is_taken(0.0, slope=math.nan) and not is_taken(math.nan)
    one.engine.evaluator.eps, one.measured = 1e-7, measured._replace(values=np.full(1, 1e6))
    assert is_taken(0.9 * search.ROUNDING * 0.1, step._replace(slope=0.0))  # rounding


def test_a_refused_step_shortens_the_radius_and_a_second_one_forgets_the_pairs():
    one, step, _ = proposed()
    one.pairs.append((step.change, step.change))
    one._refuse(step, 1)
    assert one.radius == SHRINKAGE * step.length and one.pairs
    one._refuse(step, 2)
    assert not one.pairs


def test_short_steps_are_remembered_and_long_ones_are_not():
    one, step, measured = proposed()
    before = one.measured.mean.vector
    one._accept(step._replace(length=0.01, backward=0.01), 0.1, measured)
    ((change, fall),) = one.pairs
    np.testing.assert_array_equal(change, step.change)
    np.testing.assert_allclose(fall, before - measured.mean.vector)
    one._accept(step._replace(length=0.01, backward=0.5), 0.1, measured)
    assert not one.pairs


def test_a_step_long_in_the_metric_is_short_where_the_bound_is_flat():
    for options, count in (({}, 0), ({"is_restricted": True}, 1)):
        one, step, measured = proposed(**options)
        step = step._replace(length=5.0, backward=5.0)
        one._accept(step, step.slope - 0.5, measured)
        assert len(one.pairs) == count
        one._accept(step, step.slope - 0.7, measured)
        assert not one.pairs


def test_a_memory_that_promises_a_loss_is_forgotten(monkeypatch):
    one = new_search(target())
    begin(one)
    one.pairs.append((np.ones(6), np.ones(6)))
    corrected = Metric.corrected
    monkeypatch.setattr(
        Metric,
        "corrected",
        lambda self, direction: corrected(self, direction)._replace(gain=-1.0),
    )
    direction = one._direction()
    assert not one.pairs
    np.testing.assert_array_equal(direction.vector, one.measured.mean.vector)
    assert one.gain == pytest.approx(0.5 * direction.covector @ direction.vector)


def test_groups_that_join_are_averaged_as_if_measured_together():
    one = new_search(target(noise=0.4))
    evaluator, place = one.engine.evaluator, OPTIMUM
    draws = evaluator.draws(one.rng, 5)
    joined = evaluator.measure(place, draws[:2]).joined(evaluator.measure(place, draws[2:]))
    expected = evaluator.measure(place, draws)
    for left, right in zip(
        joined[:2] + joined.mean[:2], expected[:2] + expected.mean[:2], strict=True
    ):
        np.testing.assert_allclose(left, right, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tolerance": 0.0, "max_steps": 3}, "tolerance must be positive"),
        ({"tolerance": math.nan, "max_steps": 3}, "tolerance must be positive"),
        ({"tolerance": 0.1, "max_steps": 0}, "max_steps must be an integer"),
        ({"tolerance": 0.1, "max_steps": 2.5}, "max_steps must be an integer"),
        ({"tolerance": 0.1, "max_steps": 3, "time_limit": 0.0}, "time_limit must be positive"),
        ({"tolerance": 0.1, "max_steps": 3, "callback": 1}, "callback must be a function"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Settings(**options)


def test_a_search_is_nowhere_but_at_its_initial_place_before_it_runs():
    one = new_search(target())
    assert one.place is one.engine.parameters.initial
    assert not any(dataclasses.asdict(one.trace).values())
