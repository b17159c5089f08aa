"""The upper limit of what is left covers it, and is below the tolerance at an optimum."""

from __future__ import annotations

import ast

import numpy as np
import pytest
from scipy.stats import binom

from ngvi.inference.verdict.certificate import quadratic, stepped
from tests.inference.numpy_problem import (
    CENTRE,
    OPTIMUM,
    SCALE,
    Metric,
    State,
    Target,
    divergence,
    gaussian,
)
from tests.test_form import ROOT

CONFIDENCE, NUM_SEEDS = 0.95, 100


def by_quadratic(target, state, sample):
    return quadratic(Metric(target, state, []), target.bound(state, sample), CONFIDENCE)


def by_steps(target, state, sample):
    """With the optimum over the sample, where only the mean is off, in one step."""
    before = target.bound(state, sample)
    mean = state.mean + before.mean.natural[: target.dim]
    end = State(mean, state.log_scale)
    return stepped(before, target.bound(end, sample), 0.0, 0.0, CONFIDENCE)


@pytest.mark.parametrize("test", [by_quadratic, by_steps])
@pytest.mark.parametrize("shift", [0.0, 1.0])
@pytest.mark.parametrize(
    ("dim", "count", "coverage"),
    # Of noise in one direction the sample's optimum is nearer where the scatter is smaller.
    [(1, 16, CONFIDENCE), (4, 4, CONFIDENCE), (4, 16, CONFIDENCE)],
)
def test_the_upper_limit_covers_the_true_gap(test, shift, dim, count, coverage):
    """In as many of the seeds as it says, but for one time in a thousand of chance."""
    centre, scale = np.zeros(dim), np.ones(dim)
    target = Target(lambda x: gaussian(x, centre, scale), dim, noise=1.0)
    state, optimum = State(centre + shift, np.zeros(dim)), State(centre, np.zeros(dim))
    gap = divergence(state, optimum)
    assert gap == pytest.approx(0.5 * dim * shift**2)
    limits = []
    for seed in range(NUM_SEEDS):
        sample = target.sample(np.random.default_rng(seed), count)
        limits.append(test(target, state, sample).upper)
    covered = np.sum(np.array(limits) >= gap - 1e-9)
    assert covered >= binom.ppf(1e-3, NUM_SEEDS, coverage)


def test_at_the_optimum_enough_draws_bring_it_below_the_tolerance():
    """The noise of ``n`` groups is ``|sd|^2 / 2 n``, and the limit about twice that."""
    target, uppers = Target(gaussian, noise=0.5), []
    for count in (4, 64):
        found = [
            by_quadratic(target, OPTIMUM, target.sample(np.random.default_rng(seed), count))
            for seed in range(50)
        ]
        noise = 0.5 * 0.25 * np.sum(SCALE**2) / count
        assert np.mean([one.noise for one in found]) == pytest.approx(noise, rel=0.3)
        uppers.append(np.median([one.upper for one in found]))
    assert uppers[1] < 0.05 < uppers[0]


def test_without_noise_it_is_the_gap():
    state, target = State(CENTRE + 0.3 * SCALE, np.log(SCALE)), Target(gaussian)
    sample = target.sample(np.random.default_rng(0), 2)
    for test in (by_quadratic, by_steps):
        found = test(target, state, sample)
        assert found.gap == pytest.approx(0.09) and found.upper == pytest.approx(0.09, abs=1e-6)
        assert found.is_met(0.0901) and not found.is_met(0.0899)


#: Every function that says an optimum is reached, makes a certificate, or gives a verdict, and the
#: limit by which it does.
CLAIMS = {
    "certificate.UNKNOWN": "none: infinite",
    "certificate.quadratic": "upper limit of the groups' differences, by a quadratic model",
    "certificate.stepped": "upper limit of the groups' differences, by steps",
    "local_search._last_stages": "the certificate of fresh draws, which is within the tolerance",
    "stochastic._why_over": "the certificate: of many signals, or quadratic; within the tolerance",
    "runs.optimum": "none: infinite, of a search that has not ended",
    "outcome.verdict": "the certificate, the checks, and the probability of a better optimum",
    "streaming.account": "what steps leave and what the drift leaves open; else not that of before",
    "call._keep": "none: not converged",
}


def test_every_claim_of_an_optimum_has_a_limit():
    """A new place that claims something gets a row here, and computes the limit that it names."""
    found = set()
    for path in ROOT.glob("*ngvi/**/*.py"):
        tree = ast.parse(path.read_text())
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        constants = [node for node in tree.body if isinstance(node, ast.Assign)]
        told = [(one.name, one) for one in functions]
        told += [(ast.unparse(one.targets[0]), one.value) for one in constants]
        found |= {f"{path.stem}.{k}" for k, one in told if any(map(is_claim, ast.walk(one)))}
    assert found == {*CLAIMS}


def is_claim(node):
    if isinstance(node, ast.Return | ast.Assign):
        told = {ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Attribute)}
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        is_compared = any(isinstance(part, ast.Compare) for part in ast.walk(node))
        verdicts = {"CERTIFIED", "LOCAL", "APPROXIMATE", "NOT_CONVERGED"}
        return not is_compared and bool("Status.OPTIMUM" in told or names & verdicts)
    named = isinstance(node, ast.keyword) and node.arg == "verdict"
    told = ast.unparse(node.value) if named else ""
    made = isinstance(node, ast.Call) and ast.unparse(node.func) == "Certificate"
    return made or told.isupper()
