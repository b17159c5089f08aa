"""``NaturalELBO`` in NumPyro: the value of the bound, and second-order natural gradients."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest

from tests.models import SUBSAMPLE, data
from tests.ppl import QUICKLY, load
from tests.reference import random_gaussian

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from jax import random
from numpyro import handlers
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal

from numpyro_ngvi import NaturalELBO, NaturalGaussianGuide
from numpyro_ngvi.elbo import natural_elbo

PARAM, SITE = "auto_posterior", "_auto_latent"
DIM = 3


@pytest.fixture(autouse=True)
def _float64(numpyro_backend):
    return numpyro_backend


def arguments():
    """A design and binary responses."""
    X, _, y = data()
    return jnp.asarray(X), jnp.asarray((y > 0).astype(float))


def logistic(X, y, subsample_size=None):
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(DIM), 2.0).to_event(1))
    with numpyro.plate("data", len(y), subsample_size=subsample_size) as index:
        numpyro.sample("y", dist.Bernoulli(logits=X[index] @ weights), obs=y[index])


@functools.cache
def prepared(model):
    """The model's guide, which is set up."""
    guide = NaturalGaussianGuide(model)
    parameters(guide, *arguments())
    return guide


def parameters(guide, *args):
    return load("numpyro").set_up(guide, *args)


def compiled(elbo, model, guide, *args, **kwargs):
    """The loss and its gradients, of parameters and a key."""

    def loss(params, key):
        return elbo.loss(key, params, model, guide, *args, **kwargs)

    return jax.jit(jax.value_and_grad(loss), compiler_options=QUICKLY)


def loss_and_gradients(elbo, model, guide, params, *args):
    return compiled(elbo, model, guide, *args)(params, random.key(0))


def direction(elbo, model, guide, family, *args):
    """Minus the gradient that ``elbo`` has for the guide's posterior, and the loss."""
    loss, gradients = loss_and_gradients(elbo, model, guide, {PARAM: family}, *args)
    return jax.tree.map(jnp.negative, gradients[PARAM]), loss


@pytest.fixture
def given_noise(monkeypatch):
    """The draws' ``z``, given instead of drawn: the same for every guide."""

    def give(noise):
        def standard_normal(key, counts, dim, dtype, **options):
            assert (sum(counts), dim) == noise.shape
            return jnp.asarray(noise, dtype)

        monkeypatch.setattr(natural_elbo, "standard_normal", standard_normal)

    return give


def assert_close(actual, expected, rtol):
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        error = np.linalg.norm(np.asarray(a) - np.asarray(e))
        assert error <= rtol * np.linalg.norm(np.asarray(e))


# -- the direction ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["precision", "diagonal"])
def test_at_the_mean_each_family_gets_its_part_of_the_hessian(numpyro_backend, name, rng):
    X, y = args = arguments()
    family = numpyro_backend.family(name, *random_gaussian(name, DIM, rng))
    p = 1 / (1 + jnp.exp(-X @ family.mean))
    gradient = X.T @ (y - p) - family.mean / 4.0
    hessian = -(X.T * (p * (1 - p))) @ X - jnp.eye(DIM) / 4.0
    expected = family.bonnet_price(gradient, family.assemble_hessian(hessian))
    actual, _ = direction(NaturalELBO(2, "mean"), logistic, prepared(logistic), family, *args)
    assert_close(actual, expected, 1e-11)


@jax.jit
def minibatch_of(key, theta, X, y):
    """The indices that a loss with this key sees, found as NumPyro's own ELBOs would."""
    model_key = random.split(random.split(key, 3)[0])[0]
    run = handlers.substitute(handlers.seed(logistic, model_key), data={"weights": theta})
    return handlers.trace(run).get_trace(X, y, subsample_size=SUBSAMPLE)["data"]["value"]


