"""Intercept-only Poisson model of the horseshoe crabs (Tan, section 4.1, Table 2, Figure 3).

The maximum of the bound is at ``(mu, sigma^2) = (1.07, 0.002)``; with the ``log y!`` term it is
-499.46527 nats.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests import reference
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


def test_the_closed_form_is_the_quadratures(family_name, crabs):
    point = _start(family_name, 0.5, 0.02)
    gradient = crabs.gradient(*point["q"])
    expected = reference.natural_gradient(*point["q"], *gradient)
    for part, other in zip(_exact(crabs)(point)["q"][1:], expected, strict=True):
        np.testing.assert_allclose(part, -other, rtol=1e-10)


@pytest.mark.parametrize("mu_start, variance_start", STARTS)
def test_the_papers_snngm_with_exact_gradients_converges_from_its_starts(
    family_name, mu_start, variance_start, crabs
):
    path = snngm(
        _start(family_name, mu_start, variance_start),
        [_exact(crabs)] * 1500,
        lambda step: 0.001,
        beta=0.9,
    )
    _, loc, scale = path[-1]["q"]
    # A constant alpha of 0.0014 leaves the iterate within a few alpha of the optimum: in mu a
    # twentieth of a posterior deviation, and half of its square in nats. Likewise for sigma.
    step = 0.001 * np.sqrt(2)
    assert abs(loc[0] - 1.07026) < 5 * step
    assert abs(abs(scale.item()) - 0.0019802**0.5) < 5 * step
    best = max(
        crabs.bound(point["q"][1], reference.covariance(family_name, point["q"][2]))
        for point in path[-100:]
    )
    assert best == pytest.approx(MAXIMUM, abs=0.01)


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


def test_snngm_in_stock_svi_converges_from_the_papers_starts_numpyro(numpyro_backend, crabs):
    import jax
    import numpyro
    import numpyro.distributions as dist
    import optax
    from numpyro.infer import SVI, Trace_ELBO

    y = jax.numpy.asarray(crabs.y)

    def model():
        theta = numpyro.sample("theta", dist.Normal(0.0, 10.0))
        with numpyro.plate("crabs", len(y)):
            numpyro.sample("y", dist.Poisson(jax.numpy.exp(theta)), obs=y)

    package = numpyro_backend.package
    guide = package.NaturalGaussianGuide(model)
    schedule = optax.polynomial_schedule(0.03, 0.0, 1, NUM_STEPS)
    svi = SVI(model, guide, package.Snngm(schedule), Trace_ELBO())
    states = []
    for mu, variance in STARTS:
        state = svi.init(jax.random.key(0))
        ((name, q),) = svi.get_params(state).items()
        params = {name: q.initial(jax.numpy.full((1,), mu), variance**0.5)}
        states.append(state._replace(optim_state=svi.optim.init(params)))

    def run(state):
        return jax.lax.scan(lambda state, _: svi.update(state), state, length=NUM_STEPS)[0]

    # Compiled once for all starts.
    ends = jax.jit(jax.vmap(run))(jax.tree.map(lambda *x: jax.numpy.stack(x), *states))
    (ends,) = svi.get_params(ends).values()
    for i in range(len(STARTS)):
        posterior = guide.get_posterior({name: jax.tree.map(lambda x: x[i], ends)})  # noqa: B023
        _assert_fits(crabs, float(posterior.mean[0]), float(posterior.variance[0]))


@pytest.mark.parametrize("mu_start, variance_start", STARTS)
def test_snngm_in_stock_svi_converges_from_the_papers_starts_pyro(
    pyro_backend, mu_start, variance_start, crabs
):
    import pyro
    import pyro.distributions as dist
    import torch
    from pyro.infer import SVI, Trace_ELBO
    from pyro.infer.autoguide.initialization import init_to_value

    y = torch.as_tensor(crabs.y)

    def model():
        theta = pyro.sample("theta", dist.Normal(0.0, 10.0))
        with pyro.plate("crabs", len(y)):
            pyro.sample("y", dist.Poisson(theta.exp()), obs=y)

    package = pyro_backend.package
    guide = package.NaturalGaussianGuide(
        model,
        init_loc_fn=init_to_value(values={"theta": torch.tensor(mu_start)}),
        init_scale=variance_start**0.5,
    )
    optimiser = package.Snngm({"lr": lambda t: 0.03 * max(0.0, 1 - t / NUM_STEPS) + 1e-12})
    svi = SVI(model, guide, optimiser, Trace_ELBO())
    for _ in range(NUM_STEPS):
        svi.step()
    posterior = guide.get_posterior()
    _assert_fits(crabs, float(posterior.mean[0]), float(posterior.variance[0]))


def _assert_fits(crabs, mu, variance):
    # The printed digits of the paper, and the bound to its fifth: the step size falls to zero,
    # and sticking the landing takes the noise away with it.
    assert mu == pytest.approx(1.07, abs=0.005)
    assert variance == pytest.approx(0.002, abs=0.0005)
    assert crabs.bound([mu], [[variance]]) == pytest.approx(MAXIMUM, abs=1e-3)
