"""The components of a mixture: where they are found, placed and left out."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.inference.components import Modes, switched
from ngvi.inference.mixture_options import MixtureOptions
from ngvi.inference.multistart import MultiStart
from ngvi.inference.options import FitOptions
from ngvi.inference.request import Request
from tests.inference.numpy_problem import Target, gaussian, mixture, monitored

WEIGHTS = np.array([0.5, 0.3, 0.15, 0.05])
CENTRES = np.array([[9.0, 9.0], [-9.0, 8.0], [-8.0, -9.0], [9.0, -7.0]])
OPTIONS = MixtureOptions()


def modes_of(target, most=16, seed=0, options=OPTIONS):
    request = Request(tolerance=0.05, max_steps=400, options=FitOptions(mixture=options))
    search = MultiStart(target.problem(), np.random.default_rng(seed), request, monitored())
    search.solve()
    cost = target.cost.total
    modes = Modes(search, most)
    modes.look()
    return modes, target.cost.total / cost


def four(**options):
    parts = zip(WEIGHTS, CENTRES, (1.0, 0.5, 1.0, 0.7), strict=True)
    return Target(mixture(*parts), of_prior=(0.0, 10.0), **options)


@pytest.mark.parametrize("seed", range(3))
def test_all_separated_modes_are_found_with_their_weights(seed):
    modes, _ = modes_of(four(), seed=seed)
    assert modes.is_over
    assert len(modes.found) == 4
    means = np.array([one.state.mean for one in modes.found])
    nearest = [int(np.argmin(np.linalg.norm(means - centre, axis=1))) for centre in CENTRES]
    np.testing.assert_allclose(np.exp(modes.log_weights())[nearest], WEIGHTS, atol=0.005)


def test_a_narrow_mode_in_many_dimensions_is_seen_on_the_other_side_of_a_wide_one():
    centres = np.random.default_rng(0).uniform(-10, 10, (2, 30))
    parts = (0.5, centres[0], 1.0), (0.5, centres[1], 0.78)
    modes, _ = modes_of(Target(mixture(*parts), dim=30, of_prior=(0.0, 10.0)))
    assert len(modes.found) == 2


def test_modes_of_the_same_height_are_two():
    target = Target(mixture((0.5, [6.0, 6.0], 1.0), (0.5, [-6.0, -6.0], 1.0)), of_prior=(0, 5))
    modes, _ = modes_of(target)
    assert len(modes.found) == 2
    np.testing.assert_allclose(np.exp(modes.log_weights()), 0.5, atol=0.005)


def test_one_mode_is_one_component_for_next_to_nothing():
    modes, ratio = modes_of(Target(gaussian, of_prior=(0.0, 3.0)))
    assert len(modes.found) == 1
    assert modes.is_over
    assert ratio < 1.1


def test_a_mode_of_no_mass_is_none():
    target = Target(mixture((1.0, [5.0, 5.0], 1.0), (1e-5, [-5.0, -5.0], 1.0)), of_prior=(0, 5))
    assert len(modes_of(target)[0].found) == 1


def test_switched_labels_are_told_from_modes():
    means = [np.array([-3.0, 0.0, 4.0]), np.array([4.0, 0.1, -3.0])]
    sds = [np.full(3, 0.5)] * 2
    assert switched(means, sds, OPTIONS.width)
    assert not switched([means[0], means[0] + 10.0], sds, OPTIONS.width)
    assert not switched([means[0], means[0] + 0.01], sds, OPTIONS.width)
