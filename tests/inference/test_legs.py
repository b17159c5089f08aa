"""Which starts a fit has, when it is content, and what it tells of them."""

from __future__ import annotations

import copy
import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize
from scipy.stats import norm

from ngvi.inference import climbs, following, legs, modes, one_leg, prior, run
from ngvi.inference.audit import Audit
from ngvi.inference.by_values import GROUP, by_values
from ngvi.inference.outcome import Outcome, Reason, in_words
from ngvi.inference.progress import Progress
from ngvi.inference.search import Search
from ngvi.inference.settings import OutOfTime, Settings
from ngvi.inference.start import start_at
from ngvi.inference.stochastic import StochasticSearch
from ngvi.inference.sweep import Rows
from tests.inference.numpy_engine import POINT, Place, Target, divergence, metric, normal

CENTRE, SCALE = np.array([2.0, -1.0]), np.array([0.3, 2.0])
FAR = np.array([1000.0, -300.0])
#: Another mode, within the box of random points but far outside of the first.
NEAR = np.array([-1.5, 1.5])


def target(**options):
    return Target(**{"centre": CENTRE, "scale": SCALE, **options})


def two_modes(height, centre=NEAR, **options):
    """Narrow ones, the first at the guide's start, the other this much higher."""
    first, narrow = np.zeros(2), np.full(2, 0.1)
    return target(centre=first, scale=narrow, others=((centre, height),), **options)


def searched(target, place=None, max_steps=100, **options):
    settings = Settings(0.05, max_steps, **options)
    return run.search(target.engine(), np.random.default_rng(0), settings, False, place)


def names(outcome):
    return [ended.name for ended in outcome.starts]


def is_at(outcome, centre, scale=SCALE):
    return divergence(outcome.place, Place(centre, np.broadcast_to(np.log(scale), 2))) < 0.1


# -- independent latents --------------------------------------------------------------


@pytest.mark.parametrize("is_dear", [True, False])
def test_independent_latents_come_first_where_a_group_is_dear(is_dear):
    one = target(is_dear=is_dear)
    outcome = searched(one)
    assert outcome.converged and is_at(outcome, CENTRE)
    assert one.asked_for_few is is_dear is ("independent latents" in names(outcome))
    assert "the guide's start" in names(outcome)


def test_where_independent_latents_collapse_another_start_leads_higher():
    at = Place(NEAR, np.log(np.full(2, 0.1)))
    one = two_modes(-30.0, is_dear=True, collapsed=at)
    outcome = searched(one)
    assert outcome.converged and is_at(outcome, np.zeros(2), 0.1)
    ends = {ended.name: ended.bound for ended in outcome.starts}
    assert ends["independent latents"] == pytest.approx(-30.0, abs=0.5)


def test_on_minibatches_the_better_of_two_starts_goes_on():
    at = Place(CENTRE, np.log(SCALE))
    for options, first in ({"centre": FAR}, None), ({"centre": FAR, "others": ((CENTRE, 0),)}, at):
        one = target(is_dear=True, is_subsampled=True, collapsed=first, **options)
        outcome = searched(one)
        assert outcome.converged and is_at(outcome, FAR if first is None else CENTRE)


def test_a_fit_that_ends_among_its_first_steps_keeps_what_they_found():
    def callback(step, bound, distance):
        if step == 12:
            raise OutOfTime

    one = target(is_dear=True, centre=FAR)
    outcome = searched(one, callback=callback)
    gap = divergence(one.initial, Place(FAR, np.log(SCALE)))
    assert outcome.reason is Reason.TIME_LIMIT and outcome.audit is not None
    assert divergence(one.written[-1], Place(FAR, np.log(SCALE))) < 0.5 * gap


# -- the prior ------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "kept"), [(30.0, "the prior"), (-30.0, "the guide's start")])
def test_where_the_prior_is_elsewhere_both_begin_and_the_better_goes_on(height, kept):
    one = target(centre=np.zeros(2), others=((FAR, height),), of_prior=(FAR, 10.0))
    outcome = searched(one)
    assert outcome.converged
    assert names(outcome)[0] == kept
    assert is_at(outcome, FAR if height > 0 else np.zeros(2))
    assert outcome.audit.bound == pytest.approx(max(height, 0.0), abs=0.1)


@pytest.mark.parametrize("of_prior", [None, (np.full(2, 3.0), 2.0), (FAR * math.nan, 1.0)])
def test_a_prior_about_the_guides_start_or_none_is_no_start(of_prior):
    outcome = searched(target(of_prior=of_prior))
    assert outcome.converged and "the prior" not in names(outcome)


def test_a_prior_is_elsewhere_by_its_means_or_its_scales():
    def is_elsewhere(mean, sd):
        engine = target(of_prior=(mean, sd)).engine()
        return legs.Prior.of(engine, np.random.default_rng(0)).is_elsewhere(np.zeros(2))

    low, high = prior.USUAL_SCALES
    assert not is_elsewhere(1.0, 1.0)
    assert is_elsewhere(np.array([0.0, 2 * prior.FAR]), 1.0)
    assert is_elsewhere(0.0, np.array([1.0, 2 * high])) and is_elsewhere(0.0, 0.5 * low)


# -- ends that are no optimum ---------------------------------------------------------


@pytest.fixture
def by_gradients(monkeypatch):
    """Where a search is stuck its values promise more, and would find it; others are tried."""
    monkeypatch.setattr(legs.Legs, "_by_values", lambda self, outcome: outcome)


def stuck_unless(is_good):
    """A density in which a search goes on only from places that are good."""

    def change(place, value):
        if place.log_scale[0] == POINT or is_good(place):
            return value
        return value if divergence(place, Place(np.zeros(2), np.zeros(2))) == 0.0 else math.nan

    return change


def is_near(place):
    return np.abs(place.loc - CENTRE).max() < 0.5


def test_a_hopeless_start_is_followed_by_one_of_high_density(by_gradients):
    outcome = searched(target(change=stuck_unless(is_near)))
    assert outcome.converged
    assert is_at(outcome, CENTRE)
    assert names(outcome) == ["a point of high density", "the guide's start"]
    assert outcome.starts[1].kept.startswith("no optimum, ")
    assert outcome.starts[1].bound == pytest.approx(-26, abs=5)


@pytest.mark.parametrize("options", [{"place": Place(np.zeros(2), np.zeros(2))}, {}])
def test_a_start_that_is_given_and_one_without_chance_are_not_replaced(options, by_gradients):
    one = target(change=stuck_unless(is_near))
    outcome = searched(one, deterministic=not options, **options)
    assert outcome.reason is Reason.STUCK
    assert names(outcome) == ["the guide's start"]
    assert outcome.audit.bound == pytest.approx(-26, abs=5)


def ends(monkeypatch, *bounds, reasons=(Reason.MAX_STEPS,) * 12, max_steps=100):
    """The outcome of starts that end with these bounds, by their audits, after one step each."""
    ended, found = iter(zip(reasons, bounds, strict=False)), {}

    def finish(self, status):
        self.trace.losses.append(0.0)
        reason, bound = next(ended)
        end = copy.copy(self.place)
        found[id(end)] = end, bound
        return Outcome(end, reason, 0.01, self.trace)

    def audit(engine, place, rng):
        _, bound = found.get(id(place), (None, -5.0))  # all are as good when they are rough
        return Audit(bound, 0.01, 0.0)

    monkeypatch.setattr(legs.Legs, "_go_on", lambda *_: None)
    monkeypatch.setattr(Search, "finish", finish)
    monkeypatch.setattr(one_leg, "audit", audit)
    return searched(target(of_prior=(0.0, 1.0)), max_steps=max_steps)


def test_of_ends_that_are_no_optimum_the_highest_is_kept(monkeypatch):
    outcome = ends(monkeypatch, -3.0, -math.inf, -2.0, -4.0)
    assert [start.bound for start in outcome.starts] == [-2.0, -3.0, -4.0, -math.inf]
    assert [start.kept for start in outcome.starts][:2] == ["kept", "no optimum, 1 nats below"]
    assert len(outcome.starts) == 1 + legs.MAX_OTHERS


