"""Gaussians and the model's own parameters as one vector, on a bound that depends on both."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ngvi.inference.local_search import LocalSearch
from ngvi.inference.model_parameters import with_model_parameters
from ngvi.inference.options import LEVELS, ParameterOptions
from ngvi.inference.search import Status
from ngvi.inference.stochastic import StochasticSearch
from tests.inference.numpy_problem import Target, normal, search_of

OPTIONS, DIM = ParameterOptions(), 2
#: The model's own parameters, a number and two rows, and how steep the bound is along each.
SHAPES, SIZE = ((), (2, 3)), 7
STEEPNESS = np.array([1e4, *np.geomspace(0.05, 1.5, 6)])
CENTRE = 0.1 + np.arange(SIZE) / SIZE
COUPLING = np.random.default_rng(3).normal(size=(DIM, SIZE))


def density(theta, own):
    """``theta = A w`` at the optimum, where only a square is left: a long way to go together."""
    gap = theta - COUPLING @ own
    return normal(gap) - 0.5 * np.sum(STEEPNESS * (own - CENTRE) ** 2)


class Shaped(Target):
    """One whose parameters have shapes."""

    def bound(self, *args):
        found = super().bound(*args)
        (own,) = found.mean.parameters
        return found._replace(mean=found.mean._replace(parameters=shaped(own)))

    def model_parameters(self, state):
        return dict(enumerate(shaped(state.own)))

    def moved(self, state, steps):
        assert [np.shape(step) for step in steps] == list(SHAPES)
        return dataclasses.replace(state, own=state.own + flat(steps))


def flat(parts):
    return np.concatenate([np.ravel(part) for part in parts])


def shaped(vector):
    return [vector[0].reshape(()), vector[1:].reshape(2, 3)]


def target():
    return Shaped(density, DIM, own=np.zeros(SIZE))


def estimated():
    """A joint problem, its metric at the first state, and an estimate there."""
    one = target()
    problem = with_model_parameters(one.problem(), OPTIONS)
    found = problem.objective.bound(one.initial, one.sample(np.random.default_rng(0), 3))
    return one, problem, problem.metric(one.initial, []), found


def rms(values):
    return np.sqrt(np.mean(np.square(values)))


# -- the search ------------------------------------------------------------------------


def test_strongly_coupled_parameters_converge_together_in_few_steps():
    search = search_of(LocalSearch, target(), tolerance=0.02)
    search.advance()
    gap = search.state.own - CENTRE
    assert search.status is Status.OPTIMUM and len(search.trace) < 120
    assert 0.5 * np.sum(STEEPNESS * gap**2) < 0.02
    np.testing.assert_allclose(search.state.mean, COUPLING @ search.state.own, atol=0.1)
    # By turns, as with fresh draws at every step, it takes more than that.
    other = search_of(StochasticSearch, target(), tolerance=0.02)
    other.advance(max_steps=len(search.trace))
    assert other.status is not Status.OPTIMUM


# -- the vectors -----------------------------------------------------------------------


def test_gradients_of_parameters_are_at_the_end_of_every_vector():
    one, _, _, found = estimated()
    plain = one.bound(one.initial, one.sample(np.random.default_rng(0), 3))
    own = flat(plain.mean.parameters)
    for row, natural in zip(found.natural, plain.natural, strict=True):
        np.testing.assert_allclose(row, np.concatenate([natural, own]))
    np.testing.assert_allclose(found.mean.natural[2 * DIM :], own)
    np.testing.assert_allclose(found.mean.gradient[2 * DIM :], own)
    np.testing.assert_allclose(found.values, plain.values)


# -- the steps -------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [1e-6, 1e-2, 1.0])
def test_a_step_stays_within_the_radius_and_its_slope_is_the_bounds(radius):
    one, _, metric, found = estimated()
    step = metric.step(metric.corrected(found.mean).direction, 1.0, radius)
    assert 0 <= step.length <= radius * (1 + 1e-12) and 0 < step.step_size <= 1
    for part in shaped(step.change[2 * DIM :]):  # in their own units
        assert rms(part) <= OPTIONS.first_step * (1 + 1e-12)
    np.testing.assert_allclose(step.change[2 * DIM :], step.state.own - one.initial.own)
    np.testing.assert_allclose(step.change[:DIM], step.state.mean - one.initial.mean)
    assert step.slope == pytest.approx(found.mean.gradient @ step.change)


def after(fall, is_short, times=1):
    """The first direction's parameters after a step along which gradients fell by this part."""
    one, problem, metric, found = estimated()
    first = metric.corrected(found.mean).direction.natural[2 * DIM :]
    for _ in range(times):
        step = metric.step(metric.corrected(found.mean).direction, 1.0, 1.0)
        natural, gradient = found.mean.natural.copy(), found.mean.gradient.copy()
        natural[2 * DIM :] *= 1.0 - fall
        gradient[2 * DIM :] *= 1.0 - fall
        new = found.mean._replace(natural=natural, gradient=gradient)
        metric.accepted(step, found.mean, new, is_short)
    again = problem.metric(one.initial, []).corrected(found.mean).direction.natural[2 * DIM :]
    return [rms(b) / rms(a) for a, b in zip(shaped(first), shaped(again), strict=True)]


@pytest.mark.parametrize(
    ("fall", "is_short", "factor"),
    [
        (0.5, True, 2.0),  # the inverse curvature along the step
        (2.0, True, 0.5),
        (0.01, True, LEVELS.growth),  # but no more than that at once
        (0.0, False, OPTIONS.growth),
        (1.9, False, LEVELS.shrinkage),
    ],
)
def test_a_parameters_metric_is_its_curvature_along_the_last_step(fall, is_short, factor):
    assert after(fall, is_short) == pytest.approx([factor] * 2, rel=1e-6)


def test_limits_grow_while_gradients_keep_their_direction_and_shrink_when_refused():
    lengths = []
    for num_refused, num_good in ((0, 0), (1, 0), (0, 3)):
        one, problem, metric, found = estimated()
        for _ in range(num_good):
            step = metric.step(metric.corrected(found.mean).direction, 1.0, np.inf)
            metric.accepted(step, found.mean, found.mean, False)
        metric.corrected(found.mean)
        for _ in range(num_refused):
            metric.refused()
        metric = problem.metric(one.initial, [])
        step = metric.step(metric.corrected(found.mean).direction, 1.0, np.inf)
        lengths.append(rms(step.change[2 * DIM :][1:]) / OPTIONS.first_step)
    assert lengths == pytest.approx([1.0, LEVELS.shrinkage, OPTIONS.growth**3])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("steepness", [1.0, 1e21, 1e38])
def test_gradients_whose_squares_overflow_in_single_precision_are_followed(steepness):
    one, problem, metric, found = estimated()
    natural = found.mean.natural / np.abs(found.mean.natural).max()
    natural[2 * DIM :] *= steepness
    before = found.mean._replace(natural=np.float32(natural), gradient=np.float32(natural))
    step = metric.step(metric.corrected(before).direction, 1.0, 1.0)
    first = metric.scaled(before.natural[None])[0, 2 * DIM :]
    half = before._replace(natural=before.natural / 2)
    metric.accepted(step._replace(change=np.float32(step.change)), before, half, True)
    again = problem.metric(one.initial, []).scaled(before.natural[None])[0, 2 * DIM :]
    np.testing.assert_allclose(again, 2 * first, rtol=1e-4)
