"""The metric of a state, and what the memory of earlier steps makes of a direction."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.inference.estimate import Direction
from ngvi.inference.metric import Metric
from ngvi.inference.options import MetricOptions

SIZE, OPTIONS = 4, MetricOptions()


class Dense(Metric):
    """Any positive definite ``F``."""

    def __init__(self, fisher, pairs, size=SIZE, options=OPTIONS):
        super().__init__(None, size, pairs, options=options)
        self.fisher = fisher

    def gradients(self, naturals):
        return naturals @ self.fisher


@pytest.fixture
def problem(rng):
    """``F``, the bound's curvature, and eigenvectors of one against the other."""
    half, other = rng.normal(size=(2, SIZE, SIZE))
    fisher = half @ half.T + np.eye(SIZE)
    root = np.linalg.cholesky(fisher)
    axes = np.linalg.solve(root.T, np.linalg.qr(other)[0]).T  # rows a_i, with a_i F a_j = delta
    curvatures = np.array([0.1, 0.5, 3.0, 40.0])
    return fisher, axes, curvatures, fisher @ (axes.T * curvatures) @ axes @ fisher


def pairs_along(axes, curvatures):
    """Steps, and the falls of the natural gradient along them."""
    return [(axis, curvature * axis) for axis, curvature in zip(axes, curvatures, strict=True)]


def direction(fisher, vector):
    return Direction(vector, fisher @ vector, [np.array(7.0)])


def test_pairs_in_all_directions_make_it_newtons(problem, rng):
    fisher, axes, curvatures, hessian = problem
    to_go = rng.normal(size=SIZE)
    natural = direction(fisher, np.linalg.solve(fisher, hessian @ to_go))
    metric = Dense(fisher, pairs_along(axes, curvatures))
    corrected, gain, predicted = metric.corrected(natural)
    np.testing.assert_allclose(corrected.natural, to_go)
    np.testing.assert_allclose(corrected.gradient, natural.gradient)  # slopes are of the bound
    assert corrected.parameters is natural.parameters
    assert gain == pytest.approx(0.5 * to_go @ hessian @ to_go)
    assert predicted == pytest.approx(0.5 * natural.natural @ fisher @ natural.natural)


def test_pairs_that_noise_may_have_made_do_not_count(problem, rng):
    fisher, axes, *_ = problem
    natural = direction(fisher, rng.normal(size=SIZE))
    metric = Dense(fisher, pairs_along(axes[:2], [1e-4, -1.0]))
    np.testing.assert_array_equal(metric.corrected(natural).direction.natural, natural.natural)


@pytest.mark.filterwarnings("error")
def test_a_fall_over_a_cliff_leaves_the_other_pairs_as_they_are(problem):
    """Its square overflows in single precision, and it came into every direction as NaN."""
    fisher, axes, curvatures, _ = (np.asarray(part, np.float32) for part in problem)
    pairs = pairs_along(axes, curvatures)
    step, fall = pairs.pop()
    natural = direction(fisher, axes.sum(0))
    expected = Dense(fisher, pairs).corrected(natural)
    for factor in 1e15, 1e25:
        corrected = Dense(fisher, [(step, np.float32(-factor) * fall), *pairs]).corrected(natural)
        np.testing.assert_allclose(
            corrected.direction.natural, expected.direction.natural, rtol=1e-4
        )
        assert corrected.gain == pytest.approx(expected.gain, rel=1e-4)
