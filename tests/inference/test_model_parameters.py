"""Gaussians and the model's own parameters as one vector, on a bound that depends on both."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ngvi.inference.local_search import LocalSearch
from ngvi.inference.model_parameters import with_model_parameters
from ngvi.inference.search import Status
from ngvi.inference.stochastic import StochasticSearch
from tests.inference.numpy_problem import Target, normal, search_of

DIM = 2
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
    problem = with_model_parameters(one.problem())
    found = problem.objective.bound(one.initial, one.sample(np.random.default_rng(0), 3))
    return one, problem, problem.metric(one.initial, []), found


# -- the search ------------------------------------------------------------------------


def test_strongly_coupled_parameters_converge_together_in_few_steps():
    search = search_of(LocalSearch, target(), tolerance=0.02)
    search.advance()
    gap = search.state.own - CENTRE
    assert search.status is Status.OPTIMUM and len(search.trace) < 120
    assert 0.5 * np.sum(STEEPNESS * gap**2) < 0.02
    np.testing.assert_allclose(search.state.mean, COUPLING @ search.state.own, atol=0.1)
    # By turns, as over minibatches, it takes more than that.
    other = search_of(StochasticSearch, target(), tolerance=0.02)
    other.advance(max_steps=len(search.trace))
    assert other.status is not Status.OPTIMUM


# -- the steps -------------------------------------------------------------------------


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