def test_where_no_start_comes_to_the_end_of_its_first_stage_fresh_draws_tell_the_best(
    monkeypatch, by_gradients
):
    """Of all racers the best half goes on, and so on; three are followed, and the best is kept."""
    runs, followed = [], []

    def overfitted(self, place, max_steps=0.0):
        self.rough = self.place = self.best = copy.copy(place)
        return Reason.OVERFITTED

    def fresh(self, place):
        runs.append(place)
        self.trace.losses.append(0.0)
        return Outcome(copy.copy(place), Reason.MAX_STEPS, 1.0, self.trace)

    def finish(self, status):
        assert status is Reason.OVERFITTED
        followed.append(self.place)
        return Outcome(self.place, Reason.MAX_STEPS, 1.0, self.trace)

    monkeypatch.setattr(legs.Legs, "_go_on", lambda *_: None)
    monkeypatch.setattr(Search, "begin", overfitted)
    monkeypatch.setattr(Search, "finish", finish)
    monkeypatch.setattr(StochasticSearch, "run", fresh)
    outcome = searched(target(of_prior=(0.0, 1.0)), max_steps=1000)
    count = 1 + legs.MAX_RACERS
    assert len(outcome.starts) == count
    assert len(runs) == count + count // 2 + count // 4
    bounds = sorted((start.bound for start in outcome.starts), reverse=True)
    near = [is_at_most(place, -bounds[legs.MAX_OTHERS]) for place in followed]
    assert len(followed) == legs.MAX_OTHERS and all(near)
    assert outcome.starts[0].bound == pytest.approx(bounds[0], abs=0.5)
    # The steps that the best end is to have are not used up by others.
    followed.clear()
    searched(target(of_prior=(0.0, 1.0)), max_steps=one_leg.MIN_SHARE)
    assert len(followed) == 1


def is_at_most(place, distance):
    return divergence(place, Place(CENTRE, np.log(SCALE))) < distance + 0.5


def test_the_first_optimum_ends_the_starts_and_stands_against_noise(monkeypatch):
    """One that has not converged is better only if it is clearly higher."""
    reasons = (Reason.MAX_STEPS, Reason.CONVERGED)
    for first, converged in ((-1.95, True), (-1.85, False)):
        monkeypatch.setattr(legs.Legs, "_look_for_modes", lambda *_: None)
        outcome = ends(monkeypatch, first, -2.0, reasons=reasons)
        assert [start.bound for start in outcome.starts if start.bound > -5.0] == (
            [-2.0, first] if converged else [first, -2.0]
        )
        assert outcome.converged is converged


def test_fixed_draws_that_are_no_good_are_followed_by_fresh_ones(monkeypatch):
    """From the best place that was judged, and an optimum that they claim is tried."""
    begun = []

    def stalled(self, status):
        self.best = Place(CENTRE + 0.1, np.log(SCALE))
        self.trace.losses.append(0.0)
        return Outcome(self.place, Reason.STALLED, 1.0, self.trace)

    fresh, verified = StochasticSearch.run, Search.verified
    monkeypatch.setattr(Search, "finish", stalled)
    monkeypatch.setattr(
        StochasticSearch, "run", lambda self, place: begun.append(place) or fresh(self, place)
    )
    monkeypatch.setattr(
        Search, "verified", lambda self, outcome: begun.append(outcome) or verified(self, outcome)
    )
    outcome = searched(target())
    np.testing.assert_array_equal(begun[0].loc, CENTRE + 0.1)
    assert begun[1].converged and outcome.converged
    assert is_at(outcome, CENTRE)


@pytest.mark.parametrize(("error", "count"), [(1e3, 1), (1e9, 0)])
def test_a_lost_leg_beside_an_optimum_has_no_fresh_draws(monkeypatch, error, count):
    begun, fresh, audited = [], StochasticSearch.run, one_leg.Runner._audited
    first_leg = legs.Legs._first_leg

    def is_far(self, outcome):
        known = audited(self, outcome)
        if outcome.reason is not Reason.STUCK:
            return known
        return dataclasses.replace(known, audit=Audit(-2.0 * error, error, 0.0))

    def with_another(self, start, *others):
        outcome = first_leg(self, start, *others)
        other = self._begin(start)
        monkeypatch.setattr(
            Search, "finish", lambda self, _: Outcome(self.place, Reason.STUCK, 1.0, self.trace)
        )
        self._finish(other)
        return outcome

    monkeypatch.setattr(one_leg.Runner, "_audited", is_far)
    monkeypatch.setattr(legs.Legs, "_first_leg", with_another)
    monkeypatch.setattr(
        StochasticSearch, "run", lambda self, place: begun.append(place) or fresh(self, place)
    )
    outcome = searched(target())
    assert len(begun) == count and outcome.converged


@pytest.mark.parametrize("spent", [10, 10**4])
def test_fresh_draws_of_a_leg_that_looks_for_others_have_a_budget(spent):
    engine = target(noise=5.0).engine()
    engine.evaluator.num_gradients = spent
    runner = legs.Legs(engine, np.random.default_rng(0), Settings(1e-9, 10**5), Progress(9, False))
    search = runner._new_search()
    search.begin(Place(CENTRE + 9.0, np.log(SCALE)), 1)
    assert runner._begin_to_look() >= 4 * spent
    before = engine.evaluator.num_gradients
    outcome = runner._freshly(search, search.place)
    used = engine.evaluator.num_gradients - before
    most = max(one_leg.LOOKING * before, one_leg.LEAST)
    assert outcome.reason is Reason.MAX_STEPS and most <= used < 1.5 * most
    # A leg that is far above what is known is no look for others.
    lower = runner._audited(Outcome(search.place, Reason.CONVERGED, 0.0))
    runner.ended.append((lower, "lower"))
    before = engine.evaluator.num_gradients
    runner.settings = Settings(1e-9, 2000)
    runner._freshly(search, search.place)
    assert engine.evaluator.num_gradients - before > 2 * most


def test_where_fixed_draws_are_fewer_than_latents_all_are_fresh(monkeypatch):
    """From the better of the guide's start and the prior's."""
    monkeypatch.setattr(legs, "MAX_GROUPS", 0)
    monkeypatch.setattr(Search, "begin", None)
    outcome = searched(target(centre=FAR, of_prior=(FAR, 10.0), curvature="stein"))
    assert outcome.converged and is_at(outcome, FAR) and names(outcome) == ["the prior"]
    monkeypatch.undo()
    assert searched(target(curvature="stein")).converged


def test_a_posterior_without_limit_is_told_of_two_starts_and_no_more_steps():
    """Its bound rises for ever, and the values of few draws contradict what has risen."""
    one = target(scale=np.full(2, 1e30))
    outcome = searched(one, max_steps=1000)
    assert outcome.reason is Reason.UNBOUNDED
    assert len(outcome.starts) == 2
    assert sum(start.num_steps for start in outcome.starts) < 100


def test_an_optimum_with_more_to_gain_than_twice_the_tolerance_is_none(monkeypatch):
    def claimed(self, _):
        return Outcome(Place(CENTRE, np.log(SCALE)), Reason.CONVERGED, 0.11, self.trace)

    monkeypatch.setattr(Search, "finish", claimed)
    monkeypatch.setattr(StochasticSearch, "run", claimed)
    monkeypatch.setattr(Search, "verified", lambda self, outcome: outcome)
    outcome = searched(target())
    assert outcome.reason is Reason.NOISE and outcome.remaining == 0.11


def test_the_steps_that_are_left_are_used_on_the_best_end(monkeypatch):
    """Of starts without an optimum, each with its share of the steps."""
    limits, begun = [], []

    def no_way(self, status):
        self.best = self.place
        return Outcome(self.place, Reason.STUCK, 1.0, self.trace)

    def slow(self, place):
        limits.append(self.limit - len(self.trace))
        begun.append(place)
        for values in vars(self.trace).values():
            values.append(0.0)
        return Outcome(place, Reason.MAX_STEPS, 1.0, self.trace)

    monkeypatch.setattr(Search, "finish", no_way)
    monkeypatch.setattr(StochasticSearch, "run", slow)
    monkeypatch.setattr(legs.Legs, "_by_values", lambda self, outcome: outcome)
    outcome = searched(target(), max_steps=1000)
    assert limits == [250, 250, math.inf]
    assert begun[-1] is outcome.place
    # The end goes on with the steps of the best leg.
    assert outcome.starts[0].num_steps > 1


# -- values against gradients ---------------------------------------------------------


def jump(theta):
    return np.where(theta[:, 0] > CENTRE[0], 4.0, 0.0)


def of_jump(parameters):
    """Minus the bound, for the first latent in standard deviations of the smooth part."""
    mean, log_sd = parameters
    divergence = 0.5 * (mean**2 + np.exp(2 * log_sd) - 1) - log_sd
    return divergence - 4.0 * norm.cdf(mean * np.exp(-log_sd))


def test_a_density_that_jumps_is_fitted_by_its_values():
    best = minimize(of_jump, [0.5, -0.1])
    outcome = searched(target(step=jump))
    assert outcome.converged
    assert outcome.audit.bound == pytest.approx(-best.fun, abs=0.1)
    mean = (outcome.place.loc[0] - CENTRE[0]) / SCALE[0]
    assert mean == pytest.approx(best.x[0], abs=0.2)
    # By gradients alone it is 1.1 nats lower, and not called converged.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(legs.Legs, "_by_values", lambda self, outcome: outcome)
        lower = searched(target(step=jump), max_steps=20)
    assert not lower.converged and lower.audit.bound < outcome.audit.bound - 0.5


