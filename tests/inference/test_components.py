"""The components of a mixture: at which modes a search begins."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.inference.mixture_fit import modes
from ngvi.inference.multistart import MultiStart
from ngvi.inference.request import Request
from tests.inference.numpy_problem import Target, gaussian, mixture, monitored

WEIGHTS = np.array([0.5, 0.3, 0.15, 0.05])
CENTRES = np.array([[9.0, 9.0], [-9.0, 8.0], [-8.0, -9.0], [9.0, -7.0]])


def modes_of(target, seed=0):
    request = Request(tolerance=0.05, max_steps=400)
    search = MultiStart(target.problem(), np.random.default_rng(seed), request, monitored())
    search.solve()
    cost = target.cost.total
    found = modes(search)
    return found, target.cost.total / cost


def weights_of(found):
    bounds = np.array([one.validation.bound for one in found])
    return np.exp(bounds - np.logaddexp.reduce(bounds))


@pytest.mark.parametrize("seed", range(3))
def test_all_separated_modes_are_found_with_their_weights(seed):
    parts = zip(WEIGHTS, CENTRES, (1.0, 0.5, 1.0, 0.7), strict=True)
    found, _ = modes_of(Target(mixture(*parts), of_prior=(0.0, 10.0)), seed=seed)
    assert len(found) == 4
    means = np.array([one.state.mean for one in found])
    nearest = [int(np.argmin(np.linalg.norm(means - centre, axis=1))) for centre in CENTRES]
    np.testing.assert_allclose(weights_of(found)[nearest], WEIGHTS, atol=0.005)


def test_modes_of_the_same_height_are_two():
    target = Target(mixture((0.5, [6.0, 6.0], 1.0), (0.5, [-6.0, -6.0], 1.0)), of_prior=(0, 5))
    found, _ = modes_of(target)
    assert len(found) == 2
    np.testing.assert_allclose(weights_of(found), 0.5, atol=0.005)


def test_one_mode_is_one_component_for_next_to_nothing():
    found, ratio = modes_of(Target(gaussian, of_prior=(0.0, 3.0)))
    assert len(found) == 1
    assert ratio < 1.1


def test_a_mode_of_no_mass_is_none():
    target = Target(mixture((1.0, [5.0, 5.0], 1.0), (1e-5, [-5.0, -5.0], 1.0)), of_prior=(0, 5))
    assert len(modes_of(target)[0]) == 1
