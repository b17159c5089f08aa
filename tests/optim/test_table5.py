"""Snngm and Nagm are Tan's Table 5, step by step, over the joint vector of two families."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optim import table5
from tests.optim.table5 import assert_same, driver, make, random_gradients, start

NUM_STEPS = 20


def _constant(value):
    return lambda step: value


def _run(backend, optimiser, point, gradients, expected):
    run = driver(backend, optimiser, point)
    for gradient, target in zip(gradients, expected, strict=True):
        run.step(gradient)
        assert_same(run, target)
    assert run.num_skipped == 0


@pytest.mark.parametrize("beta", [0.9, 0.0])
def test_snngm_is_the_middle_column(backend, rng, beta):
    point = start(rng)
    gradients = random_gradients(point, NUM_STEPS, rng)
    expected = table5.snngm(point, gradients, _constant(0.01), beta)
    _run(backend, make(backend, "Snngm", 0.01, momentum=beta), point, gradients, expected)


@pytest.mark.parametrize("max_norm", [5e5, 2.0], ids=["no clipping", "clipping"])
def test_nagm_is_the_right_column(backend, rng, max_norm):
    point = start(rng)
    gradients = random_gradients(point, NUM_STEPS, rng)
    scales = dict.fromkeys(("covariance_cholesky", "diagonal"), _constant(0.003))
    expected = table5.nagm(point, gradients, _constant(0.01), scales, 0.9, max_norm)
    optimiser = make(backend, "Nagm", 0.01, scale_step_size=0.003, max_norm=max_norm)
    _run(backend, optimiser, point, gradients, expected)


def test_the_clipping_above_is_felt(rng):
    point = start(rng)
    gradients = random_gradients(point, NUM_STEPS, rng)
    scales = dict.fromkeys(("covariance_cholesky", "diagonal"), _constant(0.003))
    clipped, free = (
        table5.nagm(point, gradients, _constant(0.01), scales, 0.9, max_norm)[-1]
        for max_norm in (2.0, 5e5)
    )
    assert np.abs(clipped["dense"][1] - free["dense"][1]).max() > 1e-3


def test_nagm_moves_scales_a_tenth_and_a_hundredth_as_fast_as_means(backend, rng):
    point = start(rng)
    gradients = random_gradients(point, NUM_STEPS, rng)
    scales = {"diagonal": _constant(1e-3), "covariance_cholesky": _constant(1e-4)}
    expected = table5.nagm(point, gradients, _constant(1e-2), scales, 0.9, 5e5)
    _run(backend, make(backend, "Nagm", 1e-2), point, gradients, expected)


def test_snngm_reads_a_schedule_at_the_number_of_steps_taken(backend, rng):
    point = start(rng)
    gradients = random_gradients(point, NUM_STEPS, rng)
    schedule = lambda step: 0.01 / (1.0 + step)  # noqa: E731
    expected = table5.snngm(point, gradients, schedule, 0.9)
    _run(backend, make(backend, "Snngm", schedule), point, gradients, expected)


def test_nagm_reads_both_schedules_at_the_number_of_steps_taken(backend, rng):
    point = start(rng)
    gradients = random_gradients(point, NUM_STEPS, rng)
    schedule = lambda step: 0.01 / (1.0 + step)  # noqa: E731
    of_scale = lambda step: 0.002 / (2.0 + step)  # noqa: E731
    scales = dict.fromkeys(("covariance_cholesky", "diagonal"), of_scale)
    expected = table5.nagm(point, gradients, schedule, scales, 0.9, 5e5)
    optimiser = make(backend, "Nagm", schedule, scale_step_size=of_scale)
    _run(backend, optimiser, point, gradients, expected)


def test_snngm_ignores_the_scale_of_the_loss(backend, rng):
    point = start(rng)
    gradients = random_gradients(point, NUM_STEPS, rng)
    expected = table5.snngm(point, gradients, _constant(0.01), 0.9)
    scaled = [
        {name: (family, 1e6 * loc, 1e6 * scale) for name, (family, loc, scale) in g.items()}
        for g in gradients
    ]
    _run(backend, make(backend, "Snngm", 0.01), point, scaled, expected)


def test_a_zero_gradient_moves_nothing(backend, rng):
    point = start(rng)
    gradients = random_gradients(point, 3, rng, size=0.0)
    _run(backend, make(backend, "Snngm", 0.01), point, gradients, [point] * 3)