def cells(theta):
    """Two cells beside each other, of which that of the start is lower by six nats."""
    whitened = (theta[:, 0] - CENTRE[0]) / SCALE[0]
    return 14.0 * (np.abs(whitened) < 0.3) + 20.0 * (np.abs(whitened - 1.3) < 0.2)


def test_of_cells_between_jumps_the_higher_is_found_beside_the_lower():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        outcome = run.search(target(step=cells).engine(), rng, Settings(0.05, 1000), False, None)
        assert outcome.place.loc[0] == pytest.approx(CENTRE[0] + 1.3 * SCALE[0], abs=0.1)


def test_gradients_that_values_contradict_are_not_followed_any_further(monkeypatch):
    """Where the fixed draws are no good, fresh ones at every step would not be better."""
    by_value, run = [], StochasticSearch.run

    def counted(self, place):
        by_value.append(type(self.engine.evaluator) is not type(one.engine().evaluator))
        return run(self, place)

    def stalled(self, status):
        return Outcome(self.place, Reason.STALLED, 0.01, self.trace)

    monkeypatch.setattr(Search, "finish", stalled)
    monkeypatch.setattr(StochasticSearch, "run", counted)
    one = target(step=jump)
    assert searched(one).converged and all(by_value)
    one, by_value[:] = target(), []
    searched(one)
    assert by_value[0] is False


@pytest.mark.parametrize("is_jump", [True, False])
def test_a_slope_that_values_and_gradients_promise_alike_is_no_jump(monkeypatch, is_jump):
    """It takes a hundred times as many values as gradients to follow it."""

    place, followed = Place(CENTRE - SCALE, np.log(SCALE)), []

    def ended(self, status):
        return Outcome(place, Reason.MAX_STEPS, 0.1, self.trace)

    monkeypatch.setattr(Search, "finish", ended)
    monkeypatch.setattr(legs.Legs, "_by_values", lambda self, one: followed.append(one) or one)
    searched(target(step=jump if is_jump else None))
    promised = [outcome.audit.contradiction for outcome in followed]
    assert promised == [] if not is_jump else min(promised) > 0.05
    if not is_jump:  # though values promise as much
        found = one_leg.audit(target().engine(), place, np.random.default_rng(0))
        assert found.contradiction > 0.05


def test_where_gradients_find_no_step_values_are_tried(monkeypatch):
    """Though they promise as much: what they promise is not there."""
    place, followed = Place(CENTRE - SCALE, np.log(SCALE)), []

    def ended(self, *_):
        return Outcome(place, Reason.STALLED, 0.1, self.trace)

    monkeypatch.setattr(Search, "finish", ended)
    monkeypatch.setattr(StochasticSearch, "run", ended)
    monkeypatch.setattr(legs.Legs, "_by_values", lambda self, one: followed.append(one) or one)
    searched(target())
    assert followed and all(one.audit.contradiction > 0.05 for one in followed)


def test_values_that_do_not_help_leave_the_verdict(monkeypatch):
    monkeypatch.setattr(one_leg, "by_values", lambda engine: engine)
    outcome = searched(target(step=jump))
    assert outcome.reason is Reason.JUMP
    assert outcome.remaining > 0.3 < outcome.audit.contradiction


def test_where_gradients_have_led_is_kept_if_the_way_by_values_is_interrupted(monkeypatch):
    """Which may have led astray until then."""

    def astray(self, place):
        self.place = Place(FAR, np.zeros(2))
        raise KeyboardInterrupt

    monkeypatch.setattr(StochasticSearch, "run", astray)
    outcome = searched(target(step=jump))
    assert outcome.reason is Reason.INTERRUPTED and is_at(outcome, CENTRE)


def test_an_optimum_is_not_claimed_if_few_draws_are_far_lower():
    """3.7 standard deviations away, beyond all draws of the search."""

    def edge(theta):
        return np.where(theta[:, 0] > CENTRE[0] + 3.7 * SCALE[0], -1e4, 0.0)

    outcome = searched(target(step=edge))
    assert outcome.reason is Reason.RARE and 0.3 < outcome.audit.error < 3.0
    words = in_words(outcome, dict, 0.05, 100)
    assert f"known to {outcome.audit.error:.2g} nats only" in words


def test_no_distance_is_told_of_a_bound_that_few_draws_make_up(monkeypatch):
    """The search has seen nothing of these; far from the optimum they are not what is wrong."""

    def edge(theta):
        return np.where(theta[:, 0] > CENTRE[0] + 3 * SCALE[0], -1e6, 0.0)

    def ends(left):
        def end(self, place):
            return Outcome(place, Reason.MAX_STEPS, left, self.trace)

        monkeypatch.setattr(Search, "run", end)
        return searched(target(step=edge), Place(CENTRE, np.log(SCALE)))

    monkeypatch.setattr(legs.Legs, "_by_values", lambda self, outcome: outcome)
    outcome = ends(0.01)
    assert outcome.reason is Reason.RARE and outcome.remaining == outcome.audit.error > 100
    assert ends(1e9).reason is Reason.MAX_STEPS


def test_natural_gradients_by_values_are_those_of_the_bound_on_average():
    """At opposite draws, of a jump too."""
    engine = by_values(target(step=jump, of_ordinary=lambda value: (value, 1.0)).engine())
    place = Place(CENTRE + 0.5 * SCALE, np.log(0.8 * SCALE))
    draws = engine.evaluator.draws(np.random.default_rng(0), 200)
    for group in draws[:2]:
        assert len(group.points.noise) == len(group.points.weights) == GROUP
        assert np.sum(group.points.weights) == pytest.approx(1.0)
        np.testing.assert_allclose(group.points.noise.sum(0), 0.0, atol=1e-12)
    found = engine.evaluator.measure(place, draws)
    gradient = -approx_fprime(np.array([0.5, np.log(0.8)]), of_jump)
    expected = [gradient[0] / SCALE[0], -0.5 / SCALE[1], gradient[1], 1 - 0.8**2]
    errors = found.vectors.std(0) / np.sqrt(200) * metric(place)
    assert (np.abs(found.mean.covector - expected) < 3 * errors).all()
    assert found.mean.ordinary == [1.0]  # parameters that are not Gaussian have gradients


def test_parameters_of_the_model_move_where_the_latents_have_values_alone():
    """Else the bound would be claimed to be at its optimum wherever they are."""

    def of_ordinary(value):
        return -8.0 * (value - 1.0) ** 2, -16.0 * (value - 1.0)

    engine = by_values(target(step=jump, of_ordinary=of_ordinary).engine())
    options = np.random.default_rng(0), Settings(0.05, 300), Progress(300, False)
    outcome = StochasticSearch(engine, *options).run(Place(CENTRE, np.log(SCALE)))
    assert outcome.converged and outcome.place.ordinary == pytest.approx(1.0, abs=0.02)


def test_the_way_by_values_takes_parameters_of_the_model_along(monkeypatch):
    def of_ordinary(value):
        return -8.0 * (value - 1.0) ** 2, -16.0 * (value - 1.0)

    def stalled(self, *_):
        return Reason.STALLED

    monkeypatch.setattr(Search, "begin", stalled)
    monkeypatch.setattr(
        Search, "finish", lambda self, _: Outcome(self.place, Reason.STALLED, 0.01, self.trace)
    )
    monkeypatch.setattr(legs, "FEW_OWN", 0)
    outcome = searched(target(step=jump, of_ordinary=of_ordinary), max_steps=1000)
    assert outcome.place.ordinary == pytest.approx(1.0, abs=0.05)


def test_no_gradients_are_asked_for_by_values_alone():
    engine = by_values(target(step=jump).engine())
    draws = engine.evaluator.draws(np.random.default_rng(0), 4)
    engine.evaluator.measure(Place(CENTRE, np.log(SCALE)), draws)
    assert engine.evaluator.num_gradients == 0


# -- other modes ----------------------------------------------------------------------


@pytest.mark.parametrize("cheap", [following.CHEAP, 0.0])
def test_climbs_that_lead_into_the_gaussian_end_the_looking(cheap, monkeypatch):
    monkeypatch.setattr(following, "CHEAP", cheap)
    one = target(of_prior=(0.0, 1.0))
    outcome = searched(one)
    assert outcome.converged
    assert names(outcome) == ["the guide's start"]
    spent = 5 * sum(count for _, count in one.measured)
    # Few gradients: so many climbs of a few steps each, or what is cheap.
    assert one.num_gradients - spent <= (cheap * spent or following.ENOUGH * 10)
    assert len(one.measured) < 40


