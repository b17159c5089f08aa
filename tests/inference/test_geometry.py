"""The metric of a place, and what the memory of earlier steps makes of a direction."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.inference.engine import Direction
from ngvi.inference.geometry import MAX_NUMBERS, MAX_PAIRS, Geometry

SIZE = 4


class Dense(Geometry):
    """Any positive definite ``F``."""

    def __init__(self, fisher, pairs, size=SIZE):
        super().__init__(None, size, pairs)
        self.fisher = fisher

    def covectors(self, vectors):
        return vectors @ self.fisher


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


def test_without_pairs_the_metric_is_all_that_is_known(problem, rng):
    fisher, *_ = problem
    natural = direction(fisher, rng.normal(size=SIZE))
    corrected, gain, predicted = Dense(fisher, []).corrected(natural)
    np.testing.assert_array_equal(corrected.vector, natural.vector)
    assert corrected.ordinary is natural.ordinary
    assert gain == predicted == pytest.approx(0.5 * natural.vector @ fisher @ natural.vector)


def test_pairs_in_all_directions_make_it_newtons(problem, rng):
    fisher, axes, curvatures, hessian = problem
    to_go = rng.normal(size=SIZE)
    natural = direction(fisher, np.linalg.solve(fisher, hessian @ to_go))
    geometry = Dense(fisher, pairs_along(axes, curvatures))
    corrected, gain, predicted = geometry.corrected(natural)
    np.testing.assert_allclose(corrected.vector, to_go)
    np.testing.assert_allclose(corrected.covector, natural.covector)  # slopes are of the bound
    assert corrected.ordinary is natural.ordinary
    assert gain == pytest.approx(0.5 * to_go @ hessian @ to_go)
    assert predicted == pytest.approx(0.5 * natural.vector @ fisher @ natural.vector)


def test_pairs_that_noise_may_have_made_do_not_count(problem, rng):
    fisher, axes, *_ = problem
    natural = direction(fisher, rng.normal(size=SIZE))
    geometry = Dense(fisher, pairs_along(axes[:2], [1e-4, -1.0]))
    np.testing.assert_array_equal(geometry.corrected(natural).direction.vector, natural.vector)


def test_the_newest_pairs_count_as_far_as_there_is_room(problem, rng):
    fisher, axes, _, _ = problem
    pairs = pairs_along(np.repeat(axes, 3, 0), np.arange(1.0, 13.0))
    natural = direction(fisher, rng.normal(size=SIZE))
    expected = Dense(fisher, pairs[-MAX_PAIRS:]).corrected(natural)
    found = Dense(fisher, pairs).corrected(natural)
    np.testing.assert_array_equal(found.direction.vector, expected.direction.vector)
    assert Dense(fisher, pairs, size=MAX_NUMBERS // 4).max_pairs == 2
    none = Dense(fisher, pairs, size=MAX_NUMBERS).corrected(natural).direction
    np.testing.assert_array_equal(none.vector, natural.vector)


def test_gains_and_squares_of_many_vectors_are_those_of_each(problem, rng):
    fisher, axes, curvatures, _ = problem
    geometry = Dense(fisher, pairs_along(axes, curvatures))
    vectors = rng.normal(size=(3, SIZE))
    for vector, gain, square in zip(
        vectors, geometry.gains(vectors), geometry.squares(vectors), strict=True
    ):
        assert gain == pytest.approx(max(geometry.corrected(direction(fisher, vector))[1:]))
        assert square == pytest.approx(vector @ fisher @ vector)


def test_numbers_that_are_not_finite_are_no_error(problem):
    fisher, axes, curvatures, _ = problem
    bad = Direction(np.array([np.inf, np.nan, 0.0, -np.inf]), np.full(SIZE, np.inf))
    for pairs in ([], pairs_along(axes, curvatures)):
        assert np.isnan(Dense(fisher, pairs).corrected(bad).gain)


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
        np.testing.assert_allclose(corrected.direction.vector, expected.direction.vector, rtol=1e-4)
        assert corrected.gain == pytest.approx(expected.gain, rel=1e-4)
