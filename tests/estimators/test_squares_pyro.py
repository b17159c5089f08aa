"""Squared gradients of examples, summed by rows of activations, are those of a loop, or refused."""

from __future__ import annotations

import pytest

pytest.importorskip("pyro")

import pyro
import pyro.distributions as dist
import torch
from torch import nn

from ngvi.latents import forest
from pyro_ngvi import NaturalELBO, NaturalGaussianGuide
from pyro_ngvi.estimators import gauss_newton
from pyro_ngvi.estimators.per_example import layers, squares
from pyro_ngvi.estimators.per_example.layers import UnknownLayerError
from pyro_ngvi.estimators.per_example.rows import ExampleRows
from pyro_ngvi.estimators.per_example.squares import Recorder

NUM = 6


@pytest.fixture(autouse=True)
def _float64(pyro_backend):
    return pyro_backend


def compare(function, dim):
    """What by rows and a loop over examples have, of log likelihoods as a function of latents."""
    theta = torch.randn(1, dim, requires_grad=True)
    scale = torch.linspace(1, 3, NUM)
    with Recorder() as recorder:
        log_likelihood = function(theta[0])
    actual = squares.squares(recorder, log_likelihood, scale, theta, set())
    rows = [torch.autograd.grad(one, theta, retain_graph=True)[0] for one in log_likelihood]
    expected = sum(s * row.square() for s, row in zip(scale, rows, strict=True))
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def with_weights(network, inputs, change=lambda x: x):
    """A network's log likelihoods as a function of its weights in a row, and how many there are."""
    weights = dict(network.named_parameters())
    labels = torch.arange(NUM) % 2

    def function(theta):
        parts = change(theta).split([weight.numel() for weight in weights.values()])
        here = {
            name: p.reshape(weights[name].shape) for name, p in zip(weights, parts, strict=True)
        }
        logits = torch.func.functional_call(network, here, (inputs,))
        return torch.distributions.Categorical(logits=logits).log_prob(labels)

    return function, sum(weight.numel() for weight in weights.values())


def lenet():
    convolutions = nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 2, 2)
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Tanh(), nn.Linear(2 * 2 * 1, 2))