def test_a_mode_that_is_higher_is_kept_and_both_are_told():
    outcome = searched(two_modes(5.0))
    assert outcome.converged
    assert is_at(outcome, NEAR, 0.1)
    assert outcome.audit.bound == pytest.approx(5.0, abs=0.05)
    kept, other = outcome.starts  # a second climb to the better one is not followed
    assert (kept.kept, kept.name) == ("kept", "another point")
    assert kept.bound == pytest.approx(outcome.audit.bound, abs=1e-9)
    assert (other.name, other.bound) == ("the guide's start", pytest.approx(0.0, abs=0.05))
    assert other.kept == "another optimum, 5.00 nats below"


def test_a_point_that_the_gaussian_misses_is_a_start(monkeypatch):
    """No climb leads to a mode that is too far for one and outside of the box."""
    monkeypatch.setattr(following, "climbed", lambda *_: [])
    one = two_modes(5.0, NEAR + 4.0)
    assert is_at(searched(one), np.zeros(2), 0.1)
    monkeypatch.setattr(modes, "missed", lambda *_: NEAR + 4.0)
    outcome = searched(one)
    assert is_at(outcome, NEAR + 4.0, 0.1)
    assert names(outcome) == ["a missed point", "the guide's start"]
    # Another optimum is known, and nothing else has led to this one: it is not established.
    assert outcome.reason is Reason.MODES and outcome.remaining < 0.05


def tower(theta):
    """On a hundredth of the posterior, between two jumps; gradients there are as elsewhere."""
    return np.where(np.abs(theta[:, 0] - CENTRE[0] - 2.4 * SCALE[0]) < 0.15 * SCALE[0], 12.0, 0.0)


def test_where_a_gaussian_misses_mass_between_jumps_values_lead_there(monkeypatch):
    outcome = searched(target(step=tower))
    assert outcome.converged and names(outcome)[0] == "a missed point"
    mean, sd = outcome.place.loc[0] - CENTRE[0], np.exp(outcome.place.log_scale[0])
    assert mean / SCALE[0] == pytest.approx(2.4, abs=0.1) and sd < 0.15 * SCALE[0]
    # By gradients from the same points a Gaussian six nats lower was claimed.
    monkeypatch.setattr(modes, "jumps", lambda *_: False)
    lower = searched(target(step=tower))
    assert lower.converged and lower.audit.bound < outcome.audit.bound - 3.0


def test_without_correlations_points_from_which_nothing_climbs_are_starts(monkeypatch):
    """Where mass is missed: their best optimum may be far from every top."""
    monkeypatch.setattr(following, "climbed", lambda *_: [])
    monkeypatch.setattr(modes, "missed", lambda *_: np.zeros(2))
    for module in (modes, following):
        points = np.array([NEAR + 4.0, np.zeros(2)])
        monkeypatch.setattr(module, "high_points", lambda *_, points=points: points)
    one = two_modes(5.0, NEAR + 4.0)
    assert is_at(searched(one), np.zeros(2), 0.1)
    one.is_restricted = True
    outcome = searched(one)
    assert is_at(outcome, NEAR + 4.0, 0.1)
    assert names(outcome)[0] == "a draw" and outcome.reason is Reason.MODES
    for module in (modes, following):
        monkeypatch.setattr(module, "high_points", lambda *_: np.array([NEAR + 4.0] * 2))
    assert searched(one).converged  # two have led there
    monkeypatch.setattr(modes, "missed", lambda *_: None)
    assert is_at(searched(one), np.zeros(2), 0.1)


def test_a_mode_as_high_is_told_and_one_far_below_is_not_searched():
    outcome = searched(two_modes(0.0))
    assert outcome.converged
    assert len(outcome.starts) == 2 and outcome.starts[1].kept == "the same bound"
    assert searched(two_modes(-30.0)).starts[1:] == ()


def test_a_bound_that_is_hardly_known_is_not_the_best():
    """Rounding makes a density enormous at some draws, where nothing is to be found."""
    settings, progress = Settings(0.05, 9), Progress(9, False)
    runner = legs.Legs(target().engine(), np.random.default_rng(0), settings, progress)
    for bound, error in ((190.0, 12.0), (2e15, 6e15)):
        runner._note(Outcome(POINT, Reason.STUCK, audit=Audit(bound, error, 0.0)), "a draw")
    assert [start.bound for start in runner._best().starts] == [190.0, 2e15]


def test_of_optima_that_noise_confuses_more_draws_tell_which_are_as_good(monkeypatch):
    """One that is 0.3 nats lower says nothing for the best, whatever the errors."""
    audit = one_leg.audit
    monkeypatch.setattr(following, "climbed", lambda *_: [])
    monkeypatch.setattr(modes, "missed", lambda *_: NEAR + 4.0)
    one = two_modes(0.3, NEAR + 4.0)
    monkeypatch.setattr(one_leg, "audit", lambda *args: audit(*args)._replace(error=0.15))
    outcome = searched(one)
    assert is_at(outcome, NEAR + 4.0, 0.1) and outcome.reason is Reason.MODES
    assert outcome.seen == 0 and outcome.starts[1].kept == "another optimum, 0.30 nats below"


def test_of_optima_that_noise_confuses_more_draws_tell_the_better(monkeypatch):
    """The better one, by 0.08 nats, seems worse by as much, within the errors."""
    audit, better = one_leg.audit, []

    def noisy(engine, place, rng):
        found = audit(engine, place, rng)
        better.append(np.allclose(engine.parameters.mean(place), NEAR, atol=0.1))
        return found._replace(bound=found.bound - 0.16 * better[-1], error=0.1)

    monkeypatch.setattr(one_leg, "audit", noisy)
    outcome = searched(two_modes(0.08))
    assert True in better and False in better and is_at(outcome, NEAR, 0.1)
    assert outcome.starts[0].kept == "kept" and outcome.starts[1].kept == "the same bound"


def test_the_same_optimum_twice_ends_the_looking(monkeypatch):
    """No further points are climbed from, nor where none has led anywhere."""
    counts = []
    climbed = following.climbed

    def counted(engine, points, *options):
        counts.append(len(points))
        return climbed(engine, points, *options)

    monkeypatch.setattr(following, "climbed", counted)
    searched(target())
    assert sum(counts) == 2 * following.MOST_CLIMBS  # they cost less than half of what led there
    counts.clear()
    monkeypatch.setattr(following, "CHEAP", 0.0)
    searched(target())
    assert sum(counts) == following.FEW_CLIMBS
    counts.clear()
    monkeypatch.setattr(
        following, "climbed", lambda _, points, *options: counts.append(len(points)) or []
    )
    assert searched(target()).converged and sum(counts) == following.NUM_CLIMBS


def test_where_climbs_do_not_begin_others_do(monkeypatch):
    """At six of seven points there is a density, and no slope."""
    climbed = following.climbed

    def some(engine, points, *options):
        ends = climbed(engine, points, *options)
        return [end._replace(height=-math.inf) if i % 7 else end for i, end in enumerate(ends)]

    monkeypatch.setattr(following, "CHEAP", 0.0)
    expected = searched(target()).seen
    assert expected == following.FEW_CLIMBS
    monkeypatch.setattr(following, "climbed", some)
    assert searched(target()).seen == expected


@pytest.mark.parametrize(
    ("heights", "more"),
    [
        ([], False),
        ([3.0], True),
        ([3.0, 3.0001, 3.0], False),  # mirror images, or the same
        ([3.0, 3.0, 2.0, 2.0, -5.0, -5.0], False),
        ([3.0, 2.0, 1.0], True),
        ([3.0, 3.0, 3.0, 1.0, -5.0], True),
    ],
)
def test_tops_that_were_met_once_tell_of_others(heights, more):
    tops = [climbs.Climbed(np.zeros(1), height, True) for height in heights]
    assert climbs.has_more(tops, 2) is more
    assert not climbs.has_more(tops, 10 * len(tops))  # most ended where it is known
    on_the_way = [climbs.Climbed(np.zeros(1), -height, False) for height in range(9)]
    assert climbs.has_more(tops + on_the_way, 2) is more
    assert len(climbs.heights(tops + on_the_way)) == len(set(np.round(heights)))


@pytest.mark.parametrize(
    ("least", "known", "more"),
    [(-9.0, 1, True), (-9.0, 2, False), (-1.5, 1, False), (-1.5, 0, True)],
)
def test_an_optimum_that_is_met_less_often_than_there_are_others_may_be_the_second(
    least, known, more
):
    """As with an unknown period: each of many tops is met often, and the highest hardly ever."""
    heights = [-1.0, -1.0, -1.2, -1.2, *[-5.0] * 9, *[-40.0] * 9]
    tops = [climbs.Climbed(np.zeros(1), height, True) for height in heights]
    assert climbs.has_more(tops, known, least) is more


