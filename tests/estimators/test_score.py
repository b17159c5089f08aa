"""The natural gradient from values alone: that of Bonnet and Price on average, and of jumps too."""

from __future__ import annotations

import numpy as np
import pytest

from ngvi.estimators.choice import cost_of_group, cost_of_step
from ngvi.estimators.options import DEFAULTS
from ngvi.estimators.points import PointsBySite
from ngvi.estimators.table import ESTIMATORS
from tests.reference import random_gaussian

DIM, NUM_DRAWS, NUM_GROUPS = 2, 256, 400


def directions(ppl, family, log_density, noise):
    """Coordinates of the natural gradients of some groups, from ``Score`` itself."""
    score = ppl.module("estimators").make_estimator

    def points(z):
        weights = ppl.array(np.full(NUM_DRAWS, 1.0 / NUM_DRAWS))
        keys = ppl.array(np.zeros(NUM_DRAWS)) if ppl.is_numpyro else None
        return PointsBySite({"x": ppl.array(z)}, weights, keys)

    if ppl.is_numpyro:
        import jax

        cost = cost_of_group("score", DIM, DIM, 1)
        run = jax.jit(
            lambda z: score("score", cost, 64)(
                lambda latents, ordinary, key: log_density(latents["x"]), {"x": family}, points(z)
            ).directions["x"]
        )
        return [ppl.coordinates(run(z)) for z in noise]

    class Runs:
        def values(self, here, points):
            return log_density(points.of(here)["x"])

        def report(self, *about):
            pass

        reads = ppl.module("host").Reads()

    estimator = ppl.module("estimators.score").Score()
    return [
        ppl.coordinates(estimator(Runs(), {"x": family}, points(z)).directions["x"]) for z in noise
    ]


@pytest.mark.parametrize("name", ["covariance_cholesky", "diagonal"])
def test_the_direction_is_unbiased_where_the_log_density_jumps(ppl, name, rng):
    """A quadratic plus a step in the first latent, whose moments are a normal density's."""
    family = ppl.family(name, *random_gaussian(name, DIM, rng))
    mean, covariance = ppl.numpy(family.mean), ppl.numpy(family.covariance_matrix)
    hessian = -np.array([[2.0, 0.3], [0.3, 1.0]])

    def log_density(theta):
        quadratic = 0.5 * ((theta @ ppl.array(hessian)) * theta).sum(-1)
        return quadratic + 2.0 * ppl.np.where(theta[..., 0] > 0.1, 1.0, 0.0)

    # Of E[1(a > c)]: the density at c, and its slope.
    sd = covariance[0, 0] ** 0.5
    gap = (mean[0] - 0.1) / sd
    density = np.exp(-0.5 * gap**2) / np.sqrt(2 * np.pi) / sd
    gradient = hessian @ mean + 2.0 * density * np.eye(DIM)[0]
    second = hessian - 2.0 * density * gap / sd * np.outer(*2 * [np.eye(DIM)[0]])
    part = family.assemble_hessian(ppl.array(second))
    expected = ppl.coordinates(family.bonnet_price(ppl.array(gradient), part))
    found = directions(ppl, family, log_density, rng.normal(size=(NUM_GROUPS, NUM_DRAWS, DIM)))
    # Less the mean of the same draws a group has this part of it.
    part = 1.0 - 1.0 / NUM_DRAWS
    for index, wanted in enumerate(expected):
        values = np.array([one[index] for one in found])
        error = values.std(0) / np.sqrt(NUM_GROUPS)
        assert (np.abs(values.mean(0) - part * wanted) < 5 * error + 1e-12).all()


def test_it_is_a_choice_of_fit_and_costs_values_only():
    assert ESTIMATORS["score"].of_fit and not ESTIMATORS["score"].of_step
    assert cost_of_group("score", 9, 9, 1) == (DEFAULTS.num_score, DEFAULTS.num_score, 0, 0, 1)
    for name, one in ESTIMATORS.items():
        if one.of_step:
            assert cost_of_step(name, 9, 9, 2).num_gradients >= 2
