"""Where a fit begins, what it does when that fails, and what it says at the end."""

from __future__ import annotations

import math
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest

from ngvi.inference import run, start
from ngvi.inference.audit import Audit
from ngvi.inference.outcome import Outcome, Reason, in_words
from ngvi.inference.settings import Settings
from ngvi.inference.trace import Trace
from tests.inference.numpy_engine import POINT, Metric, Place, Target, divergence

CENTRE, SCALE = np.array([2.0, -1.0]), np.array([0.3, 2.0])
SETTINGS = Settings(0.05, 100)


def target(**options):
    return Target(**{"centre": CENTRE, "scale": SCALE, **options})


def found(target, place=None):
    return start.find_start(target.engine(), np.random.default_rng(0), 2, place)


def searched(target, place=None, settings=SETTINGS):
    engine = target.engine()
    return run.search(engine, np.random.default_rng(0), settings, False, place)


# -- the start ------------------------------------------------------------------------


def test_the_start_is_the_initial_place_if_it_will_do():
    one = target()
    assert found(one).place is one.initial
    assert len(one.measured) == 1 and one.measured[0][1] == 2


def test_a_start_that_overflows_is_narrowed():
    def narrow(place, value):
        return value if place.log_scale[0] < -2 else math.inf

    place = found(target(change=narrow)).place
    np.testing.assert_allclose(place.loc, 0.0)
    np.testing.assert_allclose(np.exp(place.log_scale), 0.1)


def test_where_nothing_is_finite_at_any_usual_scale_a_start_is_far_narrower():
    def narrow(place, value):
        return value if place.log_scale[0] < -10 else math.inf

    place = found(target(change=narrow)).place
    np.testing.assert_allclose(place.loc, CENTRE, rtol=1e-3)  # uphill, for other points may be flat
    np.testing.assert_allclose(np.exp(place.log_scale), start.NARROW_SCALES[1])


def test_a_leg_at_a_top_is_far_narrower_where_the_usual_scales_overflow():
    def narrow(place, value):
        return value if place.log_scale[0] < -10 else math.inf

    options = np.random.default_rng(0), 2, CENTRE, "another point"
    found = start.start_at(target(change=narrow).engine(), *options)
    np.testing.assert_allclose(found.place.loc, CENTRE)
    np.testing.assert_allclose(np.exp(found.place.log_scale), start.NARROW_SCALES[1])
    assert start.start_at(target(change=lambda *_: math.inf).engine(), *options) is None


def test_at_a_maximum_each_latent_is_as_wide_as_it_takes_to_fall_by_half_a_nat():
    scale = np.array([3e-5, 0.2, 400.0])
    one = Target(centre=np.array([1.0, 2.0, 3.0]), scale=scale)
    found = start.widths(one.engine(), one.centre)
    assert found == pytest.approx(scale, rel=0.45)
    first = start.start_at(one.engine(), np.random.default_rng(0), 4, one.centre, "", True)
    assert np.exp(first.place.log_scale) == pytest.approx(found)
    other = start.start_at(one.engine(), np.random.default_rng(0), 4, one.centre, "")
    assert first.measured.value > other.measured.value + 5.0


def test_widths_end_where_there_is_no_density_and_have_a_limit_where_it_does_not_fall():
    def half_space(place, value):
        return 0.0 if place.loc[0] < 1.0 else math.nan

    found = start.widths(target(change=half_space).engine(), np.array([0.0, 0.0]))
    assert found[0] == pytest.approx(1.0, rel=0.45) and found[1] > 500.0


def test_a_direction_or_a_step_that_is_not_finite_is_no_start(monkeypatch):
    one = target()
    monkeypatch.setattr(Metric, "corrected", lambda self, direction: (direction, math.nan, 0.0))
    with pytest.raises(AttributeError):
        found(one)
    monkeypatch.undo()
    monkeypatch.setattr(Metric, "step", lambda *_: None)
    assert found(one) is None


def test_where_no_scale_will_do_the_mean_climbs():
    """The bound is finite near the mode only, the density everywhere."""

    def near(place, value):
        if place.log_scale[0] == POINT:  # the density at a point
            return value
        return value if np.abs(place.loc - CENTRE).max() < 0.5 else math.nan

    one = target(change=near)
    place, draws, measured, name = found(one)
    assert name == "a point of high density"
    np.testing.assert_allclose(place.loc, CENTRE, atol=1e-3)
    values = [one.measure(one.at(place.loc, scale), draws).value for scale in start.SCALES]
    assert measured.value == max(values) > min(values)


def test_where_the_mean_has_no_density_random_ones_are_tried():
    def half(place, value):
        return value if place.loc[0] > 0.2 else -math.inf

    one = found(target(change=half))
    assert one.place.loc[0] > 0.2