@pytest.mark.parametrize(("least", "more"), [(-math.inf, False), (-9.0, True), (3.5, False)])
def test_low_tops_do_not_tell_whether_there_are_others_as_high(least, more):
    heights = [3.0, *[-23.0] * 8, *[-24.0] * 4]  # of a hidden chain whose states have other names
    tops = [climbs.Climbed(np.zeros(1), height, True) for height in heights]
    assert climbs.has_more(tops, 3, least) is more


@pytest.mark.parametrize(
    ("counts", "known", "more"),
    [
        ([3, 3, 3, 1], 20, True),  # one of thirty has been met once
        ([6, 6, 6, 1], 20, False),
        ([3, 3, 3, 3], 2, True),  # more kinds than climbs to the best
        ([3, 3, 3, 3], 3, False),
        ([3, 3, 1], 20, False),  # of a few, climbs to the best are enough
    ],
)
def test_of_many_tops_as_high_more_climbs_have_to_tell(counts, known, more):
    tops = [
        climbs.Climbed(np.zeros(1), -float(kind), True)
        for kind, count in enumerate(counts)
        for _ in range(count)
    ]
    low = [climbs.Climbed(np.zeros(1), -100.0 - height, True) for height in range(50)]
    assert climbs.has_more_as_high(tops + low, known, -9.0) is more
    best = Outcome(None, Reason.MODES, 0.01, seen=9, has_more_as_high=more)
    assert following.is_one_of_many(best) is more
    assert ("hardly any climb has met" in in_words(best, dict, 0.05, 100)) is more


@pytest.mark.parametrize(("bound", "has_jumps"), [(None, False), (-1.0, True), (-9.0, False)])
def test_climbs_that_end_at_jumps_tell_of_no_other_optima(bound, has_jumps):
    """There are jumps where a leg by values alone has ended about as high as the best."""
    search = with_ends(*([] if bound is None else [bound]))
    search.tops = [climbs.Climbed(CENTRE + 100.0, -float(kind), True) for kind in range(5)]
    if bound is not None:
        outcome, name = search.ended[-1]
        search.ended[-1] = dataclasses.replace(outcome, has_jump=True), name
    assert search._best().has_more_as_high is not has_jumps


def test_no_point_without_density_is_climbed_from():
    def half(place, value):
        return value if place.loc[0] < 0.0 else -np.inf

    engine, rng = target(change=half).engine(), np.random.default_rng(0)
    points = climbs.high_points(engine, rng, None, 2, 28)
    assert points.shape == (28, 2) and (points[:, 0] < 0.0).all()


def test_a_climb_by_the_scales_of_a_gaussian_ends_where_hardly_anything_is_left(monkeypatch):
    one = target(coupling=np.array([[1.0, 0.95], [0.95, 1.0]]))
    points = np.random.default_rng(0).uniform(-2.0, 2.0, (7, 2))
    costs, ends = [], []
    for flat in (climbs.FLAT, 1e-5):
        monkeypatch.setattr(climbs, "FLAT", flat)
        before = one.num_gradients
        ends.append(climbs.climbed(one.engine(), points, following.MAX_CLIMB, np.diag(SCALE)))
        costs.append(one.num_gradients - before)
    assert costs[0] < 0.9 * costs[1] and all(climb.is_top for climb in ends[0])
    gaps = [climb.height - exact.height for climb, exact in zip(*ends, strict=True)]
    assert gaps == pytest.approx([0.0] * 7, abs=1e-3)


@pytest.mark.parametrize(("height", "is_found"), [(5.0, True), (-5.0, False)])
def test_a_top_above_an_end_that_is_no_optimum_is_followed(height, is_found, monkeypatch):
    """A Gaussian of no wave, whose optimum noise hides, was all that was told of many tops."""
    note = one_leg.Runner._note

    def noted(self, outcome, name):
        if np.abs(outcome.place.loc).max() < 0.5:
            outcome = dataclasses.replace(outcome, reason=Reason.NOISE, remaining=0.2)
        note(self, outcome, name)

    monkeypatch.setattr(one_leg.Runner, "_note", noted)
    for name in ("_others", "_go_on"):
        monkeypatch.setattr(legs.Legs, name, lambda *_: None)
    outcome = searched(two_modes(height))
    assert outcome.reason is (Reason.CONVERGED if is_found else Reason.NOISE)
    assert is_at(outcome, NEAR if is_found else np.zeros(2), 0.1)
    assert (len(outcome.starts) == 2) is is_found


def test_climbs_end_early_at_a_known_top_and_no_other():
    """Where the density is as its Gaussian says."""
    one = two_modes(5.0)
    points = np.random.default_rng(0).uniform(-2.0, 2.0, (40, 2))
    factor = np.diag([0.1, 0.1])
    known = climbs.known_top(one.engine(), np.full(2, 0.05), factor)
    assert known.top.is_top and known.top.mean == pytest.approx(np.zeros(2), abs=0.01)
    costs, ends = [], []
    for top in (None, known):
        before = one.num_gradients
        ends.append(climbs.climbed(one.engine(), points, 75, factor, top))
        costs.append(one.num_gradients - before)
    gaps = [climb.height - full.height for climb, full in zip(ends[1], ends[0], strict=True)]
    assert gaps == pytest.approx(np.zeros(40), abs=2 * climbs.AS_LEVEL)
    met = sum(climb.mean is known.top.mean for climb in ends[1])
    assert 0 < met < 40 and costs[1] < costs[0] - met


def test_no_top_is_known_where_the_density_is_not_as_a_gaussian_says():
    one = two_modes(5.0)
    assert climbs.known_top(one.engine(), np.full(2, 30.0), np.full((2, 2), 1e3)) is None
    nowhere = target(change=lambda *_: -np.inf)
    assert climbs.known_top(nowhere.engine(), np.zeros(2), np.eye(2)) is None


def test_where_climbs_are_cheap_so_many_are_made_that_a_rare_mode_is_met(monkeypatch):
    """Every twenty-fifth climb leads to it."""
    found = {}
    for cheap in (0.0, following.CHEAP):
        monkeypatch.setattr(following, "CHEAP", cheap)
        one, settings = two_modes(5.0, np.full(2, 2.9)), Settings(0.05, 100)
        seeds = map(np.random.default_rng, range(10))
        ends = [run.search(one.engine(), rng, settings, False, None) for rng in seeds]
        found[cheap] = sum(outcome.audit.bound > 4.0 for outcome in ends)
    assert found[0.0] <= 4 and found[following.CHEAP] >= 8


def test_tops_are_as_high_that_lie_within_reach_of_the_best(monkeypatch):
    asked = []
    monkeypatch.setattr(following, "CHEAP", 0.0)
    monkeypatch.setattr(following, "has_more", lambda *args: asked.append(args[2]))
    assert searched(target()).converged
    (least,) = asked
    height = float(norm.logpdf(0.0, scale=SCALE).sum())
    assert least == pytest.approx(height - following.AS_HIGH - 1.0, abs=0.1)


@pytest.mark.parametrize(
    ("heights", "own", "more", "is_claimed"),
    [
        ([0.0] * 5, 5, False, True),
        ([0.0, 0.05, 0.0, -0.05], 4, False, True),
        ([0.0, 0.0, -3.0, -3.0], 2, False, True),
        ([0.0, 0.0, 0.0, -1.0], 3, True, True),
        ([0.0, -1.0, -2.0, -3.0], 1, True, False),
    ],
)
def test_a_gaussian_has_one_of_the_tops_that_it_covers(heights, own, more, is_claimed):
    """As broad as the prior, it covers many of which it knows nothing."""
    search = with_ends()
    search.tops = [climbs.Climbed(CENTRE, height, True) for height in heights]
    search.tops += [climbs.Climbed(CENTRE, -9.0, False)]  # on its way to the one that it has
    inside, others = search._parted(search._best_ended())
    assert inside == own + 1 and inside + len(others) == len(search.tops)
    assert search._best().has_more is more
    assert search._final().reason is (Reason.CONVERGED if is_claimed else Reason.MODES)


def test_heights_that_rounding_tells_apart_are_of_one_top():
    """In single precision a density of -4e6 is rounded by half a nat, and its sums by more."""

    def rounded(place, value):
        units = round(np.sin(1e5 * place.loc[0]))  # up here, and down there
        return float(np.float32(value - 2.0**22)) + 0.5 * units

    one = target(change=rounded, eps=2.0**-23)
    points = CENTRE + SCALE * np.random.default_rng(0).normal(size=(7, 2))
    tops = climbs.climbed(one.engine(), points, following.MAX_CLIMB, np.diag(SCALE))
    assert len({climb.height for climb in tops if climb.is_top}) > 1
    assert len(climbs.heights(tops)) == 1 and not climbs.beside_the_most(tops)
    other = tops[0]._replace(height=tops[0].height - 9.0)
    assert climbs.beside_the_most([*tops, other]) == [other]


