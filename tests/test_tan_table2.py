"""Step counts of the papers' parametrisations on the horseshoe crabs (Tan, Tables 1 and 2,
Figure 2): Poisson regression, whose bound is known exactly.

A step takes the largest size of 1, 0.1, 0.01, ... for which ``q`` stays a Gaussian and the bound
increases. A run has converged when the bound's relative increase is below 1e-7: the paper does
not print its rule, and this one gives all of Table 2's counts.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from benchmarks.horseshoe_crabs import crabs, design
from tests import reference

STARTS = [(0.0, 0.1), (0.5, 0.02), (2.0, 0.01)]

#: Steps and smallest step size, by start.
TABLE_2 = {
    "kappa": [(15, 0.01), (12, 0.1), (9, 0.01)],
    "xi": [(11, 0.01), (8, 0.1), (8, 0.1)],
    "lambda": [(6, 1.0), (5, 1.0), (5, 1.0)],
}

#: The family, and whether the mean moves by the old Sigma.
PARAMETRISATIONS = {
    "kappa": ("covariance", False),
    "xi": ("precision", True),
    "lambda": ("precision", False),
    "Theorem 1": ("precision_cholesky", True),
    "Corollary 1": ("precision_cholesky", False),
}


class Poisson:
    """The bound and its derivatives in closed form (supplement S2), prior variance 100."""

    def __init__(self, formula):
        self.X, self.y = design(formula), crabs()[2]
        self.dim = self.X.shape[1]
        self.constant = sum(math.lgamma(count + 1) for count in self.y)

    def rates(self, mu, sigma):
        return np.exp(self.X @ mu + 0.5 * ((self.X @ sigma) * self.X).sum(1))

    def bound(self, mu, sigma):
        value = self.y @ self.X @ mu - self.rates(mu, sigma).sum() - self.constant
        value -= (mu @ mu + np.trace(sigma)) / 200
        return value + 0.5 * (np.linalg.slogdet(sigma)[1] + self.dim * (1 - math.log(100)))

    def derivatives(self, mu, sigma):
        rates = self.rates(mu, sigma)
        gradient = self.X.T @ (self.y - rates) - mu / 100
        return gradient, -(self.X.T * rates) @ self.X - np.eye(self.dim) / 100


def ascend(backend, parametrisation, model, mu, variance):
    """``(steps, smallest step size, bound)``."""
    name, old_mean = PARAMETRISATIONS[parametrisation]
    q = backend.family_class(name)().initial(backend.array(mu), math.sqrt(variance))

    def bound(family):
        return model.bound(*(backend.numpy(x) for x in (family.mean, family.covariance_matrix)))

    def proposal(direction, rho):
        step = [rho * value for value in backend.coordinates(direction)]
        moved = q.retract(backend.family(name, *step))
        added = backend.coordinates(q)[1] + step[1]
        # The paper rejects what is not positive definite, retract corrects it.
        if not np.allclose(backend.coordinates(moved)[1], added, rtol=1e-9, atol=0):
            return None
        return dataclasses.replace(moved, loc=q.loc + backend.array(step[0])) if old_mean else moved

    value, smallest = bound(q), 1.0
    for count in range(1, 100):
        moments = [backend.numpy(x) for x in (q.mean, q.covariance_matrix)]
        direction = q.bonnet_price(*map(backend.array, model.derivatives(*moments)))
        for exponent in range(12):
            moved = proposal(direction, 10.0**-exponent)
            if moved is not None and bound(moved) > value:
                break
        smallest = min(smallest, 10.0**-exponent)
        q, before, value = moved, value, bound(moved)
        if value - before < 1e-7 * abs(value):
            return count, smallest, value
    raise AssertionError("did not converge")


def test_the_crabs_are_agrestis():
    colour, width, satellites = crabs()
    np.testing.assert_array_equal(np.sort(satellites), reference.crab_satellites())
    np.testing.assert_array_equal(np.bincount(colour), [12, 95, 44, 22])
    assert width.mean() == pytest.approx(26.3, abs=0.005)


@pytest.mark.parametrize("formula", ["1", "Width", "Color + Width"])
def test_the_closed_form_is_the_quadratures(formula, rng):
    model = Poisson(formula)
    glm = reference.Glm(model.X, model.y, "poisson", prior_scale=10.0)
    mu, scale = reference.random_gaussian("covariance_cholesky", model.dim, rng)
    mu, sigma = 0.3 * mu, 0.01 * scale @ scale.T
    expected = glm.expectations(mu, sigma)
    assert model.bound(mu, sigma) == pytest.approx(glm.bound(mu, sigma), rel=1e-12)
    for actual, value in zip(model.derivatives(mu, sigma), expected[1:], strict=True):
        np.testing.assert_allclose(actual, value, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("parametrisation", TABLE_2)
@pytest.mark.parametrize("start", range(3))
def test_table_2(backend, parametrisation, start):
    mu, variance = STARTS[start]
    steps, smallest, bound = ascend(
        backend, parametrisation, Poisson("1"), np.array([mu]), variance
    )
    assert (steps, smallest) == TABLE_2[parametrisation][start]
    assert bound == pytest.approx(-499.46527, abs=1e-5)


@pytest.mark.parametrize("formula", ["Width", "Color + Width"])
@pytest.mark.parametrize("variance", [1e-4, 1e-2, 1e-1, 1.0])
def test_corollary_1_needs_fewer_steps_than_theorem_1(backend, formula, variance):
    # Figure 2; the paper does not print its starting point, so several.
    model = Poisson(formula)
    start = np.zeros(model.dim), variance
    theorem = ascend(backend, "Theorem 1", model, *start)
    corollary = ascend(backend, "Corollary 1", model, *start)
    assert corollary[0] < theorem[0]
    assert corollary[1] >= theorem[1]  # and is more resilient to larger step sizes
    assert corollary[2] == pytest.approx(theorem[2], abs=1e-4)
