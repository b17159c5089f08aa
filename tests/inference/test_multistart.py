"""Several starts: the best optimum, what is claimed of it, and for how many gradients."""

from __future__ import annotations

import math
import pickle
from unittest import mock

import numpy as np
import pytest

from ngvi.inference.api import found_optima, optimise
from ngvi.inference.options import (
    EFFORTS,
    LEVELS,
    FitOptions,
    MultiStartOptions,
    StartOptions,
)
from ngvi.inference.request import Request
from ngvi.inference.runs import FAR, are_apart
from ngvi.inference.search import Status
from ngvi.inference.verdict.outcome import CERTIFIED, LOCAL, NOT_CONVERGED, Ending, in_words
from tests.inference.numpy_problem import (
    CENTRE,
    OPTIMUM,
    SCALE,
    State,
    Target,
    divergence,
    gaussian,
    mixture,
    normal,
)

DISTANT = np.full(2, 6.0)
TWO = mixture((1.0, [0.0, 0.0], 0.3), (5.0, DISTANT, 0.3))


def solved(target, seed=0, state=None, share=1.0, **options):
    request = Request(**{"tolerance": 0.05, "max_steps": 400, **options})
    with mock.patch.dict(EFFORTS, standard=share):
        return optimise(target.problem(), np.random.default_rng(seed), request, state)


# -- verdicts --------------------------------------------------------------------------


def jump(theta):
    return np.where(theta[:, 0] > CENTRE[0], 2.0, 0.0)


def many_modes(theta):
    return 3.0 * np.cos(4.0 * theta).sum(-1) + normal(theta / 5.0)


def with_parameters(theta, own):
    return gaussian(theta) - 5.0 * np.sum((own - 1.0) ** 2)


def cliff(theta):
    return np.where(theta[:, 0] > CENTRE[0] + 3.5 * SCALE[0], -1e4, 0.0)