def rugged():
    """A mode at the guide's start, many lower ones about it, and among these a higher one."""
    centres = np.random.default_rng(10).uniform(-2.0, 2.0, (20, 2))
    heights = [5.0, *-np.arange(1.0, 20.0)]
    others = tuple(zip(centres, heights, strict=True))
    return target(centre=np.zeros(2), scale=np.full(2, 0.05), others=others)


def test_where_climbs_end_at_ever_new_tops_more_are_made(monkeypatch):
    outcome = searched(rugged())
    assert outcome.audit.bound == pytest.approx(5.0, abs=0.05) and outcome.num_tops > 5
    assert outcome.converged  # as others led there while climbs cost less than the fit
    monkeypatch.setattr(following, "CHEAP", 0.0)
    monkeypatch.setattr(following, "MOST_OF_MANY", following.MOST_CLIMBS)
    outcome = searched(rugged())
    assert outcome.audit.bound == pytest.approx(5.0, abs=0.05) and outcome.num_tops > 5
    assert outcome.reason is Reason.MODES  # the only one of many that led there
    monkeypatch.setattr(following, "MOST_IF_CHEAP", following.NUM_CLIMBS)
    settings, seeds = Settings(0.05, 100), map(np.random.default_rng, range(5))
    few = [run.search(rugged().engine(), rng, settings, False, None) for rng in seeds]
    assert min(one.audit.bound for one in few) == pytest.approx(0.0, abs=0.05)


def test_starts_that_agree_do_not_end_the_climbs(monkeypatch):
    """Broad starts pass over a narrow mode that a climb may meet."""
    first_leg = legs.Legs._first_leg

    def with_others(self, start, *others):
        for _ in range(following.ENOUGH):
            self._begin(start)
        return first_leg(self, start, *others)

    monkeypatch.setattr(legs.Legs, "_first_leg", with_others)
    assert is_at(searched(two_modes(5.0)), NEAR, 0.1)


def test_a_rough_end_that_noise_flatters_is_followed_to_its_end(monkeypatch):
    first_leg = legs.Legs._first_leg

    def with_another(self, start, *others):
        outcome = first_leg(self, start, *others)
        rough = self._begin(start).outcome
        self._audit_begun()
        self.begun[0].outcome = dataclasses.replace(rough, audit=Audit(1.0, 0.3, 0.0))
        return outcome

    monkeypatch.setattr(legs.Legs, "_first_leg", with_another)
    outcome = searched(target())
    assert outcome.converged and outcome.audit.bound == pytest.approx(0.0, abs=0.05)
    assert [start.kept for start in outcome.starts] == ["kept", "the same bound"]


@pytest.mark.parametrize(("status", "is_new"), [(None, False), (Reason.OVERFITTED, True)])
def test_a_start_that_came_to_no_end_hides_no_top(status, is_new):
    settings, rng = Settings(0.05, 9), np.random.default_rng(0)
    search = legs.Legs(two_modes(5.0).engine(), rng, settings, Progress(9, False))
    broad = Outcome(Place(NEAR, np.zeros(2)), Reason.TRIED, audit=Audit(-9.0, 0.1, 0.0))
    search.begun.append(one_leg.Begun(None, status, broad, "a draw"))
    assert search._is_known(climbs.Climbed(NEAR + 0.1, 5.0, True)) is not is_new


@pytest.mark.parametrize(("height", "is_known"), [(1.0, True), (5.0, False)])
def test_a_broad_gaussian_does_not_hide_a_narrow_top_far_above_it(height, is_known):
    """A line through a wave that was not found is as broad as the prior of its frequency."""
    search = with_ends()
    search.ended[0][0].place.log_scale[:] = np.log(30.0)
    level = search._level(search._best().place)
    least = following.NOT_ABOVE + 2 * following.NOT_ABOVE_EACH
    for above in (height, least - 0.01, least + 0.01):
        expected = is_known if above == height else above < least
        assert search._is_known(climbs.Climbed(CENTRE + 9.0, level + above, True)) is expected


@pytest.mark.parametrize(("bound", "is_another"), [(-6.5, False), (-4.0, True)])
def test_a_leg_that_has_narrowed_to_more_than_a_broad_gaussian_leads_elsewhere(bound, is_another):
    search = with_ends()
    [(broad, name)] = search.ended
    place = Place(CENTRE, np.full(2, np.log(30.0)))
    search.ended = [(dataclasses.replace(broad, place=place, audit=Audit(-7.0, 0.0, 0.0)), name)]
    rng = np.random.default_rng(0)
    begun = search._begin(start_at(search.engine, rng, 4, CENTRE + 0.1, ""))
    begun.outcome = dataclasses.replace(begun.outcome, audit=Audit(bound, 0.01, 0.0))
    search._weigh(begun, place)
    assert (len(search.ended) == 2) is is_another and (search.seen == 1) is not is_another


def test_a_leg_that_leads_into_the_best_gaussian_keeps_no_other_from_its_end():
    """It has a better rough end than the other, which would come to the higher optimum."""
    settings, rng = Settings(0.05, 100), np.random.default_rng(0)
    search = legs.Legs(two_modes(5.0).engine(), rng, settings, Progress(100, False))
    first, second = (start_at(search.engine, rng, 4, mean, "") for mean in (np.zeros(2), NEAR))
    place = search._leg(first).place
    for one, bound in ((first, 0.0), (second, -1.0)):
        begun = search._begin(one)
        begun.outcome = dataclasses.replace(begun.outcome, audit=Audit(bound, 0.01, 0.0))
        search._weigh(begun, place)
    assert search.seen == 0 and is_at(search._best(), NEAR, 0.1)


def with_ends(*bounds):
    """Legs that have ended at the best optimum, and at others far away."""
    settings, rng = Settings(0.05, 9), np.random.default_rng(0)
    search = legs.Legs(target().engine(), rng, settings, Progress(9, False))
    best = Place(CENTRE, np.log(SCALE))
    for place, bound in ((best, 0.0), *((Place(FAR, np.zeros(2)), bound) for bound in bounds)):
        audit = Audit(bound, 0.01, 0.0)
        search._note(Outcome(place, Reason.CONVERGED, 0.01, audit=audit), "another point")
    return search


@pytest.mark.parametrize(("seen", "is_claimed"), [(0, False), (1, False), (2, True)])
def test_an_optimum_that_fewer_starts_have_led_to_than_to_others_is_not_claimed(seen, is_claimed):
    search = with_ends(-1.0, -1.0, -2.0)
    search.seen = seen
    assert search._final().reason is (Reason.CONVERGED if is_claimed else Reason.MODES)


@pytest.mark.parametrize(("bounds", "is_known", "is_claimed"), [
    ((-1.0,), False, False),
    ((-1.0,), True, True),
    ((), False, True),
])  # fmt: skip
def test_where_climbs_come_to_no_end_the_best_of_several_is_not_claimed(
    bounds, is_known, is_claimed
):
    search = with_ends(*bounds)
    search.seen = 3
    on_the_way = climbs.Climbed(FAR, -9.0, False)
    search.tops = 7 * [on_the_way] + is_known * [climbs.Climbed(CENTRE, 0.0, True)]
    assert search._final().reason is (Reason.CONVERGED if is_claimed else Reason.MODES)


def test_an_optimum_below_a_top_that_no_steps_are_left_for_is_not_claimed(monkeypatch):
    follow = modes.Modes._follow

    def without_steps(self, *args):
        self._used = self.settings.max_steps
        return follow(self, *args)

    monkeypatch.setattr(modes.Modes, "_follow", without_steps)
    outcome = searched(two_modes(5.0))
    assert is_at(outcome, np.zeros(2), 0.1) and outcome.reason is Reason.MODES
    assert outcome.is_cut and "raise max_steps" in in_words(outcome, dict, 0.05, 100)
    assert searched(target()).converged


@pytest.mark.parametrize(("above", "more"), [(-15.0, True), (-5.0, True), (0.1, False)])
def test_tops_far_above_an_optimum_that_lead_nowhere_are_no_modes(above, more, monkeypatch):
    """As a funnel's, which have hardly any mass: ten nats and half a nat a latent above."""
    monkeypatch.setattr(following, "CHEAP", 0.0)
    one = legs.Legs(
        target().engine(), np.random.default_rng(0), Settings(0.05, 100), Progress(100, False)
    )
    assert one.run(None).converged
    (level,) = one.engine.evaluator.values(one._best().place, one._best().place.loc[None])
    height = level + 10.0 + 0.5 * 2 + above
    one.tops += [climbs.Climbed(CENTRE + 1e3 * k, height + k, True) for k in range(3)]
    assert one._best().has_more is more


