"""What a fit says of its end: each number is the outcome's, and no sentence denies the verdict."""

from __future__ import annotations

import inspect
import math
import re

import numpy as np
import pytest

from ngvi.inference.api import no_start
from ngvi.inference.options import FitOptions
from ngvi.inference.request import FitArguments, Request
from ngvi.inference.search import Status
from ngvi.inference.trace import Trace
from ngvi.inference.verdict.certificate import UNKNOWN, Certificate
from ngvi.inference.verdict.checks import Finding
from ngvi.inference.verdict.optima import Exploration, Optimum
from ngvi.inference.verdict.outcome import (
    CERTIFIED,
    LOCAL,
    NOT_CONVERGED,
    Ending,
    Outcome,
    in_words,
)
from ngvi.inference.verdict.validation import Validation
from tests.inference.numpy_problem import OPTIMUM, Target, gaussian

TOLERANCE = 0.05
KNOWN = Certificate(0.0123, 0.0234)


def optimum(status=Status.OPTIMUM, bound=0.0, count=8, certificate=KNOWN):
    trace = Trace([1.0, 0.5], [0.1] * 2, [1.0] * 2, [0.1] * 2, [5] * 2)
    known = Validation(bound, 0.01)
    return Optimum(OPTIMUM, known, certificate, status, "a start", count, trace=trace)


def outcome(status=Status.OPTIMUM, lower=(), explored=None, certificate=KNOWN, **options):
    """An outcome whose best has bound zero; ``lower`` are bounds of others."""
    best = optimum(status, certificate=certificate)
    others = [optimum(bound=bound, count=1) for bound in lower]
    found = Exploration(8 + len(others), 0, 0.09, True) if explored is None else explored
    return Outcome(best, [best, *others], found, **options)


def words(found, stddevs=None, effort="thorough", **options):
    stddevs = {"a": np.array([1.0]), "b": np.array([2.0, 3.0])} if stddevs is None else stddevs
    return in_words(found, lambda: stddevs, Request(TOLERANCE, 100, effort), **options)


# -- verdicts --------------------------------------------------------------------------

NOT_OVER = Exploration(5, 2, 0.31, False)
OF_FIRST = Exploration(12, 1, 0.31, False)  # of two fits, of which the second is kept
LOST = Exploration(9, 1, 0.54, False, has_lost=True)
NONE = Exploration()


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (outcome(), CERTIFIED),
        (outcome(explored=NOT_OVER), LOCAL),
        (outcome(explored=NONE), LOCAL),
        (outcome(explored=NONE, ending=Ending.INTERRUPTED), LOCAL),
        (outcome(explored=NONE, ending=Ending.TIME_LIMIT), LOCAL),
        (outcome(finding=Finding("support", "something")), NOT_CONVERGED),
        *((outcome(status), NOT_CONVERGED) for status in Status if status is not Status.OPTIMUM),
        (outcome(None), NOT_CONVERGED),
        (outcome(None, ending=Ending.INTERRUPTED), NOT_CONVERGED),
    ],
)
def test_the_verdict_and_its_sentence_agree(found, verdict):
    assert found.verdict == verdict and found.converged == (verdict != NOT_CONVERGED)
    said = words(found)
    # Within the tolerance is said where the limit is, and nowhere else.
    assert ("the bound is within 0.023 nats of its optimum" in said) == found.converged
    assert ("95 % limit, tolerance 0.05" in said) == found.converged
    not_looked_for = "others have not been ruled out" in said or "not been looked for" in said
    assert not_looked_for == (verdict == LOCAL)
    assert not said.endswith(".") and "None" not in said and "nan" not in said


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (outcome(), "8 of 8 starts reached it; as many more would find a better one with"),
        (outcome(), "probability 0.09"),
        (outcome(lower=(-3.0, -1.5)), "8 of 10 starts reached it, 2 reached 2 lower ones, by 1.5"),
        (outcome(lower=(-3.0,)), "8 of 9 starts reached it, 1 reached a lower one, by 3 nats; as"),
        (outcome(lower=(-0.01,)), "8 of 9 starts reached it; as many more"),
        (outcome(explored=NOT_OVER, ending=Ending.CALLBACK), "cut short: callback= has ended"),
        (outcome(explored=NOT_OVER), "of 5 starts reached it, 2 reached no optimum; others have"),
        (
            outcome(explored=OF_FIRST),
            "8 of 12 starts reached it, 1 reached no optimum, 3 reached others of the",
        ),
        (outcome(explored=NOT_OVER), "ruled out: as many more would find a better one with prob"),
        (outcome(explored=NOT_OVER), "better one with probability 0.31"),
        (outcome(explored=LOST), "ruled out: a higher mode that led to no optimum has a better"),
        (
            outcome(explored=LOST),
            "one, or as many more would find a better one with probability 0.54",
        ),
        (outcome(explored=NONE), "other optima have not been looked for"),
    ],
)
def test_what_is_known_of_other_optima_is_told_in_numbers(found, expected):
    assert expected in words(found)