def test_there_may_be_no_start():
    assert found(target(change=lambda place, value: math.nan)) is None
    outcome = searched(target(change=lambda place, value: math.nan))
    assert outcome.reason is Reason.NOT_FINITE
    assert outcome.remaining == math.inf and len(outcome.trace) == 0


def test_a_place_that_is_given_is_the_only_start():
    there = Place(np.ones(2), np.zeros(2))
    assert found(target(), there).place is there
    assert found(target(change=lambda place, value: math.nan), there) is None


# -- the search -----------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"is_subsampled": True}])
def test_the_guide_is_left_where_the_search_ended(options):
    one = target(**options)
    outcome = searched(one)
    assert outcome.converged
    assert one.written == [outcome.place]
    assert divergence(outcome.place, Place(CENTRE, np.log(SCALE))) < 0.1


def test_an_interrupted_search_keeps_what_it_has():
    one = target()
    calls = []

    def interrupt(place, value):
        calls.append(place)
        if len(calls) == 6:  # two groups each
            raise KeyboardInterrupt
        return value

    one.change = interrupt
    outcome = searched(one)
    assert outcome.reason is Reason.INTERRUPTED and not outcome.converged
    assert one.written == [outcome.place] == [calls[2]]
    assert outcome.remaining == outcome.trace.distances[-1]
    # The bound is by draws of its own, as that of a search that came to its end.
    assert math.isfinite(outcome.audit.bound) and outcome.audit.bound != -outcome.trace.losses[-1]


def test_an_interruption_before_the_first_step_keeps_the_initial_place():
    def interrupt(place, value):
        raise KeyboardInterrupt

    one = target(change=interrupt)
    outcome = searched(one)
    assert outcome.place is one.initial and outcome.remaining == math.inf


def test_an_error_leaves_the_guide_where_it_was_then():
    def fail(place, value):
        raise RuntimeError("in the model")

    one = target(change=fail)
    with pytest.raises(RuntimeError, match="in the model"):
        searched(one)
    assert one.written == [one.initial]


# -- setting up -----------------------------------------------------------------------


class InvalidStartError(ValueError):
    pass


def first(errors, where=""):
    """The set-up of three starts, which fail with these errors."""

    def set_up(number):
        if errors[number] is not None:
            raise errors[number]
        return f"engine {number}"

    return run.first_that_starts(set_up, range(len(errors)), InvalidStartError, lambda: where)


def test_the_first_start_that_works_is_taken():
    bad, worse = InvalidStartError("bad"), InvalidStartError("worse")
    assert first([None, None]) == ("engine 0", None)
    assert first([bad, None])[0] == "engine 1"
    assert first([bad, worse]) == (None, bad)
    assert first([ValueError("scale is NaN"), None])[0] == "engine 1"
    assert first([bad, ValueError("scale is NaN")]) == (None, bad)


def test_a_model_that_cannot_run_is_told_of_its_nan():
    with pytest.raises(ValueError, match=r"^shapes differ$"):
        first([ValueError("shapes differ"), InvalidStartError("bad")])
    with pytest.raises(ValueError, match=r"cannot run: shapes differ\n\(Its y holds NaN"):
        first([ValueError("shapes differ")], "y")


def test_arguments_are_named_by_their_place_or_their_name():
    holds = np.isnan
    assert run.in_arguments((0.0, math.nan), {"y": math.nan, "x": 1.0}, holds) == "argument 1, y"


def test_a_result_of_other_latents_is_refused():
    own = {"loc": (3,), "scale": (3, 3)}
    run.check_coordinates("auto", own, own, 3)
    with pytest.raises(ValueError, match=r"init= holds 2 latents for 'auto', and the model has 3"):
        run.check_coordinates("auto", {"loc": (2,), "scale": (2, 2)}, own, 3)
    with pytest.raises(ValueError, match=r"holds no latents.*of the same family"):
        run.check_coordinates("auto", None, own, 3)
    with pytest.raises(ValueError, match=r"holds 3 latents.*of the same family"):
        run.check_coordinates("auto", {"loc": (3,), "factor": (3, 1)}, own, 3)


# -- words ----------------------------------------------------------------------------


