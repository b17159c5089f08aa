"""The way to an optimum where the log density jumps: natural gradients from its values alone.

It jumps in the latents. Parameters of the model's own have their gradients, at a few of the draws.
Where the bound is flatter than the Fisher metric, the natural gradient predicts less than there is
to gain: further steps go on for as long as draws of their own see a gain, and these say what is
left.
"""

from __future__ import annotations

import math

import numpy as np

from ngvi.inference.certificate import Certificate
from ngvi.inference.estimate import Estimate, Group, Sample, State
from ngvi.inference.monitor import Monitor
from ngvi.inference.options import FitOptions
from ngvi.inference.problem import Forwarding, Problem
from ngvi.inference.samples import antithetic_sample
from ngvi.inference.search import Search, Status
from ngvi.inference.stochastic import StochasticSearch
from ngvi.inference.validation import difference


class ByValues(Forwarding):
    """An objective of ordinary draws, by the score function."""

    def __init__(self, inner, options: FitOptions, has_model_parameters: bool) -> None:
        super().__init__(inner)
        self._options = options.by_values
        self._has_model_parameters = has_model_parameters

    def sample(self, rng: np.random.Generator, num_groups: int) -> Sample:
        return antithetic_sample(rng, self.dim, num_groups, self._options.group_size)

    def bound(self, state: State, sample: Sample) -> Estimate:
        estimate = self.inner.score(state, sample)
        if not self._has_model_parameters:
            return estimate
        half, pairs = self._options.group_size // 2, self._options.num_pairs
        some = np.r_[:pairs, half : half + pairs]
        weights = np.full(len(some), 1.0 / len(some))
        few = [
            Group(type(group.points)(group.points.noise[some], weights), group.seed)
            for group in sample
        ]
        parameters = self.inner.bound(state, few).mean.parameters
        return estimate._replace(mean=estimate.mean._replace(parameters=parameters))


def search_by_values(
    problem: Problem,
    rng: np.random.Generator,
    tolerance: float,
    options: FitOptions,
    monitor: Monitor,
    before: Search,
    max_cost: float = math.inf,
) -> Search:
    """A search without gradients, which has ended.

    :param before: the search that it goes on from.
    """
    own, cost = options.by_values, problem.objective.cost
    limit = cost.total + max_cost
    objective = ByValues(problem.objective, options, problem.space.has_model_parameters)
    search = StochasticSearch(
        problem.replace(objective=objective),
        rng,
        tolerance,
        options,
        monitor,
        before.state,
        before.trace,
    )
    search.advance(max_cost, max(monitor.max_steps // 4, 100))
    caution = options.certificate.caution
    for _ in range(own.max_rounds):
        if search.status is not Status.OPTIMUM:
            return search
        old, left = search.state, search.gap
        search.go_on(own.num_steps)
        search.advance(limit - cost.total)
        if search.status is None:
            return search
        gain, error = difference(problem, old, search.state, rng, own.num_draws)
        upper = max(left, gain + caution * error)
        search.certificate = Certificate(max(left, gain), upper)
        if search.status is not Status.OPTIMUM:
            return search
        if upper <= tolerance:
            if gain < 0:
                search.state = old
            return search
    search.status = Status.NOISE if gain < 2 * error else Status.RISING
    return search