def test_more_effort_is_advised_where_there_is_more():
    found = outcome(explored=NOT_OVER)
    assert words(found, effort="standard").endswith("effort='thorough' looks 8 times as long")
    assert "effort=" not in words(found, effort="thorough")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status.MAX_STEPS, "max_steps=100 are used up with the bound an estimated 0.012 nats"),
        (
            Status.NOISE,
            "largest number of draws, noise is too large, and the bound is an estimated 0.0",
        ),
        (Status.RISING, "short steps along a flat direction keep raising the bound"),
        (Status.STUCK, "no step along the natural gradient raises the bound, an estimated 0.012 n"),
        (Status.OVERFITTED, "over the draws of a step, but not over others"),
        (Status.UNBOUNDED, "widens without limit (sd 3 of unconstrained 'b')"),
        (None, "best ended an estimated 0.012 nats below its optimum, which fresh draws have not"),
    ],
)
def test_every_end_is_told_with_what_to_try(status, expected):
    assert expected in words(outcome(status))


@pytest.mark.parametrize("seed", range(30))
def test_no_sentence_denies_its_own_numbers(seed):
    """Of outcomes whose numbers are drawn, near each other or not."""
    rng = np.random.default_rng(seed)
    for _ in range(10):
        check_sentence(rng)


def check_sentence(rng):
    near = TOLERANCE * (1.0 + rng.normal() * 10.0 ** rng.uniform(-4, 1))
    gap = abs(near) * rng.uniform(0.1, 1.0)
    best = optimum(Status.OPTIMUM, count=int(rng.integers(0, 9)))
    best.certificate = Certificate(gap, abs(near))
    best.status = rng.choice([Status.OPTIMUM, Status.OPTIMUM, *Status, None])
    lower = [
        optimum(bound=-abs(rng.normal()), count=int(rng.integers(0, 3)))
        for _ in range(rng.integers(0, 4))
    ]
    nowhere = int(rng.integers(0, 3))
    num_starts = sum(one.count for one in (best, *lower)) + nowhere
    explored = Exploration(num_starts, nowhere, float(rng.uniform()), bool(rng.integers(2)))
    ending = rng.choice([None, None, Ending.TIME_LIMIT, Ending.INTERRUPTED])
    found = Outcome(best, [best, *lower], explored, ending=ending, tolerance=TOLERANCE)
    said = words(found)
    assert found.converged == ("the bound is within" in said)
    for name, holds in (
        (r"within ([\d.e+-]+) nats of its optimum", lambda x: x <= TOLERANCE),
        (r"left to the optimum is ([\d.e+-]+) nats, more than", lambda x: x > TOLERANCE),
        (r"estimated ([\d.e+-]+) nats below its optimum, which", lambda x: x <= TOLERANCE),
        (r"estimated ([\d.e+-]+) nats below its optimum(?!, which)", lambda x: x > TOLERANCE),
        (r"lower, by ([\d.e+-]+) nats", lambda x: x > 0),
    ):
        for number in re.findall(name, said):
            assert holds(float(number)), said
    if counts := re.search(r"(\d+|none) of (\d+) starts reached it(?:, (\d+) reached no)?", said):
        led, of, none = (int(one) if (one or "").isdigit() else 0 for one in counts.groups())
        others = re.search(r", (\d+) reached (?:a|\d+) lower", said)
        assert led + none + (int(others[1]) if others else 0) <= of, said
    if found.verdict == LOCAL and ending is not None and num_starts:
        assert "effort=" not in said


def test_a_limit_above_the_tolerance_is_no_certificate():
    found = outcome(certificate=Certificate(0.04, 0.05001))
    found.tolerance = TOLERANCE
    assert found.verdict == NOT_CONVERGED
    assert "gap to the optimum is 0.05001 nats, more than tolerance=0.05. Go on" in words(found)


def test_an_end_is_told_with_what_is_known_of_it():
    stopped = outcome(None, ending=Ending.TIME_LIMIT)
    assert "time_limit= is reached with the bound an estimated 0.012 nats" in words(stopped)
    assert "interrupted" in words(outcome(None, ending=Ending.INTERRUPTED))
    assert "init=result" in words(stopped)
    unknown = outcome(Status.MAX_STEPS, certificate=UNKNOWN)
    assert "the bound an unknown distance below its optimum" in words(unknown)
    # Nothing is said to jump whose values do not say so.
    stuck = outcome(Status.STUCK)
    assert "a kink or rounding may remain" in words(stuck) and "discontinuous" not in words(stuck)
    assert "unconstrained 'b' has sd 7," in words(stuck, {"b": np.array([7.0])})
    stuck.optimum.validation = Validation(0.0, 0.01, mismatch=1.0)
    assert "density may be discontinuous" in words(stuck)
    assert "changes the bound by 6e+22 nats" in words(outcome(Status.STUCK), rounding=6e22)
    nowhere = no_start(Target(gaussian).problem())
    assert "at any start that was tried (y is NaN). Check" in words(nowhere, cause=" (y is NaN)")
    finding = outcome(finding=Finding("gradients", "it jumps"))
    assert words(finding) == "it jumps"


# -- what the user asks for ------------------------------------------------------------


def test_no_argument_of_fit_is_lost(ppl):
    fit = inspect.signature(ppl.package.fit).parameters.values()
    given = {one.name: one.default for one in fit if one.kind is one.KEYWORD_ONLY}
    own = FitArguments(**given)  # which refuses one that it has not, and misses none
    assert len(given.keys() - {"rng_key"}) <= 18  # NumPyro has a key beside them
    assert (own.share, own.time_limit, own.options) == (1.0, math.inf, FitOptions())
