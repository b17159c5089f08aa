"""``NaturalELBO`` in Pyro: the value of the bound, and second-order natural gradients."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models import data, pyro_models

pytest.importorskip("pyro")

import pyro
import pyro.distributions as dist
import pyro.infer
import torch
from pyro import poutine
from pyro.infer import SVI
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal
from pyro.infer.autoguide.initialization import init_to_value

from pyro_ngvi import NaturalGaussianGuide
from pyro_ngvi.elbo import NaturalELBO
from pyro_ngvi.tracing import LogDensity, inspect
from tests.tan.families.in_pyro import Covariance, Precision

FAMILIES = ["covariance_cholesky", "precision_cholesky", Precision, Covariance, "diagonal"]
CURVATURES = ["hessian", "gauss_newton", "stein", "mean"]


@pytest.fixture(autouse=True)
def _float64(pyro_backend):
    return pyro_backend


def arguments():
    return tuple(map(torch.as_tensor, data()))


def regression(X, y):
    weights = pyro.sample("weights", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(X @ weights, 0.5), obs=y)


def logistic(X, y):
    weights = pyro.sample("weights", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Bernoulli(logits=X @ weights), obs=y)


def exact_posterior():
    X, _, y = arguments()
    precision = X.mT @ X / 0.25 + torch.eye(3) / 4.0
    return torch.linalg.solve(precision, X.mT @ y / 0.25), torch.linalg.inv(precision)


def direction(elbo, model, guide, *args, **kwargs):
    """Minus the gradient that ``elbo`` leaves on the guide, as a family, and the loss."""
    guide.zero_grad()
    loss = elbo.loss_and_grads(model, guide, *args, **kwargs)
    family = guide.posterior.family()
    return family.map(lambda param: -param.grad), loss


def relative_error(actual, expected):
    return float((actual - expected).norm() / expected.norm())


# -- exactness ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hierarchy", "mixture"])
@pytest.mark.parametrize("family", [*FAMILIES, "block_diagonal", "sparse_precision"])
def test_at_the_mean_each_family_gets_its_part_of_the_hessian(family, name):
    model, args = getattr(pyro_models(), name), arguments()
    guide = NaturalGaussianGuide(model, family, init_scale=0.3)
    actual, _ = direction(NaturalELBO(2, "mean"), model, guide, *args)
    density = LogDensity(model, guide, args, {}, inspect(model, guide, args, {}))
    ((site, q),) = density.posteriors.items()
    q = q.detach()

    def log_density(theta):
        return density({site: theta[None]})[0]

    gradient = torch.autograd.functional.jacobian(log_density, q.mean)
    hessian = torch.autograd.functional.hessian(log_density, q.mean)
    probes = torch.nn.functional.one_hot(torch.as_tensor(q.hessian_probes())).to(hessian)
    expected = q.bonnet_price(gradient, q.assemble_hessian(probes.mT @ hessian))
    for key, value in expected.coordinates().items():
        assert torch.allclose(getattr(actual, key), value, rtol=1e-9, atol=1e-12)


def test_gauss_newton_squares_the_gradients_of_single_examples():
    X, _, y = arguments()
    y = (y > 0).to(X)
    guide = NaturalGaussianGuide(logistic, init_scale=1e-9)
    guide(X, y)
    q = guide.posterior.family().detach()
    rows = X * (y - torch.sigmoid(X @ q.mean))[:, None]
    expected = q.bonnet_price(rows.sum(0) - q.mean / 4.0, -rows.mT @ rows - torch.eye(3) / 4.0)
    actual, _ = direction(NaturalELBO(2, "gauss_newton"), logistic, guide, X, y)
    assert relative_error(actual.loc, expected.loc) < 1e-6
    assert relative_error(actual.scale_tril, expected.scale_tril) < 1e-6


def test_gauss_newton_scales_up_a_minibatch():
    """Each of the minibatch's examples stands for several, and its square is scaled once."""

    def model(y, size):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y), subsample_size=size) as index:
            pyro.sample("y", dist.Normal(x, 1.0), obs=y[index])

    y = torch.full((12,), 2.0)  # any minibatch says the same
    start = init_to_value(values={"x": torch.tensor(0.5)})
    directions = []
    for size in (None, 3):
        guide = NaturalGaussianGuide(model, init_loc_fn=start, init_scale=1e-3)
        directions.append(direction(NaturalELBO(2, "gauss_newton"), model, guide, y, size)[0])
        pyro.clear_param_store()
    full, minibatch = directions
    # At x = 1/2 each of twelve gradients is 3/2, and the prior's precision is 1.
    expected = 0.5 * 1e-3 * (1.0 - 1e-6 * (12 * 1.5**2 + 1.0))
    assert float(full.scale_tril) == pytest.approx(expected, rel=1e-8)
    assert float(minibatch.loc) == pytest.approx(float(full.loc), rel=1e-2)
    assert float(full.scale_tril - 0.5e-3) == pytest.approx(
        float(minibatch.scale_tril - 0.5e-3), rel=1e-2
    )


