"""Natural gradients of values alone lead to an optimum where the log density jumps."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr

from ngvi.inference.by_values import ByValues, search_by_values
from ngvi.inference.local_search import LocalSearch
from ngvi.inference.options import FitOptions
from ngvi.inference.search import Status
from tests.inference.numpy_problem import (
    CENTRE,
    OPTIMUM,
    SCALE,
    State,
    Target,
    exact_bound,
    gaussian,
    monitored,
    search_of,
)


def jump(theta):
    """Two nats to one side of the centre, which no gradient sees."""
    return np.where(theta[:, 0] > CENTRE[0], 2.0, 0.0)


def by_values(target, **options):
    before = search_of(LocalSearch, target)
    before.advance()
    rng, monitor = np.random.default_rng(1), monitored(**options)
    return before, search_by_values(target.problem(), rng, 0.05, FitOptions(), monitor, before)


def test_it_goes_where_gradients_do_not_lead_and_no_gradient_is_asked_for():
    target = Target(gaussian, unseen=jump)
    before, search = by_values(target)
    gradients = target.cost.gradients
    assert search.status is Status.OPTIMUM and search.certificate.is_met(0.05)
    # A mean ``m`` standard deviations up gains ``2 Phi(m) - 1 - m^2 / 2``, at most 0.27.
    up = (search.state.mean[0] - CENTRE[0]) / SCALE[0]
    assert (
        2.0 * ndtr(up) - 1.0 - 0.5 * up**2 > 0.22
        and search.state.mean[0] > CENTRE[0] + 0.3 * SCALE[0]
    )
    assert search.trace.losses[: len(before.trace)] == before.trace.losses
    again = Target(gaussian, unseen=jump)
    search_of(LocalSearch, again).advance()
    assert gradients == again.cost.gradients


def test_parameters_of_the_models_own_go_along():
    def smooth(theta, own):
        return gaussian(theta) - 5.0 * np.sum((own - 1.0) ** 2)

    _, search = by_values(Target(smooth, own=np.zeros(1), unseen=jump))
    np.testing.assert_allclose(search.state.own, [1.0], atol=0.1)
    assert search.state.mean[0] > CENTRE[0] + 0.2 * SCALE[0]


def test_a_budget_ends_it():
    target = Target(gaussian, unseen=jump)
    before = search_of(LocalSearch, target)
    before.advance()
    spent, args = target.cost.total, (0.05, FitOptions(), monitored(), before)
    search = search_by_values(target.problem(), np.random.default_rng(1), *args, max_cost=1000.0)
    assert search.status is None and 1000.0 <= target.cost.total - spent < 3000.0


@pytest.mark.parametrize("state", [OPTIMUM, State(CENTRE - SCALE, np.log(0.7 * SCALE))])
def test_its_natural_gradient_is_that_of_the_bound_on_average(state):
    target = Target(gaussian)
    objective = ByValues(target, FitOptions(), False)
    rng = np.random.default_rng(0)
    found = objective.bound(state, objective.sample(rng, 400))
    expected = target.bound(state, target.sample(rng, 1)).mean
    errors = found.natural.std(0) / 20.0
    assert (np.abs(found.mean.natural - expected.natural) < 4 * errors + 1e-9).all()
    np.testing.assert_allclose(found.value, exact_bound(target, state), atol=0.05)
