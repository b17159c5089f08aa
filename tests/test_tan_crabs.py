"""Intercept-only Poisson model of the horseshoe crabs (Tan, section 4.1, Table 2, Figure 3).

The maximum of the bound is at ``(mu, sigma^2) = (1.07, 0.002)``; with the ``log y!`` term it is
-499.46527 nats.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests import models, reference
from tests.optim.table5 import assert_same, driver, snngm

STARTS = [(0.0, 0.1), (0.5, 0.02), (2.0, 0.01)]

MAXIMUM = -499.46527

#: Of stochastic runs, whose step size falls to zero.
NUM_STEPS = 400


@pytest.fixture(scope="module")
def crabs():
    counts = reference.crab_satellites()
    return reference.Glm(np.ones((counts.size, 1)), counts, "poisson", prior_scale=10.0)


def test_the_reference_optimum_is_the_papers(crabs):
    bound, mu, sigma = crabs.optimum("diagonal")
    # The digits that are printed.
    assert round(mu[0], 2) == 1.07
    assert round(sigma[0, 0], 3) == 0.002
    assert round(bound, 5) == MAXIMUM


def _start(family, mu, variance):
    scale = np.array([np.sqrt(variance)])
    return {"q": (family, np.array([mu]), scale[:, None] if family != "diagonal" else scale)}


def _exact(crabs):
    """The natural gradient of the negative bound in closed form, a function of the point."""
    num, total = crabs.y.size, crabs.y.sum()

    def natural(point):
        ((name, (family, loc, scale)),) = point.items()
        mu, sd = loc.item(), scale.item()
        rate = num * np.exp(mu + 0.5 * sd**2)
        of_mean = total - rate - mu / 100
        of_scale = -(rate + 0.01) * sd + 1 / sd
        direction = sd**2 * of_mean, 0.5 * sd**2 * of_scale
        return {
            name: (family, np.full(loc.shape, -direction[0]), np.full(scale.shape, -direction[1]))
        }

    return natural


@pytest.mark.parametrize("mu_start, variance_start", STARTS)
def test_snngm_takes_the_papers_steps(backend, family_name, mu_start, variance_start, crabs):
    point = _start(family_name, mu_start, variance_start)
    expected = snngm(point, [_exact(crabs)] * 20, lambda step: 0.001, beta=0.9)
    run = driver(backend, backend.optimiser("Snngm", 0.001), point)
    for target in expected:
        loc, scale = run.gaussian("q")
        gradient = backend.family(family_name, *crabs.gradient(family_name, loc, scale))
        natural = backend.family(family_name, loc, scale).natural_gradient(gradient)
        n_loc, n_scale = backend.coordinates(natural)
        run.step({"q": (family_name, -n_loc, -n_scale)})
        assert_same(run, target, rtol=1e-12)


def test_snngm_in_stock_svi_converges_from_the_papers_starts(ppl, crabs):
    model = models.glm(ppl, "poisson", crabs.prior_scale)
    optimiser = ppl.optimiser("Snngm", lambda step: 0.03 * (1 - step / NUM_STEPS))
    svi = ppl.svi(model, "auto", optimiser, ppl.elbo(), args=(crabs.X, crabs.y))
    for mu, variance in STARTS:
        svi.move_to(svi.family.initial(ppl.array([mu]), variance**0.5))
        svi.seed(0)
        svi.run(NUM_STEPS)
        (mu,), ((variance,),) = svi.gaussian
        # The printed digits of the paper, and the bound to its fifth: the step size falls to zero,
        # and sticking the landing takes the noise away with it.
        assert mu == pytest.approx(1.07, abs=0.005)
        assert variance == pytest.approx(0.002, abs=0.0005)
        assert crabs.bound([mu], [[variance]]) == pytest.approx(MAXIMUM, abs=1e-3)