@pytest.mark.parametrize("curvature", ["hessian", "gauss_newton"])
def test_value_gradient_and_curvature_are_those_of_one_minibatch(
    numpyro_backend, curvature, given_noise, rng
):
    """All of them by hand, from the draws; two with Hessians, a third for the gradient."""
    args = arguments()
    family = numpyro_backend.family("precision", *random_gaussian("precision", DIM, rng))
    noise = rng.normal(size=(3, DIM))
    given_noise(noise)
    elbo = NaturalELBO(2, curvature, num_gradients=3)
    run = compiled(elbo, logistic, prepared(logistic), *args, subsample_size=SUBSAMPLE)
    thetas = np.asarray(family.sample(jnp.asarray(noise)))
    for key in map(random.key, (0, 1)):
        loss, of_loss = run({PARAM: family}, key)
        index = minibatch_of(key, thetas[0], *args)
        X, y = (np.asarray(a)[np.asarray(index)] for a in args)
        weight = len(args[1]) / SUBSAMPLE
        gradients, hessians, values = [], [], []
        for theta in thetas:
            p = 1 / (1 + np.exp(-X @ theta))
            rows = X * (y - p)[:, None]
            likelihood = X.T @ (X * (p * (1 - p))[:, None])
            squares = rows.T @ rows if curvature == "gauss_newton" else likelihood
            gradients.append(weight * rows.sum(0) - theta / 4.0)
            hessians.append(-weight * squares - np.eye(DIM) / 4.0)
            prior = -0.5 * theta @ theta / 4.0 - DIM * np.log(2.0 * np.sqrt(2 * np.pi))
            log_q = float(family.log_prob(jnp.asarray(theta)))
            likelihood = weight * (y * np.log(p) + (1 - y) * np.log1p(-p)).sum()
            values.append(likelihood + prior - log_q)
        expected = family.bonnet_price(
            jnp.asarray(np.mean(gradients, 0)), jnp.asarray(np.mean(hessians[:2], 0))
        )
        assert_close(jax.tree.map(jnp.negative, of_loss[PARAM]), expected, 1e-10)
        assert float(loss) == pytest.approx(-np.mean(values[:2]), rel=1e-10)


# -- the rest of the model and of the guide -----------------------------------------------


def scaled(y):
    scale = numpyro.param("scale", 2.0, constraint=dist.constraints.positive)
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(x, scale), obs=y)


@pytest.mark.parametrize("curvature", ["hessian", "stein", "mean"])
def test_model_parameters_get_the_gradient_of_the_stock_elbo(
    numpyro_backend, curvature, given_noise, rng
):
    """On the same draws."""
    y = jnp.array([1.0, 3.0, 2.0])
    noise = rng.normal(size=(3, 1))
    given_noise(noise)
    family = numpyro_backend.family("diagonal", [0.7], [0.4])
    guide = NaturalGaussianGuide(scaled)
    parameters(guide, y)
    params = {PARAM: family, "scale": jnp.array(1.5)}
    elbo = NaturalELBO(3, curvature, num_gradients=3)
    loss, gradients = loss_and_gradients(elbo, scaled, guide, params, y)

    def stock(scale):
        losses = [
            Trace_ELBO().loss(
                random.key(0),
                {**params, "scale": scale},
                scaled,
                handlers.substitute(guide, data={SITE: family.sample(jnp.asarray(z))}),
                y,
            )
            for z in noise
        ]
        return sum(losses) / 3

    expected = jax.jit(jax.value_and_grad(stock), compiler_options=QUICKLY)(params["scale"])
    assert float(loss) == pytest.approx(float(expected[0]), rel=1e-10)
    assert float(gradients["scale"]) == pytest.approx(float(expected[1]), rel=1e-10)


def two_sites():
    a = numpyro.sample("a", dist.Normal(1.0, 0.5))
    numpyro.sample("b", dist.Normal(a, 0.5))


def two_guides(partner, **options):
    guide = AutoGuideList(two_sites)
    guide.append(NaturalGaussianGuide(handlers.block(two_sites, hide=["b"]), init_scale=0.3))
    guide.append(partner(handlers.block(two_sites, hide=["a"]), prefix="partner", **options))
    return guide