class Sequences(nn.Module):
    """Several rows of each example."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)).mean(1))


@pytest.mark.parametrize("at_once", [2, 2**22])
def test_the_sums_are_those_of_a_loop_over_examples(at_once, monkeypatch):
    monkeypatch.setattr(layers, "NUMBERS_AT_ONCE", at_once)
    dense = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2, bias=False))
    compare(*with_weights(dense, torch.randn(NUM, 3)))
    compare(*with_weights(dense, torch.randn(NUM, 3), lambda theta: 0.5 * theta.exp()))
    compare(*with_weights(lenet(), torch.randn(NUM, 2, 6, 4)))
    compare(*with_weights(Sequences(), torch.randn(NUM, 5, 3)))
    images = torch.randn(NUM, 3)

    def by_hand(theta):
        hidden = torch.relu(images @ theta[:12].reshape(3, 4) + theta[12:16].unsqueeze(-2))
        return torch.log_softmax(hidden @ theta[16:].reshape(4, 2), -1)[:, 0]

    compare(by_hand, 24)


def test_other_uses_of_a_weight_are_refused():
    rows = torch.randn(NUM, 3)
    alone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2))
    with pytest.raises(UnknownLayerError):
        compare(*with_weights(alone, rows))
    compare(*with_weights(alone.eval(), rows))
    uses = {
        "twice": lambda w: (torch.sin(rows @ w) + rows.flip(1) @ w).sum(1),
        "by another function": lambda w: torch.sin(rows @ w).sum(1) * w.sum(),
        "with another weight": lambda w: (rows @ (w @ w.mT)).sum(1),
        "mixed": lambda w: torch.sin(rows @ w.cumsum(0)).sum(1),
        "to others' rows": lambda w: torch.sin(rows @ w).sum(1).cumsum(0),
        "to the next row": lambda w: torch.sin(rows @ w + 0.1 * (rows @ w).roll(1, 0)).sum(1),
        "not at all": lambda w: w.sum() * rows[:, 0],
    }
    for name, function in uses.items():
        with pytest.raises(UnknownLayerError):
            compare(lambda theta, f=function: f(theta.reshape(3, 3)), 9)
            raise AssertionError(name)


def test_a_network_that_fits_its_examples_is_no_network_whose_examples_depend_on_each_other():
    surely = 12 * nn.functional.one_hot(torch.arange(NUM) % 2, 2).float()
    layer = nn.Linear(3, 2, bias=False, dtype=torch.float32)
    weight, rows = layer.weight.reshape(1, -1).detach().requires_grad_(), torch.randn(NUM, 3)
    with Recorder() as recorder:
        logits = nn.functional.linear(rows.float(), weight[0].reshape(2, 3)) + surely
        chosen = logits[torch.arange(NUM), torch.arange(NUM) % 2] - logits.logsumexp(1)
    squares.squares(recorder, chosen, torch.ones(NUM, dtype=torch.float32), weight, set())


@pytest.mark.parametrize("by_rows", [True, False])
def test_a_step_is_the_same_by_rows_and_by_examples(by_rows, monkeypatch):
    """Of a minibatch, two draws, and a network that goes on by examples when it is refused."""
    monkeypatch.setattr(gauss_newton, "MAX_PROBED_DIAGONAL", 3)
    images, labels = torch.randn(NUM, 3), torch.arange(NUM) % 2

    def model(twice=False):
        w = pyro.sample("w", dist.Normal(torch.zeros(3, 2), 2.0).to_event())
        with pyro.plate("data", NUM, subsample=torch.tensor([1, 4, 5])) as index:
            logits = torch.sin(images[index] @ w) + (images[index] @ w if twice else 0)
            pyro.sample("label", dist.Categorical(logits=logits), obs=labels[index])

    found = []
    for limit in (3, 10_000):
        monkeypatch.setattr(gauss_newton, "MAX_PROBED_DIAGONAL", limit)
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        guide, loss = NaturalGaussianGuide(model, "diagonal"), NaturalELBO(2, "gauss_newton")
        found.append(loss.loss_and_grads(model, guide, twice=not by_rows))
        store = pyro.get_param_store()
        found[-1] = [found[-1], *(store._params[name].grad for name in sorted(store.keys()))]
        estimator = loss._set_up.estimator
        assert (estimator.known[0] is not None) == (by_rows or limit == 10_000)
        assert bool(estimator.known[0]) == (by_rows and limit == 3)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), rtol=1e-10, atol=0)


@pytest.mark.parametrize("family", ["matrix_normal", "low_rank"])
def test_families_that_keep_rows_take_them_from_activations(family, monkeypatch):
    """Of weights as they are, transposed, of two sites, transformed, convolutions, and biases."""
    monkeypatch.setattr(forest, "MAX_DENSIFIED_DIM", 3)
    linear, images = nn.functional.linear, torch.randn(NUM, 2, 5, 5)
    labels = torch.arange(NUM) % 2

    def model():
        def site(name, *shape, prior=dist.Normal):
            return pyro.sample(name, prior(torch.zeros(shape), 0.7).to_event())

        kernel, bias = site("kernel", 3, 2, 2, 2), site("bias", 3)
        x = nn.functional.conv2d(images[[1, 4, 5, 0]], kernel, bias).tanh().mean(-1).flatten(1)
        x = torch.tanh(x @ site("product", 12, 4))
        x = torch.tanh(linear(x, site("linear", 3, 4), site("of linear", 3)))
        x = torch.tanh(linear(x, site("turned", 3, 4).mT))
        x = torch.tanh(x @ site("positive", 4, 3, prior=dist.LogNormal))
        x = torch.tanh(x @ torch.cat([site("left", 3, 2), site("right", 3, 2)], 1))
        with pyro.plate("data", NUM, subsample=torch.tensor([1, 4, 5, 0])) as index:
            pyro.sample("label", dist.Categorical(logits=x[:, :2]), obs=labels[index])

    found = []
    for by_rows in (True, False):
        if not by_rows:
            monkeypatch.setattr(gauss_newton, "squares", refuse)
        pyro.clear_param_store()
        pyro.set_rng_seed(0)
        guide, loss = NaturalGaussianGuide(model, family), NaturalELBO(2, "gauss_newton")
        found.append([loss.loss_and_grads(model, guide)])
        assert bool(loss._set_up.estimator.known[0]) == by_rows
        store = pyro.get_param_store()
        found[-1] += [store._params[name].grad for name in sorted(store.keys())]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(
            torch.as_tensor(one), torch.as_tensor(other), rtol=1e-9, atol=1e-12
        )


def test_matrices_of_latents_that_are_weights_have_outer_products_as_rows():
    """Whose numbers survive single precision, however many there are."""
    count = 2**11 * 3
    x, y = torch.randn(NUM, 3), torch.randn(NUM, count // 3)
    theta = torch.zeros(1, count, dtype=torch.float32, requires_grad=True)
    weight = theta[0].reshape(3, -1)
    delta, scale = y.float(), torch.linspace(1, 2, NUM)
    use = next(layers.product(x.float(), weight, x.float() @ weight))
    rows = ExampleRows([use], [delta], scale.float(), theta, 0)
    left, right = rows.outer(0, 3, count // 3)
    torch.testing.assert_close(left, x.float())
    torch.testing.assert_close(right, (y / scale.sqrt()[:, None]).float())
    outer = (left[:, :, None] * right[:, None]).flatten(1)
    torch.testing.assert_close(rows.entries(0, count), outer)
    torch.testing.assert_close(rows.entries(7, 5000), outer[:, 7:5000])
    assert rows.outer(0, 2, count // 3) is None
    assert rows.outer(1, 3, 5) is None


def refuse(*_):
    raise UnknownLayerError
