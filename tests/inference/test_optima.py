"""How likely a better optimum is that has not been seen: against a simulation of Ewens' process."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ngvi.inference.search import Status
from ngvi.inference.verdict.certificate import Certificate
from ngvi.inference.verdict.optima import CONCENTRATIONS, Optimum, better_elsewhere
from ngvi.inference.verdict.validation import Validation
from tests.inference.numpy_problem import OPTIMUM


@pytest.mark.parametrize("num_starts", [4, 8, 24])
def test_more_optima_are_more_likely_to_have_others(num_starts):
    found = [better_elsewhere(num_starts, count) for count in range(1, num_starts)]
    assert np.all(np.diff(found) > 0) and 0 < found[0] < found[-1] < 1


def test_eight_that_agree_are_a_claim_at_a_tenth_and_two_are_not():
    assert better_elsewhere(8, 1) < 0.1 < better_elsewhere(2, 1)


def test_it_is_what_happens_in_ewens_process():
    """Partitions with concentrations of the prior, values of optima exchangeable: among runs with
    the same number of optima, as many find a better one as was said.
    """
    rng, num_starts, more = np.random.default_rng(0), 8, 8
    runs: dict[int, list[bool]] = {}
    for _ in range(6_000):
        a = rng.choice(CONCENTRATIONS)
        labels: list[int] = []
        for n in range(num_starts + more):
            is_new = rng.random() < a / (a + n)
            labels.append(max(labels, default=-1) + 1 if is_new else labels[rng.integers(n)])
        values = rng.random(len(labels))
        best = max(values[label] for label in labels[:num_starts])
        is_better = max(values[label] for label in labels) > best
        runs.setdefault(len(set(labels[:num_starts])), []).append(is_better)
    for num_optima in (1, 2, 4, 8):
        happened = runs[num_optima]
        predicted = better_elsewhere(num_starts, num_optima)
        # ``M`` is replaced by its mean in ``M / (K + M)``: at most a few hundredths too much.
        error = 3 * math.sqrt(predicted / len(happened))
        assert -error < predicted - np.mean(happened) < 0.05 + error, num_optima


def optimum(bound, error=0.01, status=Status.OPTIMUM, count=0):
    found = Validation(bound, error)
    return Optimum(OPTIMUM, found, Certificate(0.01, 0.02), status, count=count)


@pytest.mark.parametrize(
    ("one", "other", "tie"),
    [
        (optimum(1.0), optimum(0.0), 0.0),
        (optimum(0.0), optimum(-math.inf, math.nan), 0.0),
        (optimum(0.0), optimum(math.nan, math.nan), 0.0),
        (optimum(0.0), optimum(5.0, 4.0), 0.0),  # by its lower limit, hardly known as it is
        (optimum(0.0), optimum(0.05, status=Status.NOISE), 0.1),
        (optimum(0.5, status=Status.NOISE), optimum(0.0), 0.1),
    ],
)
def test_the_better_of_two(one, other, tie):
    assert one.rank(tie) > other.rank(tie)
    assert not other.rank(tie) > one.rank(tie)