@pytest.mark.parametrize("curvature", ["hessian", "mean"])
def test_of_two_natural_guides_each_moves_given_the_other(numpyro_backend, curvature):
    guide = two_guides(NaturalGaussianGuide)
    params = parameters(guide)
    params[PARAM] = numpyro_backend.family("precision", [0.2], [[3.0]])
    params["partner_posterior"] = numpyro_backend.family("precision", [-0.4], [[5.0]])
    # The target is Gaussian: at antithetic draws its mean gradient is that of the means.
    elbo = NaturalELBO(4, curvature, num_gradients=4)
    _, gradients = loss_and_gradients(elbo, two_sites, guide, params)
    slopes = {PARAM: (-0.6 * 4 + (1.0 - 0.2) * 4, 8.0), "partner_posterior": (0.6 * 4, 4.0)}
    for name, (slope, curvature) in slopes.items():
        family = params[name]
        expected = family.bonnet_price(jnp.array([slope]), jnp.array([[-curvature]]))
        assert_close(jax.tree.map(jnp.negative, gradients[name]), expected, 1e-11)


def test_partners_of_another_kind_learn_beside_it(numpyro_backend):
    guide = two_guides(AutoNormal, init_scale=0.3)
    optimiser = numpyro_backend.package.BLR(0.2, other=optax.adam(0.03))
    svi = SVI(two_sites, guide, optimiser, NaturalELBO(10))
    state = svi.init(random.key(0))
    update = jax.jit(svi.update, compiler_options=QUICKLY)
    for _ in range(400):
        state, _ = update(state)
    params = svi.get_params(state)
    posterior = params[PARAM]
    # Mean field: given b, the precision of a is 1/0.25 + 1/0.25; that of b given a is 1/0.25.
    assert float(posterior.mean[0]) == pytest.approx(1.0, abs=0.1)
    assert float(posterior.stddev[0]) == pytest.approx(8**-0.5, rel=1e-3)
    assert float(params["b_partner_loc"]) == pytest.approx(1.0, abs=0.15)
    assert float(params["b_partner_scale"]) == pytest.approx(0.5, rel=0.2)


# -- trouble ------------------------------------------------------------------------------


def test_a_guide_of_another_kind_is_refused():
    guide = AutoDelta(two_sites)
    svi = SVI(two_sites, guide, optax.sgd(0.1), NaturalELBO())
    state = svi.init(random.key(0))
    with pytest.raises(ValueError, match="no NaturalGaussianGuide.*'a_auto_loc'"):
        svi.update(state)


def half_space():
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    shift = numpyro.param("shift", 2.0)
    # Where x < -1 there is no density, and its gradient is not finite either.
    numpyro.factor("edge", jnp.log(x + 1.0) * shift)


@pytest.mark.parametrize("curvature", ["hessian", "stein"])
def test_draws_that_are_not_finite_are_dropped_and_counted(
    numpyro_backend, curvature, given_noise, rng
):
    guide = NaturalGaussianGuide(half_space)
    parameters(guide)
    family = numpyro_backend.family("diagonal", [0.0], [1.0])
    params = {PARAM: family, "shift": jnp.array(2.0)}
    noise = np.array([[0.3], [-2.0], [1.5], [-0.5]])  # of which the second is beyond the edge
    given_noise(noise)
    elbo = NaturalELBO(4, curvature, num_gradients=4)
    run = compiled(elbo, half_space, guide)
    with pytest.warns(UserWarning, match="left out 1 draws of a step"):
        (loss, gradients), num_dropped = run(params, random.key(0)), elbo.num_dropped
    assert num_dropped == 1
    x = np.array([0.3, 1.5, -0.5])
    values = -0.5 * x**2 + 2.0 * np.log(x + 1.0) + 0.5 * x**2  # log p - log q
    assert float(loss) == pytest.approx(-values.mean(), rel=1e-12)
    assert float(gradients["shift"]) == pytest.approx(-np.log(x + 1.0).mean(), rel=1e-12)
    slope = -x + 2.0 / (x + 1.0)
    if curvature == "hessian":
        expected = slope.mean(), 0.5 * (np.mean(-1.0 - 2.0 / (x + 1.0) ** 2) + 1.0)
    else:
        expected = (slope + x).mean(), 0.5 * ((slope + x) * x).mean()
    assert float(-gradients[PARAM].loc[0]) == pytest.approx(expected[0], rel=1e-11)
    assert float(-gradients[PARAM].scale[0]) == pytest.approx(expected[1], rel=1e-11)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the warning comes once
        run(params, random.key(0))
        assert elbo.num_dropped == 2
