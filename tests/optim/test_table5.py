"""Snngm and Nagm are Tan's Table 5, step by step, over the joint vector of two families."""

from __future__ import annotations

import pytest

from tests.optim import table5
from tests.optim.table5 import assert_same, driver, random_gradients, start

NUM_STEPS = 20


def _constant(value):
    return lambda step: value


def _run(backend, optimiser, point, gradients, expected):
    run = driver(backend, optimiser, point)
    for gradient, target in zip(gradients, expected, strict=True):
        run.step(gradient)
        assert_same(run, target)
    assert run.num_skipped == 0


def _slower(step):
    return 0.01 / (1.0 + step)


@pytest.mark.parametrize(
    ("step_size", "beta", "size"),
    [(0.01, 0.9, 1.0), (0.01, 0.0, 1.0), (_slower, 0.9, 1.0), (0.01, 0.9, 1e6)],
    ids=["defaults", "no momentum", "a schedule", "a large loss"],
)
def test_snngm_is_the_middle_column(backend, step_size, beta, size, rng):
    """At the number of steps taken, and whatever the scale of the loss."""
    point = start(rng)
    gradients = random_gradients(point, NUM_STEPS, rng, size)
    of_step = step_size if callable(step_size) else _constant(step_size)
    expected = table5.snngm(point, gradients, of_step, beta)
    optimiser = backend.optimiser("Snngm", step_size, momentum=beta)
    _run(backend, optimiser, point, gradients, expected)


@pytest.mark.fast_in_numpyro("no clipping")
@pytest.mark.parametrize(
    ("rates", "max_norm"),
    [((0.01, 0.003), 5e5), ((0.01, 0.003), 2.0), ((_slower, lambda t: 0.002 / (2.0 + t)), 5e5)],
    ids=["no clipping", "clipping", "schedules"],
)
def test_nagm_is_the_right_column(backend, rates, max_norm, rng):
    point = start(rng)
    gradients = random_gradients(point, NUM_STEPS, rng)
    of_loc, of_scale = (rate if callable(rate) else _constant(rate) for rate in rates)
    scales = dict.fromkeys(("covariance_cholesky", "diagonal"), of_scale)
    expected = table5.nagm(point, gradients, of_loc, scales, 0.9, max_norm)
    optimiser = backend.optimiser("Nagm", rates[0], scale_step_size=rates[1], max_norm=max_norm)
    _run(backend, optimiser, point, gradients, expected)


def test_a_zero_gradient_moves_nothing(backend, rng):
    point = start(rng)
    gradients = random_gradients(point, 3, rng, size=0.0)
    _run(backend, backend.optimiser("Snngm", 0.01), point, gradients, [point] * 3)