@pytest.mark.parametrize(("is_rare", "word"), [(True, "not"), (False, "the")])
def test_an_end_that_a_few_draws_make_up_is_not_the_same_optimum(is_rare, word):
    place = Place(CENTRE, np.zeros(2))
    best = Outcome(place, Reason.CONVERGED, audit=Audit(-121.1, 0.03, 0.0))
    audit = Audit(-4.796e15, 4.794e15, 0.0, is_rare=is_rare)
    other = Outcome(place, Reason.STUCK, audit=audit)
    assert one_leg.compared(best, other).split()[0] == word


@pytest.mark.parametrize(
    ("apart", "limit", "count"), [(0.1, 0, 3), (30.0, 0, 6), (0.1, math.inf, 6)]
)
def test_spikes_that_all_lead_to_the_same_low_bound_are_not_all_followed(
    monkeypatch, apart, limit, count
):
    """Unless looking is cheap, or their ends differ."""
    one = legs.Legs(
        target().engine(), np.random.default_rng(0), Settings(0.05, 100), Progress(100, False)
    )
    assert one.run(None).converged
    level = one._level(one._best().place)
    tops = [climbs.Climbed(CENTRE + 1e3 * k, level + 50.0 * k, True) for k in range(1, 7)]
    begun = []

    def begin(start):
        audit = Audit(-330.0 - apart * len(begun), 0.01, 0.0)
        outcome = Outcome(start.place, Reason.TRIED, audit=audit)
        begun.append(one_leg.Begun(SimpleNamespace(place=start.place), None, outcome, start.name))
        one.begun.append(begun[-1])
        return begun[-1]

    monkeypatch.setattr(one, "_begin", begin)
    monkeypatch.setattr(one, "_is_known", lambda _: False)
    place = Place(CENTRE, np.zeros(2))
    monkeypatch.setattr(following, "start_at", lambda *_: SimpleNamespace(place=place, name="a"))
    monkeypatch.setattr(one, "_is_inside", lambda *_: False)
    assert one._follow(tops, 0, limit) == len(begun) == count


def test_a_mode_of_single_precision_alone_is_no_mode():
    def density(theta):
        return normal(theta / 0.1, np.log([0.1, 0.1]))

    options = {"eps": 2.0**-23, "in_double": density}
    outcome = searched(two_modes(50.0, **options))
    assert outcome.converged and is_at(outcome, np.zeros(2), 0.1)
    assert "another point" not in names(outcome)
    alone = searched(two_modes(50.0, centre=np.zeros(2), **options))
    assert alone.reason is Reason.ROUNDED and alone.remaining == pytest.approx(50.0, abs=5.0)


@pytest.mark.parametrize("size", [1, legs.NETWORK[0]])
def test_beside_few_parameters_of_the_model_other_modes_are_looked_for(size):
    """A learned noise does not make a frequency the right one."""

    def of_ordinary(value):
        return -0.5 * np.sum((value - 0.3) ** 2), 0.3 - value

    one = two_modes(5.0, of_ordinary=of_ordinary, of_start=np.zeros(size))
    outcome = searched(one, max_steps=200)
    assert np.allclose(outcome.place.ordinary, 0.3, atol=0.05)
    if size == 1:
        assert is_at(outcome, NEAR, 0.1) and "another point" in names(outcome)
    else:
        assert set(names(outcome)) == {FIRST, "the guide's start", "other parameters"}


class Swept(Target):
    """One that is told which rows to see."""

    def measure(self, place, draws, rows):
        return Target.measure(self, place, draws)

    def values(self, place, theta, rows):
        return Target.values(self, place, theta)

    def values_and_gradients(self, place, theta, rows):
        return Target.values_and_gradients(self, place, theta)


@pytest.mark.parametrize("num_minibatches", [4, legs.SWEPT + 1])
def test_other_modes_are_climbed_to_where_a_sweep_has_few_minibatches(num_minibatches):
    """Else a frequency that few rows know would be told by the first start alone."""
    options = two_modes(5.0)
    one = Swept(
        options.centre, options.scale, options.others, rows=Rows("data", 2 * num_minibatches, 2)
    )
    outcome = searched(one)
    assert outcome.converged
    if num_minibatches <= legs.SWEPT:
        assert is_at(outcome, NEAR, 0.1) and names(outcome)[0] == "another point"
    else:
        assert names(outcome) == ["the guide's start"] and not outcome.seen
        assert "other optima have not been looked for" in in_words(outcome, dict, 0.05, 100)


def test_climbs_have_the_parameters_of_the_best_end(monkeypatch):
    """A noise that starts far off hides all but the smoothest of tops."""
    seen = []

    def values_and_gradients(self, place, theta):
        seen.append(float(place.ordinary))
        return given(self, place, theta)

    given = Target.values_and_gradients
    monkeypatch.setattr(Target, "values_and_gradients", values_and_gradients)
    outcome = searched(
        two_modes(-3.0, of_ordinary=lambda value: (-((value - 3.0) ** 2), 6.0 - 2 * value))
    )
    assert outcome.converged and np.allclose(seen, 3.0, atol=0.2)
    begun = [start for start in outcome.starts if start.name == "another point"]
    assert begun and all(abs(start.bound + 3.0) < 0.5 for start in begun)


# -- parameters of the model's own ----------------------------------------------------


#: The start at which many of them have been moved by a pair of draws for each step.
FIRST = "its parameters first"


def network(height, reach=1.0, size=12):
    """So many parameters of the model's own, with an optimum at zero and, so high, another at -2,
    both of which a random start meets; they start about the first.
    """
    far = np.full(size, -2.0)

    def of_ordinary(value):
        gaps = [value, value - far]
        levels = [-0.5 * gap @ gap + h for gap, h in zip(gaps, (0.0, height), strict=True)]
        best = int(np.argmax(levels))
        return levels[best], -gaps[best]

    start = np.full(size, reach) * np.resize([1.0, -1.0], size)
    return target(of_ordinary=of_ordinary, of_start=start)


def test_many_parameters_of_the_model_race_and_a_better_optimum_of_theirs_is_kept():
    outcome = searched(network(23.0))
    assert np.allclose(outcome.place.ordinary, -2.0, atol=0.1)
    assert outcome.starts[0].name == "other parameters"
    given = next(start for start in outcome.starts if start.name == FIRST)
    assert given.kept.startswith("another optimum, 23.") and given.bound < 0.1


def test_given_parameters_that_end_higher_stay():
    outcome = searched(network(-3.0))
    assert np.allclose(outcome.place.ordinary, 0.0, atol=0.1)
    assert outcome.starts[0].name == FIRST


def test_parameters_with_one_optimum_are_seen_to_have_one_after_two_short_starts():
    outcome = searched(network(-1e3))
    assert outcome.converged and outcome.seen == legs.OWN_SAME
    others = legs.OWN_SAME * ["other parameters"]
    assert sorted(names(outcome)) == [FIRST, *others, "the guide's start"]


def test_an_optimum_of_many_parameters_that_one_start_alone_has_led_to_is_not_claimed(monkeypatch):
    """Each start has an optimum of its own."""
    one, seen = network(0.0), []

    def of_ordinary(value):
        if not seen or np.abs(value - seen[-1]).max() > 0.5:
            seen.append(np.array(value))
        near = int(np.argmin([np.abs(value - other).max() for other in seen]))
        gap = value - seen[near] - 0.1
        return near % 5 - 0.5 * gap @ gap, -gap

    one.of_ordinary = of_ordinary
    outcome = searched(one)
    assert outcome.reason is Reason.MODES and not outcome.seen


@pytest.mark.parametrize("seen", range(legs.OWN_SAME + 1))
def test_an_optimum_of_many_parameters_is_claimed_if_enough_others_led_to_it(monkeypatch, seen):
    """One other may be chance: networks have many optima."""

    def race(self, _):
        self.seen = self.seen_own = seen

    monkeypatch.setattr(legs.Legs, "_race_parameters", race)
    # A second start, as a race leaves behind.
    monkeypatch.setattr(legs.Legs, "_look_for_modes", lambda *_: None)
    first = legs.Legs._first_leg

    def twice(self, *starts):
        first(self, *starts)
        return first(self, *starts)

    monkeypatch.setattr(legs.Legs, "_first_leg", twice)
    outcome = searched(network(-3.0))
    assert outcome.converged == (seen == legs.OWN_SAME)
    assert outcome.converged or outcome.reason is Reason.MODES


