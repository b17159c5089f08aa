"""Hessians and per-example gradients in torch, by every way of differentiating."""

from __future__ import annotations

import gc
import weakref

import pytest

pytest.importorskip("pyro")

import numpy as np
import pyro
import pyro.distributions as dist
import torch

from pyro_ngvi import NaturalGaussianGuide
from pyro_ngvi.estimators import HessianProducts, plan


@pytest.fixture(autouse=True)
def _float64(pyro_backend):
    return pyro_backend


def log_density(theta):
    """Two draws do not depend on one another; the Hessian is dense."""
    return (theta.sin() * theta.roll(1, -1).exp()).sum(-1) - theta.prod(-1)


def draws():
    theta = torch.randn(3, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(log_density(theta).sum(), theta, create_graph=True)
    exact = torch.stack([torch.autograd.functional.hessian(log_density, row) for row in theta])
    return theta, gradient, exact


@pytest.mark.parametrize("way", [0, 1, 2], ids=["batched", "one by one", "forward"])
@pytest.mark.parametrize("bytes_per_product", [0.0, 2**22, 2**40])
def test_every_way_gives_the_same_products(way, bytes_per_product):
    theta, gradient, exact = draws()
    products = HessianProducts()
    products.way = way
    probes = np.array([0, 1, 0, 2])
    actual = products(probes, plan.Slope(gradient, theta, log_density, bytes_per_product))
    indicator = torch.nn.functional.one_hot(torch.as_tensor(probes)).to(exact)
    assert torch.allclose(actual, (exact @ indicator).permute(2, 0, 1))
    assert products.way == way


class Twice(torch.autograd.Function):
    """The identity, whose backward pass looks at numbers."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        assert np.isfinite(grad.detach().numpy()).all()
        return grad


def test_a_backward_pass_that_cannot_be_batched_is_run_one_by_one():
    theta = torch.randn(2, 3, requires_grad=True)

    def function(x):
        return Twice.apply(x).pow(3).sum(-1)

    (gradient,) = torch.autograd.grad(function(theta).sum(), theta, create_graph=True)
    products = HessianProducts()
    actual = products(np.arange(3), plan.Slope(gradient, theta, function, 0.0))
    assert products.way == 1
    expected = torch.diag_embed(6 * theta.detach()).movedim(1, 0)
    assert torch.allclose(actual, expected)


def test_a_plan_keeps_no_draws_that_it_was_made_with(monkeypatch):
    """Of a network with 10^7 weights each is 40 MB, and a cycle through autograd stays for good."""
    drawn, make = [], plan._line

    def line(*args):
        latents = make(*args)
        drawn.extend(map(weakref.ref, latents.values()))
        return latents

    def model(x):
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(torch.tanh(x @ w).exp(), 1.0), obs=x[:, 0])

    x = torch.randn(5, 3)
    guide = NaturalGaussianGuide(model, "diagonal")
    guide(x)
    monkeypatch.setattr(plan, "_line", line)
    made, density = plan.make_plan(model, guide, (x,), {})
    assert made.bytes_per_draw > 0
    del density
    gc.collect()
    assert len(drawn) == 4
    assert not [one for one in drawn if one() is not None]
