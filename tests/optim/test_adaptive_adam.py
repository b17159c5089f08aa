"""The default for parameters that are not Gaussian: Adam whose rates adapt."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.optim.adaptive_adam import AdaptiveAdamRule
from tests.optim.table5 import driver, random_gradients, start


def path(backend, gradient, first, num_steps):
    """Where the rule leads, from the gradient as a function of ``w``."""
    algebra = backend.module("optim.algebra").algebra
    w = backend.array(first)
    rule, path_of_w = AdaptiveAdamRule(), []
    state = rule.start(w)
    for count in range(1, num_steps + 1):
        slope = backend.array(gradient(backend.numpy(w)))
        state = rule.advance(algebra, slope, w, state, count)
        w = w + rule.change(state, count)
        path_of_w.append(backend.numpy(w).copy())
    return np.array(path_of_w)


@pytest.mark.parametrize("noise", [1e-3, 1e3])
def test_a_noise_of_any_size_is_found_from_one_in_a_hundred_steps(backend, noise):
    """Adam with a rate of 1e-3 moves the scale's logarithm by 0.1."""

    def gradient(log_scale):  # of 200 responses
        return 200.0 * (1.0 - noise**2 * np.exp(-2.0 * log_scale))

    end = path(backend, gradient, np.zeros(1), 100)[-1]
    assert end == pytest.approx(np.log(noise), abs=0.01)


def test_both_packages_take_the_same_steps_whatever_the_losss_scale(
    pyro_backend, numpyro_backend, rng
):
    noise = rng.normal(size=(50, 3))

    def gradient(scale):
        draws = iter(noise)
        return lambda w: scale * (w * [1.0, 10.0, 100.0] + next(draws))

    expected = path(pyro_backend, gradient(1.0), np.ones(3), 50)
    for backend, scale in [(numpyro_backend, 1.0), (numpyro_backend, 1e6)]:
        found = path(backend, gradient(scale), np.ones(3), 50)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:A step of .* was skipped")
def test_a_step_to_where_nothing_is_finite_is_taken_back_and_the_next_is_shorter(backend, rng):
    point = start(rng)
    run = driver(backend, backend.optimiser("Snngm", "auto"), point, {"w": np.zeros(3)})
    gradients = random_gradients(point, 4, rng)
    run.step(gradients[0], {"w": np.ones(3)})
    before = np.array(run.parameter("w"))
    run.step(gradients[1], {"w": np.ones(3)})
    first = np.array(run.parameter("w")) - before
    run.step(gradients[2], {"w": np.full(3, np.nan)})
    np.testing.assert_allclose(run.parameter("w"), before, rtol=1e-6)
    run.step(gradients[3], {"w": np.ones(3)})
    assert np.all(np.abs(np.array(run.parameter("w")) - before) < 0.2 * np.abs(first))