def test_of_few_parameters_two_others_that_lead_to_the_same_optimum_are_enough():
    outcome = searched(network(-1e3, size=legs.NETWORK[0] - 1))
    assert outcome.converged and outcome.seen_own == legs.FEW_SAME
    assert names(outcome) == ["the guide's start"] + legs.FEW_SAME * ["other parameters"]


@pytest.mark.parametrize(("height", "end"), [(5.0, 1.5), (-5.0, 0.0)])
def test_a_number_of_the_model_has_other_optima_too(height, end):
    """As of two rates that can take each other's place; narrow starts where wide ones have no
    bound, as a start at other values may need."""

    def of_ordinary(value):
        levels = np.array([0.0, height]) - 0.5 * (10 * (value - np.array([0.0, 1.5]))) ** 2
        return levels.max(), -100 * (value - 1.5 * levels.argmax())

    def wall(place, value):
        is_wide = place.log_scale.max() > np.log(0.5)
        return -np.inf if abs(place.ordinary) > 0.7 and is_wide else value

    outcome = searched(two_modes(-9.0, of_ordinary=of_ordinary, change=wall), max_steps=200)
    assert outcome.place.ordinary == pytest.approx(end, abs=0.05)
    assert outcome.starts[0].name == ("other parameters" if end else "the guide's start")
    if end:  # climbs have led there, too, but all with these parameters
        assert outcome.reason is Reason.MODES and outcome.seen > outcome.seen_own == 0
        assert "but only one start led to it" in in_words(outcome, dict, 0.05, 200)


# -- steps, and interruptions ---------------------------------------------------------


def test_the_steps_of_all_starts_are_counted_and_a_race_has_as_many_again(by_gradients):
    outcome = searched(target(change=stuck_unless(is_near)), max_steps=60)
    assert sum(start.num_steps for start in outcome.starts) <= 60 + len(outcome.starts)
    outcome = searched(target(change=stuck_unless(is_near)), max_steps=20)
    assert not outcome.converged
    assert sum(start.num_steps for start in outcome.starts) <= 2 * 20 + len(outcome.starts)


def test_what_other_starts_have_found_survives_an_interruption(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(following, "climbed", interrupted)
    outcome = searched(target())
    assert outcome.reason is Reason.INTERRUPTED and is_at(outcome, CENTRE)
    monkeypatch.undo()

    one, calls = two_modes(0.0), []

    def interrupt(place, value):
        if place.log_scale[0] != POINT and np.abs(place.loc - NEAR).max() < 0.2:
            calls.append(place)
            if len(calls) > 10:
                raise KeyboardInterrupt  # in the second leg, which is no better
        return value

    one.change = interrupt
    outcome = searched(one)
    assert outcome.reason is Reason.INTERRUPTED and is_at(outcome, np.zeros(2), 0.1)
    assert one.written == [outcome.place]
    assert outcome.audit.bound == pytest.approx(0.0, abs=0.05) and outcome.remaining < 0.05


def test_the_first_of_two_that_begin_survives_an_interruption_of_the_second():
    one, calls = target(centre=np.zeros(2), of_prior=(FAR, 10.0)), []

    def interrupt(place, value):
        if place.log_scale[0] != POINT and np.abs(place.loc).max() > 100:
            calls.append(place)
            if len(calls) > 3:
                raise KeyboardInterrupt
        return value

    one.change = interrupt
    outcome = searched(one)
    assert outcome.reason is Reason.INTERRUPTED and names(outcome) == ["the guide's start"]
    assert np.abs(outcome.place.loc).max() < 1.0
    assert outcome.starts[0].bound == pytest.approx(0.0, abs=0.5)


def test_a_start_on_its_way_up_survives_an_interruption_too(by_gradients):
    """It is above where the one before has ended."""
    one, calls = target(change=stuck_unless(is_near)), []

    def interrupt(place, value):
        if place.log_scale[0] != POINT and is_near(place):
            calls.append(place)
            if len(calls) > 40:
                raise KeyboardInterrupt
        return stuck_unless(is_near)(place, value)

    one.change = interrupt
    outcome = searched(one)
    assert outcome.reason is Reason.INTERRUPTED and is_near(outcome.place)


def test_minibatches_have_one_start_and_no_audit_by_them():
    outcome = searched(target(is_subsampled=True, of_prior=(FAR, 1.0)))
    assert outcome.converged
    assert names(outcome) == ["the guide's start"]


def test_legs_that_have_not_begun_are_interrupted_where_they_are():
    engine = target().engine()
    settings = Settings(0.05, 10)
    one = legs.Legs(engine, np.random.default_rng(0), settings, Progress(10, False))
    outcome = one.interrupted()
    assert outcome.place is engine.parameters.initial
    assert dataclasses.asdict(outcome.trace)["losses"] == []


# -- integrals -------------------------------------------------------------------------


class Higher(Target):
    """It integrates something else than its log density, whose gradients are the same."""

    def measure(self, place, draws):
        found = super().measure(place, draws)
        return found._replace(values=found.values + 3.0)


def test_a_bound_that_is_integrated_has_no_noise_of_draws():
    one = target(is_exact=True, steepness=0.9)
    outcome = searched(one)
    expected = target(steepness=0.9).measure(outcome.place, one.draws(np.random.default_rng(0), 1))
    assert outcome.converged
    assert outcome.audit.bound == outcome.starts[0].bound == expected.value
    assert outcome.audit.error == outcome.starts[0].bound_error == 0.01
    by_draws = searched(target(steepness=0.9)).audit
    assert by_draws.bound != expected.value
    assert by_draws.bound == pytest.approx(expected.value, abs=5 * by_draws.error)


def test_draws_that_contradict_an_integral_take_the_claim_back():
    outcome = searched(Higher(CENTRE, SCALE, is_exact=True))
    assert outcome.reason is Reason.JUMP
    assert outcome.remaining == pytest.approx(3.0, abs=0.5)
    assert searched(Higher(CENTRE, SCALE)).converged  # nobody looks


# -- beyond the precision -------------------------------------------------------------


def test_ends_that_are_alike_where_rounding_hides_their_bounds_are_enough(monkeypatch):
    """The data are so far off that no start is better than others; 24 raced."""
    monkeypatch.setattr(legs, "find_other_start", lambda *_: None)
    one = target(centre=np.full(2, 1e20), scale=np.ones(2), of_prior=(np.zeros(2), np.ones(2)))
    outcome = searched(one, max_steps=1000)
    assert outcome.reason is Reason.STUCK and outcome.audit.bound < -1e39
    assert len(outcome.starts) == one_leg.NUM_ALIKE
    assert sum(ended.num_steps for ended in outcome.starts) < 100


def test_a_climb_that_ends_beside_an_overflow_is_on_no_top_and_does_not_warn():
    """A density like ``-exp(10 x)`` has gradients of 1e300, the squares of which are infinite."""
    steep = SimpleNamespace(
        values_and_gradients=lambda _, points: (np.zeros(len(points)), np.full_like(points, 1e300))
    )
    engine = SimpleNamespace(
        evaluator=steep, parameters=SimpleNamespace(initial=None, eps=np.finfo(float).eps)
    )
    [climb] = climbs.climbed(engine, np.zeros((1, 2)), 10)
    assert climb.height == 0.0 and not climb.is_top


def test_an_end_where_all_is_rounding_is_no_better_than_an_optimum():
    """A negative binomial's density is 20,000 nats too high at a concentration of 1e124."""

    def ended(bound, reason, remaining):
        place = Place(CENTRE, np.log(SCALE))
        return Outcome(place, reason, remaining, audit=Audit(bound, 0.1, 0.0))

    optimum = ended(-567.7, Reason.CONVERGED, 0.02)
    astray = ended(20_200.0, Reason.STALLED, 6e88)
    assert one_leg.level_of(astray) < one_leg.level_of(optimum)
    assert "all is rounding" in one_leg.compared(optimum, astray)
    # Of raw scales a start may be as far off as its bound is low.
    far = ended(-1e9, Reason.STALLED, 1e10)
    assert one_leg.level_of(far) > one_leg.level_of(ended(-2e9, Reason.CONVERGED, 0.02))


@pytest.mark.parametrize(("num_spikes", "is_cut"), [(0, True), (following.MANY_SPIKES, False)])
def test_a_spike_for_which_no_steps_are_left_is_no_loss_after_many_that_led_nowhere(
    num_spikes, is_cut
):
    """Climbs of a funnel end at one height after another, and each takes steps."""
    search = with_ends()
    nowhere = SimpleNamespace(outcome=SimpleNamespace(audit=None))
    search.spikes, search._used = [nowhere] * num_spikes, search.settings.max_steps
    spike = climbs.Climbed(CENTRE + 100.0, 1e3, False)
    assert not search._follow([spike], 0, 10**9) and search.is_cut is is_cut