def test_stein_is_the_first_order_estimate_that_sticks_the_landing():
    X, _, y = arguments()
    guide = NaturalGaussianGuide(regression, "full", sticking_the_landing=True)
    guide(X, y)
    # The same noise: one draw, and a model and guide that draw nothing else.
    elbo = NaturalELBO(1, "stein", antithetic=False)
    pyro.set_rng_seed(4)
    elbo.loss_and_grads(regression, guide, X, y)  # set-up draws random numbers too
    pyro.set_rng_seed(5)
    actual, loss = direction(elbo, regression, guide, X, y)
    guide.zero_grad()
    pyro.set_rng_seed(5)
    stock = pyro.infer.Trace_ELBO().loss_and_grads(regression, guide, X, y)
    assert loss == pytest.approx(stock, rel=1e-12)
    assert relative_error(-actual.loc, guide.posterior.loc.grad) < 1e-10
    assert relative_error(-actual.scale_tril, guide.posterior.scale_tril.grad) < 1e-10


# -- SVI ----------------------------------------------------------------------------------


@pytest.mark.parametrize("curvature", CURVATURES)
def test_stock_svi_steps_with_it(curvature):
    X, _, y = arguments()
    guide = NaturalGaussianGuide(regression, "full", init_scale=0.1)
    lr = 0.005 if curvature == "gauss_newton" else 0.1  # its curvature is large at first
    svi = SVI(regression, guide, pyro.optim.SGD({"lr": lr}), NaturalELBO(4, curvature))
    losses = [svi.step(X, y) for _ in range(60)]
    assert losses[-1] < losses[0]
    if curvature != "gauss_newton":
        assert relative_error(guide.posterior.loc.detach(), exact_posterior()[0]) < 0.2
    assert np.isfinite(svi.evaluate_loss(X, y))
    assert float(guide.posterior.loc.grad.abs().sum()) == 0.0


def test_differentiable_loss_has_the_same_value_and_gradients():
    model, args = pyro_models().hierarchy, arguments()
    guide = NaturalGaussianGuide(model)
    elbo = NaturalELBO(3)
    elbo.loss(model, guide, *args)
    pyro.set_rng_seed(3)
    guide.zero_grad()
    loss = elbo.loss_and_grads(model, guide, *args)
    expected = [p.grad.clone() for p in guide.parameters()]
    guide.zero_grad()
    pyro.set_rng_seed(3)
    differentiable = elbo.differentiable_loss(model, guide, *args)
    assert differentiable.shape == ()
    assert float(differentiable.detach()) == loss
    (2.0 * differentiable).backward()
    for p, e in zip(guide.parameters(), expected, strict=True):
        assert torch.allclose(p.grad, 2.0 * e)


# -- the rest of the model and of the guide -----------------------------------------------


def scaled(y):
    scale = pyro.param("scale", torch.tensor(2.0), dist.constraints.positive)
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(x, scale), obs=y)


