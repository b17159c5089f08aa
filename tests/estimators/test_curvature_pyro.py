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

from ngvi.latents import forest
from pyro_ngvi import NaturalGaussianGuide
from pyro_ngvi.estimators import HessianProducts, plan
from pyro_ngvi.estimators.hessian import diagonals, hessians
from pyro_ngvi.estimators.moments import plus
from pyro_ngvi.families import CovarianceCholesky, LowRankPrecision
from pyro_ngvi.networks.gauss_newton import GaussNewton, _columns, _rows, minus_squares


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
    actual = products(gradient, theta, probes, log_density, bytes_per_product=bytes_per_product)
    indicator = torch.nn.functional.one_hot(torch.as_tensor(probes)).to(exact)
    assert torch.allclose(actual, (exact @ indicator).permute(2, 0, 1))
    assert products.way == way


@pytest.mark.parametrize("bytes_per_product", [0.0, 2**22])
def test_a_diagonal_takes_two_products_or_as_many_as_latents(bytes_per_product, monkeypatch):
    theta, gradient, exact = draws()
    products, calls = HessianProducts(), []
    inside = products._with
    monkeypatch.setattr(products, "_with", lambda v, *a: calls.append(len(v)) or inside(v, *a))
    size = {"bytes_per_product": bytes_per_product}
    actual = products.diagonal(gradient, theta, log_density, **size)
    assert torch.allclose(actual, exact.diagonal(dim1=1, dim2=2))
    assert sum(calls) == 6
    (gradient,) = torch.autograd.grad(theta.sin().sum(), theta, create_graph=True)
    actual = products.diagonal(gradient, theta, lambda x: x.sin().sum(-1), **size)
    assert torch.allclose(actual, -theta.sin())
    assert sum(calls) == 8


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
    actual = products(gradient, theta, np.arange(3), function)
    assert products.way == 1
    expected = torch.diag_embed(6 * theta.detach()).movedim(1, 0)
    assert torch.allclose(actual, expected)


@pytest.mark.parametrize("gradients", [_rows, _columns])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_rows_and_columns_give_the_same_gradients_of_examples(gradients, at_once):
    X = torch.randn(7, 4)
    theta = torch.randn(3, 4, requires_grad=True)
    logits = theta @ X.mT
    actual = gradients(torch.nn.functional.logsigmoid(logits), theta, at_once)
    assert torch.allclose(actual, torch.sigmoid(-logits)[..., None] * X)


def test_gauss_newton_subtracts_squares_from_the_rest():
    family = CovarianceCholesky(torch.zeros(2), torch.eye(2))
    rest = hessians(torch.zeros(2, 3, 2), family)
    rows, scale = torch.randn(3, 5, 2), torch.full((3, 5), 2.0)
    rows[2, 0] = torch.inf
    curvature = minus_squares(rest, rows, scale, family)
    kept = curvature.finite()
    assert kept.tolist() == [True, True, False]
    expected = -2.0 * torch.einsum("kni,knj->ij", rows[:2], rows[:2])
    assert torch.allclose(curvature.total(kept), expected)


def test_low_rank_gets_the_gradients_of_examples_and_no_matrix(monkeypatch):
    monkeypatch.setattr(forest, "MAX_DENSIFIED_DIM", 1)
    start = LowRankPrecision(rank=2).initial(torch.zeros(4), 1.0)
    rest, rows, scale = torch.randn(3, 4), torch.randn(3, 5, 4), torch.rand(3, 5)
    rest[1, 0] = torch.nan
    curvature = minus_squares(diagonals(rest), rows, scale, start)
    kept = curvature.finite()
    parts = [curvature.total(kept & (torch.arange(3) == draw)) for draw in (0, 2)]
    estimator, gradient = GaussNewton(3, 0.0), torch.randn(4)
    of_both = (scale.sqrt()[..., None] * rows / 2**0.5)[[0, 2]].flatten(0, 1)
    expected = start.natural_gradient_from_rows(gradient, of_both, -rest[[0, 2]].mean(0))
    for total in (curvature.total(kept), plus(*parts)):
        actual = estimator.direction(start, gradient, total, 2)
        for one, other in zip(
            actual.coordinates().values(), expected.coordinates().values(), strict=True
        ):
            assert torch.allclose(one, other)


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
