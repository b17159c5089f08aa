"""``NaturalELBO`` as a loss of torch: backward passes, modules, and draws without derivatives."""

from __future__ import annotations

import numpy as np
import pytest

from tests import models
from tests.models import data, pyro_models

pytest.importorskip("pyro")

import pyro
import pyro.distributions as dist
import pyro.infer
import torch
from pyro import poutine
from pyro.infer import SVI
from pyro.infer.autoguide import AutoGuideList
from pyro.nn import PyroModule

from pyro_ngvi import NaturalGaussianGuide
from pyro_ngvi.elbo import NaturalELBO


@pytest.fixture(autouse=True)
def _float64(pyro_backend):
    return pyro_backend


def arguments():
    return tuple(map(torch.as_tensor, data()))


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


class Regression(PyroModule):
    def forward(self, X, y):
        weights = pyro.sample("weights", dist.Normal(torch.zeros(3), 2.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(X @ weights, 0.5), obs=y)


def test_it_is_a_module_for_torch_optimisers():
    X, _, y = arguments()
    with pyro.settings.context(module_local_params=True):
        model = Regression()
        guide = NaturalGaussianGuide(model)
        guide(X, y)
        loss = NaturalELBO(4)(model, guide)
        optimiser = torch.optim.SGD(guide.parameters(), lr=0.2)
        for _ in range(50):
            optimiser.zero_grad()
            loss(X, y).backward()
            optimiser.step()
        mean = guide.posterior.loc.detach()
    np.testing.assert_allclose(mean, models.exact_posterior()[0], rtol=0.1)


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