VERDICTS = {
    "one optimum": (CERTIFIED, {"smooth": gaussian, "of_prior": (0.0, 3.0)}, {}),
    "no prior": (CERTIFIED, {"smooth": gaussian}, {}),
    "a prior elsewhere": (
        CERTIFIED,
        {"smooth": lambda x: gaussian(x, np.full(2, 100.0), np.ones(2)), "of_prior": (100.0, 2.0)},
        {},
    ),
    "two optima": (CERTIFIED, {"smooth": TWO, "of_prior": (3.0, 4.0)}, {}),
    "a jump": (NOT_CONVERGED, {"smooth": gaussian, "unseen": jump, "of_prior": (0.0, 3.0)}, {}),
    "parameters": (CERTIFIED, {"smooth": with_parameters, "own": np.zeros(2)}, {}),
    "an integral": (
        CERTIFIED,
        {"smooth": lambda x: (3 * x - np.exp(x)).sum(-1) + normal(x / 3), "is_exact": True},
        {},
    ),
    "many optima": (LOCAL, {"smooth": many_modes, "of_prior": (0.0, 5.0)}, {}),
    "no exploration": (LOCAL, {"smooth": TWO, "of_prior": (3.0, 4.0)}, {"effort": "quick"}),
    "minibatches": (LOCAL, {"smooth": gaussian, "noise": 0.3, "is_subsampled": True}, {}),
    "rare losses": (NOT_CONVERGED, {"smooth": gaussian, "unseen": cliff}, {}),
    "too few steps": (
        NOT_CONVERGED,
        {"smooth": lambda x: -np.sum((x - 30.0) ** 4, -1)},
        {"max_steps": 2, "state": State(np.zeros(2), np.zeros(2))},
    ),
    "nowhere": (NOT_CONVERGED, {"smooth": lambda x: math.nan * x[:, 0]}, {}),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_is_what_is_known(name):
    verdict, target, request = VERDICTS[name]
    target = Target(**target)
    outcome = solved(target, **request)
    assert outcome.verdict == verdict and outcome.converged == (verdict != NOT_CONVERGED)
    best, found = outcome.optimum, outcome.exploration
    assert target.written == [best.state] and best is outcome.optima[0]
    if verdict != NOT_CONVERGED:
        assert best.status is Status.OPTIMUM and best.certificate.is_met(0.05)
        assert outcome.finding is None and outcome.ending is None
    if verdict == CERTIFIED:
        assert found.probability <= MultiStartOptions().unseen and best.count > 0
        assert (
            found.num_starts == sum(one.count for one in outcome.optima) + found.num_without_optimum
        )
    ranks = [one.rank(LEVELS.same) for one in outcome.optima]
    assert ranks == sorted(ranks, reverse=True)


# -- other optima ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_a_needle_that_has_the_mass_of_a_better_optimum_is_one(seed):
    """Its mode is as high above the other as the neck of a funnel would be."""

    def density(theta):
        needle = 10.0 - 1.5 * np.log1p(((theta[:, 0] - 4.0) / 1e-4) ** 2)
        return np.logaddexp(gaussian(theta, np.array([-4.0]), np.ones(1)), needle)

    prior = np.zeros(1), 3.0 * np.ones(1)
    found = solved(Target(density, dim=1, of_prior=prior, start=(-4.0, 1.0)), seed)
    assert found.optimum.state.mean[0] == pytest.approx(4.0, abs=1e-3)
    assert found.optimum.validation.bound > 1.0


@pytest.mark.parametrize("seed", range(2))
def test_the_higher_of_two_modes_is_found_and_both_are_kept(seed):
    target = Target(TWO, of_prior=(3.0, 4.0))
    outcome = solved(target, seed)
    np.testing.assert_allclose(outcome.optimum.state.mean, DISTANT, atol=0.1)
    assert [one.validation.bound for one in outcome.optima] == pytest.approx(
        [math.log(5.0), 0.0], abs=0.05
    )
    high, low = found_optima(outcome, target.problem())
    assert high.is_certified and high.num_starts + low.num_starts >= 8
    np.testing.assert_allclose(low.params["mean"], [0.0, 0.0], atol=0.1)
    kept, other = outcome.restarts()
    assert kept.status == "kept" and "another optimum, 1.6" in other.status


def test_modes_of_the_same_height_count_as_one_and_each_is_named():
    mirror = mixture((1.0, [-4.0, 0.0], 0.5), (1.0, [4.0, 0.0], 0.5))
    start = (np.array([3.0, 0.0]), 1.0)
    target = Target(mirror, start=start, of_prior=(0.0, 4.0))
    outcome = solved(target)
    assert outcome.verdict == CERTIFIED and len(outcome.optimum.images) == 1
    assert outcome.exploration.num_starts >= 4
    own, image = found_optima(outcome, target.problem())
    assert own.weight == pytest.approx(0.5, abs=0.05) and own.weight + image.weight == 1.0
    np.testing.assert_allclose(image.params["mean"], -own.params["mean"], atol=0.2)
    target.noise_dim += 1  # as of a mixture, which is all of the posterior
    assert [one.weight for one in found_optima(outcome, target.problem())] == [1.0, 0.0]
    said = in_words(outcome, dict, Request(0.05, 100))
    assert "other optima with the same bound, as when labels or signs are switched: 1" in said
    assert "holds at most 1/2 of the posterior" in said and "reached it or these" in said


def test_ends_along_a_ridge_are_no_images():
    """Far from each other in standard deviations of a mean field, and higher half-way."""
    ridge = np.linalg.inv([[1.0, 0.999], [0.999, 1.0]])
    target = Target(lambda x: -0.5 * np.einsum("...i,ij,...j->...", x, ridge, x))
    one, other = (State(np.full(2, at), np.log(np.full(2, 0.04))) for at in (-0.3, 0.3))
    assert target.square_distance(one, other.mean) > FAR
    assert not are_apart(target.problem(), one, other)


@pytest.mark.parametrize("seed", [0, 1])
def test_ascents_that_end_short_of_one_mode_lead_to_one_optimum(seed):
    def neck(theta):  # whose mode is far from the mass
        scale, rest = theta[:, 0], theta[:, 1:]
        squares = np.sum(rest**2, 1) * np.exp(-scale) + rest.shape[1] * scale
        return -0.5 * (scale**2 + squares + np.sum((rest - 0.7) ** 2, 1) / 0.3)

    costs = []
    for max_steps in (400, 20):
        target, options = Target(neck, dim=12), FitOptions(starts=StartOptions(max_steps=max_steps))
        assert solved(target, seed, options=options).verdict == CERTIFIED
        costs.append(target.cost.gradients)
    assert costs[1] < costs[0]  # a run of its own for each would take twice as many


APART = mixture((1.0, [0.0, 0.0], 0.3), (1.0, [2 * np.pi, 0.0], 0.3))


@pytest.mark.parametrize(
    ("density", "is_angle"),
    [(lambda x: 9 * np.cos(x[..., 0]) - 9 * x[..., 1] ** 2, True), (APART, False)],
)
def test_an_angle_after_a_turn_is_the_same_place(density, is_angle):
    one, other = (State(np.array([at, 0.0]), np.log([0.3, 0.3])) for at in (0.01, 2 * np.pi))
    assert are_apart(Target(density).problem(), one, other) is not is_angle


def test_a_mode_without_mass_hides_no_optimum():
    """A spike of height, and of hardly any mass: the Gaussian beside it is the best."""
    spike = mixture((1.0, [0.0, 0.0], 1.0), (1e-4, [3.0, 3.0], 1e-4))
    outcome = solved(Target(spike, of_prior=(0.0, 3.0)))
    np.testing.assert_allclose(outcome.optimum.state.mean, [0.0, 0.0], atol=0.1)
    assert outcome.converged


def test_a_higher_mode_from_which_no_optimum_is_reached_may_be_a_better_one():
    def broken(state, value):
        return math.nan if state.mean.sum() > DISTANT.sum() / 2 else value

    for weight, verdict in ((0.1, CERTIFIED), (100.0, LOCAL)):
        two = mixture((1.0, [0.0, 0.0], 0.3), (weight, DISTANT, 0.3))
        outcome = solved(Target(two, of_prior=(3.0, 4.0), change=broken))
        np.testing.assert_allclose(outcome.optimum.state.mean, [0.0, 0.0], atol=0.1)
        assert outcome.exploration.num_without_optimum > 0
        assert outcome.verdict == verdict
        assert outcome.exploration.has_lost == (verdict == LOCAL)


def test_other_parameters_of_the_model_are_tried():
    """The given ones lead to the lower of two optima."""

    def smooth(theta, own):
        high, low = 3.0 - 20.0 * np.sum((own - 2.0) ** 2), -20.0 * np.sum((own - 1.0) ** 2)
        return gaussian(theta) + np.logaddexp(high, low)

    found = [solved(Target(smooth, own=np.ones(1)), seed) for seed in range(4)]
    is_high = [one.optimum.state.own[0] > 1.5 for one in found]
    assert sum(is_high) >= 2
    for one, height in zip(found, 3.0 * np.array(is_high), strict=True):
        assert one.optimum.validation.bound == pytest.approx(height, abs=0.1)
    alone = solved(Target(smooth, own=np.ones(1)), share=0.0)
    np.testing.assert_allclose(alone.optimum.state.own, [1.0], atol=0.1)


def centred_groups(theta):
    """Four groups about a mean, of a spread that is learned: unbounded where that is zero."""
    log_tau, effects = theta[:, :1], theta[:, 1:]
    within = normal((effects - np.array([-2.0, -0.5, 1.0, 2.5])) / 0.5)
    return normal(log_tau / 2.0) + (normal(effects / np.exp(log_tau)) - 4 * log_tau[:, 0]) + within


def test_starts_do_not_begin_in_the_neck_of_a_funnel():
    """Where an ascent has no end it says nothing; the points themselves lead to the best."""
    outcome = solved(Target(centred_groups, dim=5, of_prior=(0.0, 2.0)))
    assert outcome.verdict == CERTIFIED
    assert outcome.optimum.count >= 0.7 * outcome.exploration.num_starts


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("num, spread, noise", [(4, 2.0, 0.5), (8, 20.0, 2.0), (12, 30.0, 3.0)])
def test_a_saddle_is_no_optimum(num, spread, noise, seed):
    """With all effects near zero a bound rises slowly at first, and then by up to 270 nats."""
    y = spread * np.random.default_rng(seed).normal(size=num)

    def raw_scale(theta):
        log_tau, effects = theta[:, :1], theta[:, 1:]
        of_tau = normal(effects / np.exp(log_tau)) - num * log_tau[:, 0]
        return normal(log_tau / 3.0) + of_tau + normal((effects - y) / noise)

    outcome = solved(Target(raw_scale, dim=num + 1, of_prior=(0.0, 3.0)), seed)
    assert outcome.verdict == CERTIFIED and len(outcome.optima) == 1


# -- whatever ends it ------------------------------------------------------------------


class Ended(Target):
    """One that raises at one of its answers."""

    raises, at = KeyboardInterrupt, math.inf
    answers = 0

    def _answer(self):
        self.answers += 1
        if self.answers == self.at:
            raise self.raises

    def bound(self, *args):
        self._answer()
        return super().bound(*args)

    def gradient(self, *args):
        self._answer()
        return super().gradient(*args)


def ended(at, raises=KeyboardInterrupt):
    target = Ended(TWO, of_prior=(3.0, 4.0))
    target.at, target.raises = at, raises
    return target


def answers_of_the_way_to_the_first():
    target = ended(math.inf)
    solved(target, share=0.0)
    return target.answers


def test_an_interrupted_exploration_keeps_the_verified_local_optimum():
    target = ended(answers_of_the_way_to_the_first() + 3)
    outcome = solved(target)
    assert outcome.ending is Ending.INTERRUPTED
    assert outcome.verdict == LOCAL and outcome.optimum.certificate.is_met(0.05)
    np.testing.assert_allclose(outcome.optimum.state.mean, [0.0, 0.0], atol=0.1)
    assert target.written == [outcome.optimum.state]


@pytest.mark.parametrize("at", [3, 4])
def test_an_interrupted_search_keeps_the_state_that_it_had(at):
    outcome = solved(ended(at))
    assert outcome.ending is Ending.INTERRUPTED and outcome.verdict == NOT_CONVERGED
    assert math.isfinite(outcome.optimum.validation.bound)  # by draws of its own
    assert outcome.optimum.certificate.upper == math.inf


def test_an_interrupt_before_the_first_step_is_raised():
    with pytest.raises(KeyboardInterrupt):
        solved(ended(2))


def test_an_error_of_the_model_leaves_the_guide_where_it_was_and_is_raised():
    target = ended(4, RuntimeError("in the model"))
    with pytest.raises(RuntimeError, match="in the model"):
        solved(target)
    assert len(target.written) == 1 and np.isfinite(target.written[0].mean).all()


def test_a_time_limit_ends_it_before_the_first_step():
    target = Target(TWO, of_prior=(3.0, 4.0))
    outcome = solved(target, time_limit=1e-9)
    assert outcome.ending is Ending.TIME_LIMIT and not outcome.converged
    assert target.cost.total == 0 and outcome.optimum.state is target.initial


def test_a_callback_sees_each_step_and_its_error_ends_all():
    seen = []
    outcome = solved(Target(gaussian), callback=lambda *what: seen.append(what))
    assert [step for step, _, _ in seen] == list(range(1, len(seen) + 1))
    assert [-bound for _, bound, _ in seen[: len(outcome.optimum.trace)]] == (
        outcome.optimum.trace.losses
    )

    def stop(*_):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        solved(Target(gaussian), callback=stop)


# -- the way ---------------------------------------------------------------------------


def test_a_state_that_is_given_is_the_only_start():
    near = State(DISTANT - 0.5, np.log(np.full(2, 0.5)))
    outcome = solved(Target(TWO, of_prior=(3.0, 4.0)), state=near)
    np.testing.assert_allclose(outcome.optimum.state.mean, DISTANT, atol=0.1)
    assert outcome.verdict == LOCAL and len(outcome.optima) == 1
    nowhere = State(np.full(2, math.nan), np.zeros(2))
    assert solved(Target(TWO), state=nowhere).ending is Ending.NO_START


def test_where_the_guides_start_is_hopeless_another_leads_to_the_optimum():
    """A plateau around it, on which no step leads anywhere."""

    def plateau(theta):
        near = np.linalg.norm(theta - CENTRE, axis=-1) < 40.0
        return np.where(near & (theta[:, 0] > 0.5), gaussian(theta), -1e4)

    target = Target(plateau, start=(np.array([-60.0, 0.0]), 1.0), of_prior=(2.0, 1.0))
    outcome = solved(target)
    assert divergence(outcome.optimum.state, OPTIMUM) < 0.2


@pytest.mark.parametrize("name", ["two optima", "parameters", "many optima"])
def test_the_same_seed_gives_the_same_numbers(name):
    found = []
    for _ in range(2):
        outcome = solved(Target(**VERDICTS[name][1]))
        state, trace = outcome.optimum.state, vars(outcome.optimum.trace)
        found.append(pickle.dumps([state.mean, state.log_scale, trace, outcome.restarts()]))
    assert found[0] == found[1]