@pytest.mark.parametrize("curvature", CURVATURES)
def test_model_parameters_get_the_gradient_of_the_stock_elbo(curvature):
    y = torch.tensor([1.0, 3.0, 2.0])
    guide = NaturalGaussianGuide(scaled)
    elbo = NaturalELBO(1, curvature, antithetic=False)
    elbo.loss(scaled, guide, y)
    leaf = pyro.param("scale").unconstrained()
    gradients = []
    for loss in (elbo, pyro.infer.Trace_ELBO()):
        leaf.grad = None
        pyro.set_rng_seed(7)
        value = loss.loss_and_grads(scaled, guide, y)
        gradients.append((float(leaf.grad), value))
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-10)


def two_sites():
    a = pyro.sample("a", dist.Normal(1.0, 0.5))
    pyro.sample("b", dist.Normal(a, 0.5))


def two_guides(partner):
    guide = AutoGuideList(two_sites)
    guide.append(NaturalGaussianGuide(poutine.block(two_sites, expose=["a"]), init_scale=0.3))
    guide.append(partner(poutine.block(two_sites, expose=["b"])))
    return guide


@pytest.mark.parametrize("curvature", ["hessian", "stein", "mean"])
@pytest.mark.parametrize("partner", [AutoNormal, AutoDelta, NaturalGaussianGuide])
def test_partners_of_an_autoguidelist_learn_beside_it(partner, curvature):
    guide = two_guides(partner)
    svi = SVI(two_sites, guide, pyro.optim.SGD({"lr": 0.1}), NaturalELBO(10, curvature))
    pyro.set_rng_seed(1)
    for _ in range(80):
        svi.step()
    posterior = guide[0].posterior.family().detach()
    assert float(posterior.mean) == pytest.approx(1.0, abs=0.1)
    # Given b, the precision of a is 1/0.25 + 1/0.25: mean field, with or without a partner's sd.
    assert float(posterior.stddev) == pytest.approx(
        8**-0.5, rel=0.02 if curvature != "stein" else 0.2
    )
    assert float(guide[1].median()["b"]) == pytest.approx(1.0, abs=0.15)


def test_a_partner_with_discrete_draws_gets_its_score_function_gradient():
    def model():
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        flag = pyro.sample("flag", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Normal(a + 4.0 * flag, 1.0), obs=torch.tensor(4.0))

    def flags():
        p = pyro.param("p", torch.tensor(0.5), dist.constraints.unit_interval)
        pyro.sample("flag", dist.Bernoulli(p))

    guide = AutoGuideList(model)
    guide.append(NaturalGaussianGuide(poutine.block(model, expose=["a"]), init_scale=0.5))
    guide.append(flags)
    svi = SVI(model, guide, pyro.optim.SGD({"lr": 0.15}), NaturalELBO(4))
    for _ in range(50):
        svi.step()
    assert pyro.param("p").item() > 0.75


def test_value_and_hessian_see_the_same_minibatch():
    seen = []

    def model(y):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y), subsample_size=3) as index:
            seen.append(tuple(index.tolist()))
            pyro.sample("y", dist.Normal(x, 1.0), obs=y[index])

    y = torch.arange(50.0)
    guide = NaturalGaussianGuide(model)
    elbo = NaturalELBO(3, "hessian", vectorize_particles=False)
    elbo.loss_and_grads(model, guide, y)
    for _ in range(3):
        del seen[:]
        elbo.loss_and_grads(model, guide, y)
        assert len(seen) == 3  # the run that draws it ends where it is drawn
        assert len(set(seen)) == 1
    first = seen[0]
    elbo.loss_and_grads(model, guide, y)
    assert seen[-1] != first


# -- trouble ------------------------------------------------------------------------------


def test_a_guide_of_another_kind_is_refused():
    X, _, y = arguments()
    with pytest.raises(ValueError, match="no NaturalGaussianGuide.*'weights'"):
        NaturalELBO().loss_and_grads(regression, AutoNormal(regression), X, y)