def words(reason, stddevs=None, unusable=""):
    outcome = Outcome(None, reason, 0.0123)
    stddevs = {"a": np.array([1.0]), "b": np.array([2.0, 3.0])} if stddevs is None else stddevs
    return in_words(outcome, lambda: stddevs, 0.05, 100, unusable)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (Reason.CONVERGED, "within 0.012 nats of its optimum (tolerance 0.05)"),
        (Reason.MAX_STEPS, "max_steps=100 are used up with the bound an estimated 0.012 nats"),
        (Reason.NOISE, "more than tolerance=0.05. Raise tolerance"),
        (Reason.STUCK, "no step along the natural gradient raises the bound"),
        (Reason.STALLED, "no step along the natural gradient raises the bound"),
        (Reason.OVERFITTED, "over the draws that a step learns from, but not over others"),
        (Reason.RIDGE, "short steps along a flat direction keep raising the bound"),
        (Reason.TRIED, "the best was left off an estimated 0.012 nats below its optimum. Go on"),
        (Reason.MODES, "several optima, of which this is the best that was found (within 0.012"),
        (Reason.EDGE, "meet points where the log density is not finite"),
        (Reason.JUMP, "it jumps, as with a threshold"),
        (Reason.UNBOUNDED, "widens without limit (sd 3 of unconstrained 'b')"),
        (Reason.INTERRUPTED, "Go on with fit(..., init=result)"),
        (Reason.TIME_LIMIT, "time_limit= is reached with the bound an estimated 0.012 nats"),
        (Reason.NOT_FINITE, "not finite at any start that was tried"),
    ],
)
def test_every_end_is_told_with_what_to_try(reason, expected):
    assert expected in words(reason)
    assert all(map(words, Reason))  # none is without words


def test_an_end_is_told_with_what_is_known_of_it():
    beyond = in_words(Outcome(None, Reason.CONVERGED, 0.06), dict, 0.05, 100)
    assert "within 0.06 nats of its optimum as far as trial steps can tell (toler" in beyond
    assert "still grows" not in words(Reason.MAX_STEPS)
    wide = words(Reason.MAX_STEPS, {"b": np.array([2e5])})
    assert "sd of unconstrained 'b' is 2e+05: if it still grows" in wide
    nonsense = Outcome(None, Reason.TIME_LIMIT, -1e6)
    assert "bound an unknown distance below" in in_words(nonsense, dict, 0.05, 100)
    far_out = Outcome(None, Reason.MAX_STEPS, 1e25)
    assert "changes the bound by 6e+22 nats" in in_words(far_out, dict, 0.05, 100, rounding=6e22)
    assert "tried (y is NaN). Check" in words(Reason.NOT_FINITE, unusable=" (y is NaN)")
    own = {"has_ordinary": True, "audit": Audit(-1.0, 1e-5, 0.0)}
    plateau = in_words(Outcome(None, Reason.NOISE, 41.0, **own), dict, 0.05, 100)
    assert "promise 41 nats" in plateau and "draws" not in plateau
    with pytest.raises(ValueError, match="other"):
        words("other")


def test_the_account_of_a_fit_warns_unless_it_has_converged(recwarn):
    engine = target().engine()
    trace = Trace([1.0], [0.1], [1.0], [0.1], [5])
    engine.evaluator.num_gradients = 7
    begun = time.perf_counter()
    good = Outcome(engine.parameters.initial, Reason.CONVERGED, 0.01, trace)
    account = run.account(good, engine, SETTINGS, begun)
    assert not recwarn.list
    assert account["converged"] and account["num_steps"] == 1 and account["num_gradients"] == 7
    assert 0 <= account["seconds"] < 60 and account["trace"] is trace
    bad = Outcome(engine.parameters.initial, Reason.NOT_FINITE)
    with pytest.warns(UserWarning, match=r"fit has not converged: .*\(no density\)\. Check"):
        run.account(bad, engine, SETTINGS, begun, ValueError("no density"))


def test_cheap_steps_are_advised_for_many_latents_that_are_no_locals(recwarn):
    engine, begun = target().engine(), time.perf_counter()
    trace = Trace([1.0], [0.1], [1.0], [0.1], [5])
    good, bad = (
        Outcome(engine.parameters.initial, reason, 0.01, trace)
        for reason in (Reason.CONVERGED, Reason.NOT_FINITE)
    )
    network, groups = (
        [SimpleNamespace(latent_dim=run.MANY + 1, family=SimpleNamespace(name=name))]
        for name in ("diagonal", "sparse_precision")
    )

    def reason(outcome, parts):
        return run.account(outcome, engine, SETTINGS, begun, None, parts)["reason"]

    assert re.search(r"Of more than 10,000 latents.*IVON\(\)", reason(bad, network))
    assert "IVON" not in reason(good, network) + reason(bad, groups)
    assert any("IVON" in str(warning.message) for warning in recwarn.list)


def test_a_network_that_nobody_insists_to_fit_is_refused_with_what_to_write_instead(recwarn):
    def guide(family):
        return SimpleNamespace(latent_dim=run.MANY + 1, family=SimpleNamespace(name=family))

    with pytest.raises(ValueError, match=r"10,001 latents.*SVI.*IVON\(\).*name a family"):
        run.check_size([guide("low_rank")], "auto", None, None)
    for insists in (("diagonal", None, None), ("auto", guide, None), ("auto", None, "result")):
        with pytest.warns(UserWarning, match=r"10,001 latents.*IVON\(\).*time_limit="):
            run.check_size([guide("diagonal")], *insists)
    run.check_size([guide("sparse_precision")], "auto", None, None)
    assert not recwarn.list
